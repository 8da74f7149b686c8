//! Memory regions.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use polyverbs_abi::{IbvMr, IbvPd};
use verbs_api::capability::Features;
use verbs_api::ids::LKey;
use verbs_api::objects::{Holder, ObjectId, ObjectKind};
use verbs_api::provider::{MrChange, MrInit, MrOps, Mutex, RegionMemory, Reply, own};
use verbs_api::{Access, ErrorKind, RKey, VerbError};

use crate::context::Context;
use crate::domain::Domain;
use crate::lock_limit;
use crate::verbs::{Change, Live};

pub(crate) struct Region {
    context: Arc<Context>,
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) mr: Arc<Live<IbvMr>>,
    lkey: AtomicU32,
    /// The key for peers, or 0 if peers have no rights.
    rkey: AtomicU32,
    state: Mutex<RegionState>,
    /// The windows that were last bound to the region. If the library refuses to deregister the region, they are the
    /// reason.
    pub(crate) windows: Mutex<HashSet<ObjectId>>,
}

struct RegionState {
    access: Access,
    /// Keeps the memory for as long as the device may use it.
    _memory: RegionMemory,
}

impl Region {
    pub(crate) fn register(
        context: Arc<Context>,
        pd: &Live<IbvPd>,
        init: &MrInit,
    ) -> Result<Self, VerbError> {
        check_rights(init.access, init.on_demand)?;
        let mr = match init.private {
            true => register_unseen(&context, pd, init),
            false => pd.reg_mr(&init.memory, init.iova, init.access),
        };
        let mr = mr.map_err(|error| lock_limit::named(error, &init.memory))?;
        Self::new(context, mr, init)
    }

    fn new(context: Arc<Context>, mr: Live<IbvMr>, init: &MrInit) -> Result<Self, VerbError> {
        let shared = Shared {
            mr: Arc::new(mr),
            lkey: AtomicU32::default(),
            rkey: AtomicU32::default(),
            state: Mutex::new(RegionState {
                access: init.access,
                _memory: init.memory.clone(),
            }),
            windows: Mutex::default(),
        };
        shared.read_keys()?;
        if !init.private {
            shared.show_key(&context);
        }
        let shared = Arc::new(shared);
        Ok(Self { context, shared })
    }
}

impl Shared {
    fn read_keys(&self) -> Result<(), VerbError> {
        let (lkey, rkey) = self.mr.keys()?;
        let is_exposed = self.state.lock().access.intersects(Access::REMOTE);
        self.lkey.store(lkey, Ordering::Release);
        self.rkey
            .store(if is_exposed { rkey } else { 0 }, Ordering::Release);
        Ok(())
    }

    fn show_key(&self, context: &Context) {
        let lkey = self.lkey.load(Ordering::Acquire);
        context.keys.lock().insert(lkey);
    }

    /// Returns Busy with the bound windows in place of the library's error, if windows are bound to the region.
    fn held_by_windows(&self, error: VerbError) -> VerbError {
        let windows = self.windows.lock();
        match error.kind() {
            ErrorKind::Busy | ErrorKind::InvalidArgument if !windows.is_empty() => {
                let holders = windows.iter().map(|&id| Holder::new(ObjectKind::Mw, id));
                VerbError::Busy(holders.collect())
            }
            _ => error,
        }
    }

    fn rereg(&self, change: MrChange) -> Result<(), VerbError> {
        check_rights(change.access.unwrap_or_default(), false)?;
        let pd: Option<Arc<Domain>> = match &change.pd {
            Some(pd) => Some(own(pd, "pd")?),
            None => None,
        };
        let moved = change.translation.as_ref();
        if moved.is_some_and(|(memory, iova)| *iova != memory.address() as u64) {
            let what = "ibv_rereg_mr with another address than that of the memory";
            return Err(VerbError::UnsupportedVerb(what));
        }
        self.mr.rereg(&Change {
            memory: moved.map(|(memory, _)| memory),
            pd: pd.as_ref().map(|pd| &*pd.pd),
            access: change.access,
        })?;
        let mut state = self.state.lock();
        if let Some((memory, _)) = change.translation {
            state._memory = memory;
        }
        state.access = change.access.unwrap_or(state.access);
        drop(state);
        self.read_keys()
    }
}

impl MrOps for Region {
    fn lkey(&self) -> LKey {
        LKey::new(self.shared.lkey.load(Ordering::Acquire))
    }

    fn rkey(&self) -> RKey {
        RKey::new(self.shared.rkey.load(Ordering::Acquire))
    }

    fn rereg(&self, change: MrChange, reply: Reply<()>) {
        let (context, shared) = (Arc::clone(&self.context), Arc::clone(&self.shared));
        self.context.start(reply, move || {
            shared.rereg(change)?;
            shared.show_key(&context);
            Ok(())
        });
    }

    fn dereg(&self, reply: Reply<()>) {
        let shared = Arc::clone(&self.shared);
        self.context.destroy(reply, move || {
            let done = shared.mr.dereg();
            done.map_err(|error| shared.held_by_windows(error))
        });
    }
}

/// Refuses access rights, and registration on demand, that no device reports to support. A device that ignores unknown bits
/// would use wrong addresses for a zero-based region.
fn check_rights(access: Access, on_demand: bool) -> Result<(), VerbError> {
    let mut missing = Features::empty();
    missing.set(Features::ON_DEMAND, on_demand);
    missing.set(Features::ZBVA, access.contains(Access::ZERO_BASED));
    let flushes = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    missing.set(Features::FLUSH, access.intersects(flushes));
    match missing.is_empty() {
        true => Ok(()),
        false => Err(VerbError::Unsupported { missing }),
    }
}

fn register_unseen(
    context: &Context,
    pd: &Live<IbvPd>,
    init: &MrInit,
) -> Result<Live<IbvMr>, VerbError> {
    let make = || {
        let mr = pd.reg_mr(&init.memory, init.iova, init.access)?;
        let (lkey, _) = mr.keys()?;
        Ok((mr, lkey))
    };
    let (found, seen) = context.keys.lock().find_unseen(make);
    for mr in seen {
        mr.dereg()?;
    }
    found
}

//! Protection domains, and what is made in them: regions, address handles, queues.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use polyverbs_abi::{IbvAh, IbvMr, IbvPd};
use rustix::process::{Resource, getrlimit};
use verbs_api::capability::Features;
use verbs_api::ids::{LKey, LinkAddress};
use verbs_api::memory::{Memory, MemoryRange};
use verbs_api::objects::{Holder, ObjectId, ObjectKind};
use verbs_api::provider::{
    AhOps, MrChange, MrInit, MrOps, MwOps, MwType, PdOps, QpInit, QpOps, RegionMemory, Reply,
    SrqInit, SrqOps, own,
};
use verbs_api::qp::AddressVector;
use verbs_api::{Access, ArgumentReason, ErrorKind, RKey, VerbError};

use crate::context::{Context, lock};
use crate::device;
use crate::queue_pair::QueuePair;
use crate::receive_queue::ReceiveQueue;
use crate::verbs::{Change, Live};
use crate::window::Window;

pub(crate) struct Domain {
    pub(crate) pd: Arc<Live<IbvPd>>,
    context: Arc<Context>,
    nameless: Arc<OnceLock<Arc<Live<IbvMr>>>>,
}

impl Domain {
    pub(crate) fn new(context: Arc<Context>, pd: Live<IbvPd>) -> Self {
        Self {
            pd: Arc::new(pd),
            context,
            nameless: Arc::default(),
        }
    }

    fn parts(&self) -> (Arc<Context>, Arc<Live<IbvPd>>) {
        (Arc::clone(&self.context), Arc::clone(&self.pd))
    }
}

impl PdOps for Domain {
    fn reg_mr(&self, init: MrInit, reply: Reply<Arc<dyn MrOps>>) {
        let (context, pd) = self.parts();
        self.context.start(reply, move || {
            check_rights(init.access)?;
            let mr = match init.private {
                true => register_unseen(&context, &pd, &init),
                false => pd.reg_mr(&init.memory, init.iova, init.access),
            };
            let mr = mr.map_err(|error| with_lock_limit(error, init.memory.len()))?;
            Ok(Arc::new(Region::new(context, mr, &init)?) as _)
        });
    }

    fn alloc_mw(&self, id: ObjectId, mw_type: MwType, reply: Reply<Arc<dyn MwOps>>) {
        let (context, pd) = self.parts();
        let nameless = Arc::clone(&self.nameless);
        self.context.start(reply, move || {
            let nameless = match nameless.get() {
                Some(made) => made,
                None => {
                    let made = Arc::new(register_nothing(&pd)?);
                    nameless.get_or_init(|| made)
                }
            };
            let nameless = Arc::clone(nameless);
            Ok(Arc::new(Window::alloc(context, &pd, id, mw_type, nameless)?) as _)
        });
    }

    fn create_srq(&self, init: SrqInit, reply: Reply<Arc<dyn SrqOps>>) {
        let (context, pd) = self.parts();
        self.context.start(reply, move || {
            Ok(Arc::new(ReceiveQueue::create(context, &pd, init)?) as _)
        });
    }

    fn create_qp(&self, init: QpInit, reply: Reply<Arc<dyn QpOps>>) {
        let (context, pd) = self.parts();
        self.context.start(reply, move || {
            Ok(Arc::new(QueuePair::create(context, &pd, init)?) as _)
        });
    }

    fn create_ah(&self, path: AddressVector, reply: Reply<Arc<dyn AhOps>>) {
        let (context, pd) = self.parts();
        self.context.start(reply, move || {
            check_path(&context, &path)?;
            let made = pd.create_ah((&path).into());
            let ah = Arc::new(made.map_err(|error| refused(&context, &path, error))?);
            Ok(Arc::new(AddressHandle { ah, path, context }) as _)
        });
    }

    fn dealloc(&self, reply: Reply<()>) {
        let (pd, nameless) = (Arc::clone(&self.pd), Arc::clone(&self.nameless));
        self.context.destroy(reply, move || {
            // A dealloc that failed has taken it already.
            let _ = nameless.get().map(|mr| mr.dereg());
            pd.dealloc()
        });
    }
}

/// A region of no byte of the program's, for windows that are bound to none: not every library takes a null pointer for it.
fn register_nothing(pd: &Live<IbvPd>) -> Result<Live<IbvMr>, VerbError> {
    static NOTHING: OnceLock<Memory> = OnceLock::new();
    let memory = match NOTHING.get() {
        Some(memory) => memory,
        None => {
            let made = Memory::zeroed(4096).map_err(|_| VerbError::Resources("memory"))?;
            NOTHING.get_or_init(|| made)
        }
    };
    let memory = RegionMemory::from(&MemoryRange::from(memory));
    pd.reg_mr(&memory, memory.address() as u64, Access::MW_BIND)
}

/// The kernel says of memory that it may not lock what it says where there is none.
fn with_lock_limit(error: VerbError, length: usize) -> VerbError {
    let no_memory = matches!(
        error,
        VerbError::Os {
            errno: libc::ENOMEM,
            ..
        }
    );
    match getrlimit(Resource::Memlock).current {
        Some(limit) if no_memory => VerbError::MemoryLock {
            wanted: length as u64,
            limit,
        },
        _ => error,
    }
}

/// The library sees some of it only when the path is used, or never.
fn check_path(context: &Context, path: &AddressVector) -> Result<(), VerbError> {
    path.check(context.properties.limits.phys_port_cnt)?;
    let is_lid = matches!(path.address, LinkAddress::Lid(_));
    if is_lid && !device::is_infiniband(&context.live.query_port(path.port_num)?) {
        let reason = ArgumentReason::NotOnNetwork(path.address);
        return Err(VerbError::argument("ah_attr.address", reason));
    }
    Ok(())
}

/// Why a path was refused: the library has a number for that.
fn refused(context: &Context, path: &AddressVector, error: VerbError) -> VerbError {
    let entry = context
        .live
        .query_gid(path.port_num, path.sgid_index.into());
    match entry {
        Ok(entry) if entry.gid.raw != [0; 16] => error,
        _ => VerbError::argument("sgid_index", "the port has no such identifier"),
    }
}

/// No device says that it has zero-based addresses, and one that ignores what it does not know opens the wrong memory.
fn check_rights(access: Access) -> Result<(), VerbError> {
    let mut missing = Features::empty();
    missing.set(Features::ZBVA, access.contains(Access::ZERO_BASED));
    let flushes = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    missing.set(Features::FLUSH, access.intersects(flushes));
    match missing.is_empty() {
        true => Ok(()),
        false => Err(VerbError::Unsupported { missing }),
    }
}

/// The local keys that programs have seen.
///
/// A private region must not get one of them, because a program may still have entries with it; the library chooses keys,
/// and does not say when it uses one again.
#[derive(Default)]
pub(crate) struct KeyHistory(HashSet<u32>);

/// How often a region is registered in search of a key that nobody has seen.
const ATTEMPTS: usize = 256;

impl KeyHistory {
    /// Makes regions until one has a key that nobody has seen; answers those before it too, which had to be kept until
    /// then so that another key was next.
    fn find_unseen<T>(
        &self,
        mut make: impl FnMut() -> Result<(T, u32), VerbError>,
    ) -> (Result<T, VerbError>, Vec<T>) {
        let mut seen = Vec::new();
        for _ in 0..ATTEMPTS {
            match make() {
                Ok((made, lkey)) if self.0.contains(&lkey) => seen.push(made),
                Ok((made, _)) => return (Ok(made), seen),
                Err(error) => return (Err(error), seen),
            }
        }
        let none = VerbError::Resources("keys that no region has had");
        (Err(none), seen)
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
    let (found, seen) = lock(&context.keys).find_unseen(make);
    for mr in seen {
        mr.dereg()?;
    }
    found
}

pub(crate) struct Region {
    context: Arc<Context>,
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) mr: Arc<Live<IbvMr>>,
    lkey: AtomicU32,
    /// 0 where peers have no right.
    rkey: AtomicU32,
    state: Mutex<RegionState>,
    /// Those that were bound to it last: what may keep the library from giving it up.
    pub(crate) windows: Mutex<HashSet<ObjectId>>,
}

struct RegionState {
    access: Access,
    /// Kept as long as the device may use it.
    _memory: RegionMemory,
}

impl Region {
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
        let is_exposed = lock(&self.state).access.intersects(Access::REMOTE);
        self.lkey.store(lkey, Ordering::Release);
        self.rkey
            .store(if is_exposed { rkey } else { 0 }, Ordering::Release);
        Ok(())
    }

    fn show_key(&self, context: &Context) {
        let lkey = self.lkey.load(Ordering::Acquire);
        lock(&context.keys).0.insert(lkey);
    }

    /// What a refusal means where windows are bound to the region.
    fn held_by_windows(&self, error: VerbError) -> VerbError {
        let windows = lock(&self.windows);
        match error.kind() {
            ErrorKind::Busy | ErrorKind::InvalidArgument if !windows.is_empty() => {
                let holders = windows.iter().map(|&id| Holder::new(ObjectKind::Mw, id));
                VerbError::Busy(holders.collect())
            }
            _ => error,
        }
    }

    fn rereg(&self, change: MrChange) -> Result<(), VerbError> {
        check_rights(change.access.unwrap_or_default())?;
        let pd: Option<Arc<Domain>> = match &change.pd {
            Some(pd) => Some(own(pd, "pd")?),
            None => None,
        };
        let moved = change.translation.as_ref();
        if moved.is_some_and(|(memory, iova)| *iova != memory.address() as u64) {
            let reason = "ibv_rereg_mr has no address but that of the memory";
            return Err(VerbError::UnsupportedHere(reason.into()));
        }
        self.mr.rereg(&Change {
            memory: moved.map(|(memory, _)| memory),
            pd: pd.as_ref().map(|pd| &*pd.pd),
            access: change.access,
        })?;
        let mut state = lock(&self.state);
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

pub(crate) struct AddressHandle {
    pub(crate) ah: Arc<Live<IbvAh>>,
    path: AddressVector,
    context: Arc<Context>,
}

impl AhOps for AddressHandle {
    fn path(&self) -> AddressVector {
        self.path
    }

    fn destroy(&self, reply: Reply<()>) {
        let ah = Arc::clone(&self.ah);
        self.context.destroy(reply, move || ah.destroy());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_region_has_a_key_that_no_program_has_seen() {
        let history = KeyHistory(HashSet::from([1, 2]));
        let mut keys = [1, 2, 3].into_iter();
        let make = || keys.next().map(|key| (key, key)).ok_or(VerbError::Canceled);
        assert_eq!(history.find_unseen(make), (Ok(3), vec![1, 2]));
    }

    #[test]
    fn a_library_that_gives_the_same_key_again_and_again_is_an_error() {
        let history = KeyHistory(HashSet::from([1]));
        let (found, seen) = history.find_unseen(|| Ok(((), 1)));
        assert!(matches!(found, Err(VerbError::Resources(_))), "{found:?}");
        assert_eq!(seen.len(), ATTEMPTS);
    }
}

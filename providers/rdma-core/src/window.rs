//! Memory windows.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use polyverbs_abi::{IbvMr, IbvMw, IbvPd};
use verbs_api::objects::ObjectId;
use verbs_api::provider::{Mutex, MwOps, MwType, Reply};
use verbs_api::{RKey, VerbError};

use crate::context::Context;
use crate::region;
use crate::verbs::Live;

pub(crate) struct Window {
    pub(crate) mw: Arc<Live<IbvMw>>,
    rkey: AtomicU32,
    /// The empty region to which the window refers while it is bound to no region of the program.
    pub(crate) null_region: Arc<Live<IbvMr>>,
    bound_to: Arc<BoundTo>,
    context: Arc<Context>,
}

/// The region that a window was last bound to.
struct BoundTo {
    window: ObjectId,
    region: Mutex<Weak<region::Shared>>,
}

impl BoundTo {
    fn set(&self, region: Weak<region::Shared>) {
        let mut bound_to = self.region.lock();
        if let Some(before) = bound_to.upgrade() {
            before.windows.lock().remove(&self.window);
        }
        if let Some(region) = region.upgrade() {
            region.windows.lock().insert(self.window);
        }
        *bound_to = region;
    }
}

impl Window {
    pub(crate) fn alloc(
        context: Arc<Context>,
        pd: &Live<IbvPd>,
        id: ObjectId,
        mw_type: MwType,
        null_region: Arc<Live<IbvMr>>,
    ) -> Result<Self, VerbError> {
        let mw = pd.alloc_mw(mw_type)?;
        let bound_to = BoundTo {
            window: id,
            region: Mutex::default(),
        };
        Ok(Self {
            rkey: AtomicU32::new(mw.rkey()?),
            mw: Arc::new(mw),
            null_region,
            bound_to: Arc::new(bound_to),
            context,
        })
    }
}

impl MwOps for Window {
    fn rkey(&self) -> RKey {
        RKey::new(self.rkey.load(Ordering::Acquire))
    }

    fn dealloc(&self, reply: Reply<()>) {
        let (mw, bound_to) = (Arc::clone(&self.mw), Arc::clone(&self.bound_to));
        self.context.destroy(reply, move || {
            mw.dealloc()?;
            bound_to.set(Weak::new());
            Ok(())
        });
    }
}

/// The change that a bind makes to a window when it succeeds.
pub(crate) struct Bound {
    pub(crate) window: Arc<Window>,
    pub(crate) region: Option<Arc<region::Region>>,
    /// The new key of the window; `None` if the library has chosen it.
    pub(crate) rkey: Option<RKey>,
}

impl Bound {
    pub(crate) fn tell(&self) {
        let window = &self.window;
        let chosen = || window.mw.rkey().ok();
        if let Some(rkey) = self.rkey.map(RKey::value).or_else(chosen) {
            window.rkey.store(rkey, Ordering::Release);
        }
        let region = self.region.as_ref();
        let bound_to = region.map(|region| Arc::downgrade(&region.shared));
        window.bound_to.set(bound_to.unwrap_or_default());
    }
}

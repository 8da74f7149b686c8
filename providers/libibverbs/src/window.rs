//! Memory windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use polyverbs_abi::{IbvMr, IbvMw, IbvPd};
use verbs_api::provider::{MwOps, MwType, Reply};
use verbs_api::{RKey, VerbError};

use crate::context::Context;
use crate::verbs::Live;

pub(crate) struct Window {
    pub(crate) mw: Arc<Live<IbvMw>>,
    rkey: AtomicU32,
    /// What it is bound to where it is bound to nothing.
    pub(crate) nameless: Arc<Live<IbvMr>>,
    context: Arc<Context>,
}

impl Window {
    pub(crate) fn alloc(
        context: Arc<Context>,
        pd: &Live<IbvPd>,
        mw_type: MwType,
        nameless: Arc<Live<IbvMr>>,
    ) -> Result<Self, VerbError> {
        let mw = pd.alloc_mw(mw_type)?;
        Ok(Self {
            rkey: AtomicU32::new(mw.rkey()?),
            mw: Arc::new(mw),
            nameless,
            context,
        })
    }

    /// A bind has given it this key.
    pub(crate) fn bound(&self, rkey: RKey) {
        self.rkey.store(rkey.value(), Ordering::Release);
    }
}

impl MwOps for Window {
    fn rkey(&self) -> RKey {
        RKey::new(self.rkey.load(Ordering::Acquire))
    }

    fn dealloc(&self, reply: Reply<()>) {
        let mw = Arc::clone(&self.mw);
        self.context.destroy(reply, move || mw.dealloc());
    }
}

/// The key that a window has when a bind has succeeded.
pub(crate) struct Bound {
    pub(crate) window: Arc<Window>,
    pub(crate) rkey: RKey,
}

impl Bound {
    pub(crate) fn tell(&self) {
        self.window.bound(self.rkey);
    }
}

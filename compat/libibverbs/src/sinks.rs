//! Where reads may put what they bring, on transports that ask more of it than programs give.
//!
//! On iWARP the answer to a read is a write of the peer's, so its sink is to be open to remote writes. Programs that were
//! written for InfiniBand register it for themselves only. Such a region has another key for the same memory, which goes
//! out with reads and is told to nobody else.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use verbs_api::{Access, Context, Sge, capability::BaselineGaps, ids::LKey};

/// The keys for reads, by the keys that the program has.
#[derive(Default)]
pub struct Sinks(RwLock<HashMap<u32, LKey>>);

impl Sinks {
    /// Of a device that needs any.
    pub fn of(context: &Context) -> Option<Arc<Self>> {
        let gaps = context.attributes().gaps;
        let needed = gaps.contains(BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE);
        needed.then(Arc::default)
    }

    /// Whether a region with these rights needs one: it may be written, but not by peers.
    pub fn serve(rights: Access) -> bool {
        rights.contains(Access::LOCAL_WRITE) && !rights.contains(Access::REMOTE_WRITE)
    }

    pub(crate) fn insert(&self, lkey: u32, sink: LKey) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(lkey, sink);
    }

    pub(crate) fn remove(&self, lkey: u32) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.remove(&lkey);
    }

    /// An entry of a read's list as the device wants it.
    pub fn entry(&self, sge: &Sge) -> Sge {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let lkey = all.get(&sge.lkey().value()).copied().unwrap_or(sge.lkey());
        // SAFETY: `lkey` is the program's own number or the key of a region made for it; there are no buffer pools here.
        unsafe { Sge::from_raw(sge.addr(), sge.length(), lkey) }
    }
}

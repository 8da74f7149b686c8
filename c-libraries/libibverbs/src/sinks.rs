//! Second keys for the destination buffers ("sinks") of RDMA reads, on transports that require more access rights there
//! than programs grant.
//!
//! On iWARP the response to a read is written by the peer, so that the destination buffer must allow remote writes.
//! Programs written for InfiniBand register it with local access only. Such an MR gets a second key for the same memory,
//! which only reads use and which is reported to nothing else.

use std::collections::HashMap;
use std::sync::Arc;

use verbs_api::provider::RwLock;
use verbs_api::{Access, Context, Sge, capability::BaselineGaps, ids::LKey};

/// The second keys, by the lkeys that the program knows.
#[derive(Default)]
pub struct Sinks(RwLock<HashMap<u32, LKey>>);

impl Sinks {
    /// An empty table if the device requires remote write access of the destination of a read; `None` if it does not.
    pub fn of(context: &Context) -> Option<Arc<Self>> {
        let gaps = context.attributes().gaps;
        let needed = gaps.contains(BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE);
        needed.then(Arc::default)
    }

    /// Whether an MR with these rights needs a second key: it allows local writes but no remote writes.
    pub fn serve(rights: Access) -> bool {
        rights.contains(Access::LOCAL_WRITE) && !rights.contains(Access::REMOTE_WRITE)
    }

    pub(crate) fn insert(&self, lkey: u32, sink: LKey) {
        let mut all = self.0.write();
        all.insert(lkey, sink);
    }

    pub(crate) fn remove(&self, lkey: u32) {
        let mut all = self.0.write();
        all.remove(&lkey);
    }

    /// The SGE to post for the destination of a read: with the second key of its MR, if it has one.
    pub fn entry(&self, sge: &Sge) -> Sge {
        let all = self.0.read();
        let lkey = all.get(&sge.lkey().value()).copied().unwrap_or(sge.lkey());
        // SAFETY: `lkey` is the program's own number or the key of a region made for it; there are no buffer pools here.
        unsafe { Sge::from_raw(sge.addr(), sge.length(), lkey) }
    }
}

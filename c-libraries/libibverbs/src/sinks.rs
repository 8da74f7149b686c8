//! Second keys for the sinks of reads, on transports that need more access there than programs grant.
//!
//! On iWARP the response to a read is a write by the peer, so that the sink has to allow remote writes. Programs written for
//! InfiniBand register it with local access only. Such a region gets a second key for the same memory, which is used by reads
//! and reported to nobody else.

use std::collections::HashMap;
use std::sync::Arc;

use verbs_api::provider::RwLock;
use verbs_api::{Access, Context, Sge, capability::BaselineGaps, ids::LKey};

/// The second keys, by the keys that the program has.
#[derive(Default)]
pub struct Sinks(RwLock<HashMap<u32, LKey>>);

impl Sinks {
    /// A table, if the device needs one.
    pub fn of(context: &Context) -> Option<Arc<Self>> {
        let gaps = context.attributes().gaps;
        let needed = gaps.contains(BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE);
        needed.then(Arc::default)
    }

    /// Whether a region with this access needs a second key: it has local write but no remote write.
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

    /// An SGE of a read, as the device needs it.
    pub fn entry(&self, sge: &Sge) -> Sge {
        let all = self.0.read();
        let lkey = all.get(&sge.lkey().value()).copied().unwrap_or(sge.lkey());
        // SAFETY: `lkey` is the program's own number or the key of a region made for it; there are no buffer pools here.
        unsafe { Sge::from_raw(sge.addr(), sge.length(), lkey) }
    }
}

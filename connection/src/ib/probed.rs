//! The adapters whose liveness is probed, by the time of the next probe.

use std::collections::{BTreeMap, BTreeSet};

use polyverbs_engine::time::Time;
use verbs_api::ids::LinkAddress;

/// Identifies a peer's adapter by its address and its GUID.
pub(super) type Adapter = (LinkAddress, u64);

/// The adapters whose liveness is probed.
#[derive(Debug, Default)]
pub(super) struct Probed {
    pub(super) probes: BTreeMap<Adapter, Probe>,
    pub(super) due: BTreeSet<(Time, Adapter)>,
    /// A communication ID that no connection has, and that probes contain; 0 until the first probe.
    pub(super) unused_id: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) due: Time,
    pub(super) transaction_id: u64,
    pub(super) unanswered: u32,
    /// Whether the adapter has ever answered a probe. If not, missing answers do not show that it is gone.
    pub(super) has_answered: bool,
}

impl Probed {
    pub(super) fn next_due(&self) -> Option<Time> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Returns how many adapters are probed.
    pub(super) fn len(&self) -> usize {
        self.probes.len()
    }

    pub(super) fn set(&mut self, adapter: Adapter, probe: Probe) {
        self.remove(adapter);
        self.due.insert((probe.due, adapter));
        self.probes.insert(adapter, probe);
    }

    pub(super) fn remove(&mut self, adapter: Adapter) -> Option<Probe> {
        let probe = self.probes.remove(&adapter)?;
        self.due.remove(&(probe.due, adapter));
        Some(probe)
    }
}

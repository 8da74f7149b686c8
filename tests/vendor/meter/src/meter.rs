//! The counters and the quota.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use verbs_api::wr::PostReason;
use verbs_api::{Limit, VerbError};

/// The result of posting: after a failure, how many requests were posted, and why the next was not.
pub(crate) type Posted = Result<(), (usize, PostReason)>;

/// The counters and the quota of a device.
pub(crate) struct Meter {
    max_qp: u32,
    qps: AtomicU32,
    posted_sends: AtomicU64,
    posted_receives: AtomicU64,
    completions: AtomicU64,
}

impl Meter {
    /// Makes counters with a quota of queue pairs.
    pub(crate) fn new(max_qp: u32) -> Self {
        Self {
            max_qp,
            qps: AtomicU32::new(0),
            posted_sends: AtomicU64::new(0),
            posted_receives: AtomicU64::new(0),
            completions: AtomicU64::new(0),
        }
    }

    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        vec![
            ("posted_sends", value(&self.posted_sends)),
            ("posted_receives", value(&self.posted_receives)),
            ("completions", value(&self.completions)),
        ]
    }

    pub(crate) fn sends(&self, requests: usize, outcome: Posted) -> Posted {
        count_posted(&self.posted_sends, requests, outcome)
    }

    pub(crate) fn receives(&self, requests: usize, outcome: Posted) -> Posted {
        count_posted(&self.posted_receives, requests, outcome)
    }

    pub(crate) fn completions(&self, polled: usize) {
        self.completions.fetch_add(polled as u64, Ordering::Relaxed);
    }

    pub(crate) fn max_qp(&self) -> u64 {
        self.max_qp.into()
    }

    /// Takes a place in the quota.
    pub(crate) fn take_qp(&self) -> Result<(), VerbError> {
        let one_more = |taken: u32| (taken < self.max_qp).then_some(taken + 1);
        let taken = self
            .qps
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        let wanted = u64::from(taken.unwrap_or_else(|all| all)) + 1;
        Limit::MaxQp
            .compare(self.max_qp(), wanted)
            .map_err(VerbError::Limit)
    }

    pub(crate) fn give_qp_back(&self) {
        self.qps.fetch_sub(1, Ordering::Relaxed);
    }
}

fn count_posted(counter: &AtomicU64, requests: usize, outcome: Posted) -> Posted {
    let posted = match &outcome {
        Ok(()) => requests,
        Err((posted, _)) => *posted,
    };
    counter.fetch_add(posted as u64, Ordering::Relaxed);
    outcome
}

//! How many objects of a kind a device may have.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use verbs_api::VerbError;

/// The number of objects of one kind that a device has, and how many it may have.
pub(crate) struct Quota {
    count: AtomicU32,
    max: u32,
    name: &'static str,
}

impl Quota {
    pub(crate) fn new(max: u32, name: &'static str) -> Arc<Self> {
        let count = AtomicU32::new(0);
        Arc::new(Self { count, max, name })
    }

    pub(crate) fn take(&self) -> Result<(), VerbError> {
        let one_more = |count| (count < self.max).then_some(count + 1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let taken = self.count.fetch_update(set, fetch, one_more);
        taken.map(drop).map_err(|_| VerbError::Resources(self.name))
    }

    pub(crate) fn give_back(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts one object of a kind whose number a device limits, until this is dropped.
pub(crate) struct Place(Arc<Quota>);

impl Place {
    pub(crate) fn take(quota: &Arc<Quota>) -> Result<Self, VerbError> {
        quota.take()?;
        Ok(Self(Arc::clone(quota)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

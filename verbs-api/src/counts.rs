//! The counts of a completion counter, which a provider adds to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bitflags::bitflags;

/// What a completion counter counts of each successful request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[doc(alias = "ibv_comp_cntr_type")]
pub enum CountedUnit {
    /// One for each request.
    #[default]
    Requests,
    /// The bytes of the message.
    Bytes,
}

bitflags! {
    /// The operations of a queue pair that a completion counter counts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[doc(alias = "ibv_qp_attach_comp_cntr_op")]
    pub struct CountedOperations: u32 {
        /// Sends, with and without immediate data or an invalidated key.
        const SEND = 1;
        /// Receives, those that a write with immediate data completes included.
        const RECV = 1 << 1;
        /// Reads of the peer's memory.
        const RDMA_READ = 1 << 2;
        /// Writes into the peer's memory, with and without immediate data.
        const RDMA_WRITE = 1 << 4;
    }
}

/// The two counts of a completion counter, which a provider adds to.
#[derive(Debug)]
pub struct Counts {
    unit: CountedUnit,
    pub(crate) successes: AtomicU64,
    pub(crate) errors: AtomicU64,
    /// How many queue pairs it is attached to.
    pub(crate) attached: AtomicU32,
    /// How many counters the device has.
    of_device: Arc<AtomicU32>,
}

impl Counts {
    /// Counts of a device that has so many of them. Dropping them takes one off that number.
    pub(crate) fn new(unit: CountedUnit, of_device: &Arc<AtomicU32>) -> Arc<Self> {
        Arc::new(Self {
            unit,
            successes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            attached: AtomicU32::new(0),
            of_device: Arc::clone(of_device),
        })
    }

    /// Counts a request that has completed with or without success, with a message of so many bytes.
    pub fn completed(&self, is_success: bool, bytes: u64) {
        let (count, amount) = match (is_success, self.unit) {
            (false, _) => (&self.errors, 1),
            (true, CountedUnit::Requests) => (&self.successes, 1),
            (true, CountedUnit::Bytes) => (&self.successes, bytes),
        };
        // A program that has seen the count sees what the request has placed.
        count.fetch_add(amount, Ordering::Release);
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        self.of_device.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A counter that is attached to a queue pair. Dropping it detaches the counter.
#[derive(Debug)]
pub struct AttachedCounts {
    counts: Arc<Counts>,
    operations: CountedOperations,
}

impl AttachedCounts {
    /// Attaches the counts to a queue pair.
    pub(crate) fn new(counts: &Arc<Counts>, operations: CountedOperations) -> Self {
        counts.attached.fetch_add(1, Ordering::AcqRel);
        Self {
            counts: Arc::clone(counts),
            operations,
        }
    }

    /// Returns which operations it counts.
    pub const fn operations(&self) -> CountedOperations {
        self.operations
    }

    /// Returns the counts.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl Drop for AttachedCounts {
    fn drop(&mut self) {
        self.counts.attached.fetch_sub(1, Ordering::AcqRel);
    }
}

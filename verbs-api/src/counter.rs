//! Completion counters, which count the completions of queue pairs, successes and errors apart.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bitflags::bitflags;

use crate::capability::{Features, Limit};
use crate::context::Context;
use crate::error::VerbError;
use crate::lifecycle::{ContextCore, DestroyError};

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
    successes: AtomicU64,
    errors: AtomicU64,
    /// How many queue pairs it is attached to.
    attached: AtomicU32,
    /// How many counters the device has.
    of_device: Arc<AtomicU32>,
}

impl Counts {
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
    /// Attaches a counter of this device to a queue pair.
    pub(crate) fn new(
        counter: &CompletionCounter,
        operations: CountedOperations,
        context: &Arc<ContextCore>,
    ) -> Result<Self, VerbError> {
        context.require(Features::COMPLETION_COUNTERS)?;
        if !Arc::ptr_eq(context, &counter.context) {
            let reason = "must be of the same device as the queue pair";
            return Err(VerbError::argument("comp_cntr", reason));
        }
        if operations.is_empty() {
            return Err(VerbError::argument("op_mask", "must name an operation"));
        }
        counter.counts.attached.fetch_add(1, Ordering::AcqRel);
        Ok(Self {
            counts: Arc::clone(&counter.counts),
            operations,
        })
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

/// Counts the requests of queue pairs that have completed, also those that have no completion of their own: a program that needs
/// no more than their number polls no completion queue for it. A clone is another handle of the same counter.
///
/// ```no_run
/// use verbs_api::counter::{CountedOperations, CountedUnit};
/// # fn example(device: &verbs_api::Context, qp: &verbs_api::Qp) -> Result<(), verbs_api::VerbError> {
/// let written = device.create_completion_counter(CountedUnit::Requests)?;
/// // Before the queue pair is connected.
/// qp.attach_completion_counter(&written, CountedOperations::RDMA_WRITE)?;
/// // … and after it has posted writes:
/// println!("{} written, {} failed", written.successes(), written.errors());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_comp_cntr")]
pub struct CompletionCounter {
    counts: Arc<Counts>,
    context: Arc<ContextCore>,
}

impl Context {
    /// Makes a completion counter, with both counts at 0. Needs [`Features::COMPLETION_COUNTERS`].
    ///
    /// # Errors
    /// The feature is missing, or the device has [`Limit::MaxCompCntr`] counters.
    #[doc(alias = "ibv_create_comp_cntr")]
    pub fn create_completion_counter(
        &self,
        unit: CountedUnit,
    ) -> Result<CompletionCounter, VerbError> {
        self.core.check_open()?;
        self.core.require(Features::COMPLETION_COUNTERS)?;
        let of_device = self.completion_counters();
        let before = of_device.fetch_add(1, Ordering::Relaxed);
        // From here on, dropping the counts takes it back.
        let counts = Arc::new(Counts {
            unit,
            successes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            attached: AtomicU32::new(0),
            of_device: Arc::clone(of_device),
        });
        let wanted = u64::from(before) + 1;
        let limits = self.limits();
        (limits.check(Limit::MaxCompCntr, wanted))
            .map_err(|_| VerbError::Resources("max_comp_cntr"))?;
        Ok(CompletionCounter {
            counts,
            context: Arc::clone(&self.core),
        })
    }
}

impl CompletionCounter {
    /// Returns the count of requests that have succeeded, or of their bytes.
    #[doc(alias = "ibv_read_comp_cntr")]
    pub fn successes(&self) -> u64 {
        self.counts.successes.load(Ordering::Acquire)
    }

    /// Returns the count of requests that have failed or were flushed.
    #[doc(alias = "ibv_read_err_comp_cntr")]
    pub fn errors(&self) -> u64 {
        self.counts.errors.load(Ordering::Acquire)
    }

    /// Sets the count of successes. What completes at the same moment may be lost.
    #[doc(alias = "ibv_set_comp_cntr")]
    pub fn set_successes(&self, value: u64) {
        self.counts.successes.store(value, Ordering::Release);
    }

    /// Sets the count of errors. What completes at the same moment may be lost.
    #[doc(alias = "ibv_set_err_comp_cntr")]
    pub fn set_errors(&self, value: u64) {
        self.counts.errors.store(value, Ordering::Release);
    }

    /// Adds to the count of successes, modulo 2^64.
    #[doc(alias = "ibv_inc_comp_cntr")]
    pub fn add_successes(&self, amount: u64) {
        self.counts.successes.fetch_add(amount, Ordering::Release);
    }

    /// Adds to the count of errors, modulo 2^64.
    #[doc(alias = "ibv_inc_err_comp_cntr")]
    pub fn add_errors(&self, amount: u64) {
        self.counts.errors.fetch_add(amount, Ordering::Release);
    }

    /// Destroys the counter. A dropped counter that is attached counts on until its queue pairs are destroyed.
    ///
    /// # Errors
    /// `Busy`: it is attached to a queue pair.
    #[doc(alias = "ibv_destroy_comp_cntr")]
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        match self.counts.attached.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(DestroyError::Busy {
                held_by: Vec::new(),
                object: self,
            }),
        }
    }
}

impl fmt::Debug for CompletionCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionCounter")
            .field("successes", &self.successes())
            .field("errors", &self.errors())
            .finish()
    }
}

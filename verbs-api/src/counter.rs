//! Completion counters, which count the completions of queue pairs, successes and errors apart.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::capability::{Features, Limit};
use crate::context::Context;
use crate::counts::{AttachedCounts, CountedOperations, CountedUnit, Counts};
use crate::error::VerbError;
use crate::lifecycle::{ContextCore, DestroyError};

/// Counts the requests of queue pairs that have completed, also those that have no completion of their own: a program that needs
/// only their number polls no completion queue for it. A clone is another handle of the same counter.
///
/// ```no_run
/// use verbs_api::completion::{CountedOperations, CountedUnit};
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
        let counts = Counts::new(unit, of_device);
        match self.limits().value(Limit::MaxCompCntr) {
            // A device that was granted the feature without having it.
            0 => Err(VerbError::Unsupported {
                missing: Features::COMPLETION_COUNTERS,
            }),
            most if u64::from(before) < most => Ok(()),
            _ => Err(VerbError::Resources("max_comp_cntr")),
        }?;
        Ok(CompletionCounter {
            counts,
            context: Arc::clone(&self.core),
        })
    }
}

impl CompletionCounter {
    /// Attaches the counter to a queue pair of this context.
    pub(crate) fn attached(
        &self,
        operations: CountedOperations,
        context: &Arc<ContextCore>,
    ) -> Result<AttachedCounts, VerbError> {
        context.require(Features::COMPLETION_COUNTERS)?;
        if !Arc::ptr_eq(context, &self.context) {
            let reason = "must be of the same device as the queue pair";
            return Err(VerbError::argument("comp_cntr", reason));
        }
        if operations.is_empty() {
            return Err(VerbError::argument("op_mask", "must name an operation"));
        }
        Ok(AttachedCounts::new(&self.counts, operations))
    }

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

//! Low-latency queue pairs: completions that are visible without polling the completion queue.
//!
//! A program that waits for one thing spins on a [`Progress`]: two counters that the device advances as soon as a request of
//! the send queue, or a receive, has completed. The completion arrives in the completion queue all the same, in its order, so
//! that nothing else changes for the program: the mode is a hint, and an emulated device promises no latency.
//!
//! Failed and flushed requests are not counted: their completions are in the completion queue only.
//!
//! ```no_run
//! use low_latency_qp::{LowLatency, LowLatencyFeatures, Watch};
//! use verbs_api::{QpOptions, Requirements, open};
//! let device = open(Requirements::new().needs(LowLatencyFeatures::LOW_LATENCY))?;
//! let low_latency = device.extension::<LowLatency>()?;
//! let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(64).wait()?);
//! let progress = low_latency.watch(Watch::RECEIVES)?;
//! let qp = pd.create_qp(QpOptions::rc(&cq).with(&progress)).wait()?;
//! let seen = progress.receives();
//! while progress.receives() == seen {
//!     std::hint::spin_loop();
//! }
//! // The bytes have been placed; the completion is in `cq`.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod emulation;
mod probes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bitflags::bitflags;
use verbs_api::{
    Context, VerbError,
    capability::FeatureSet,
    extension::{
        Extension, ExtensionDescriptor, FeatureInfo, Held, QpExtension, QpShape, Unsupported,
        feature, link_extension,
    },
};

pub use emulation::{EMULATION, InSoftware};
pub use probes::PROBES;

bitflags! {
    /// The features that the extension adds to a device.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct LowLatencyFeatures: u64 {
        /// Queue pairs whose completions are visible without polling the completion queue.
        ///
        /// * Guarantees: a [`Progress`](crate::Progress) advances when a request or receive has completed, and no later than
        ///   the completion is in the completion queue.
        /// * Limits: no shared receive queue.
        /// * Who: eHCA; emulated devices.
        /// * Source: the low-latency queue pairs of eHCA's driver.
        const LOW_LATENCY = 1;
    }

    /// Which completions of a queue pair its [`Progress`] counts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Watch: u64 {
        /// Completions of requests of the send queue.
        const SENDS = 1;
        /// Completions of receives.
        const RECEIVES = 1 << 1;
    }
}

impl FeatureSet for LowLatencyFeatures {
    const SET: &'static str = "low-latency-qp";
}

pub(crate) const LOW_LATENCY: FeatureInfo = feature!(
    LowLatencyFeatures::LOW_LATENCY,
    "completions that are seen without their completion queue"
);

/// The descriptor of the extension.
pub static EXTENSION: ExtensionDescriptor =
    ExtensionDescriptor::new("low-latency-qp", "completions seen without their queue")
        .features(&[LOW_LATENCY])
        .probes(PROBES)
        .parts(&[&EMULATION]);

link_extension!(EXTENSION);

/// The typed handle of low-latency queue pairs: makes the [`Progress`] with which a queue pair is created.
#[derive(Clone, Copy, Debug)]
pub struct LowLatency(());

impl Extension for LowLatency {
    type Features = LowLatencyFeatures;

    const NAME: &'static str = "low-latency-qp";
    const NEEDS: LowLatencyFeatures = LowLatencyFeatures::LOW_LATENCY;

    fn load(context: &Context) -> Result<Self, Unsupported> {
        Self::require(context)?;
        Ok(Self(()))
    }
}

impl LowLatency {
    /// Makes the counters of one queue pair, or common ones of several.
    ///
    /// # Errors
    /// `what` is empty or has unknown bits.
    pub fn watch(&self, what: Watch) -> Result<Progress, VerbError> {
        if what.is_empty() || !Watch::all().contains(what) {
            return Err(VerbError::argument("watch", "SENDS, RECEIVES or both"));
        }
        let counts = Arc::default();
        Ok(Progress { what, counts })
    }
}

/// Counters of completions, which a program reads in place of polling the completion queue. Pass them to
/// [`QpOptions::with`](verbs_api::QpOptions::with). A clone refers to the same counters.
#[derive(Clone, Debug)]
pub struct Progress {
    what: Watch,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sends: AtomicU64,
    pub(crate) receives: AtomicU64,
}

impl Progress {
    /// Returns how many requests of the send queue have succeeded, in order, signaled or not. On a transport with
    /// acknowledgements, the effects of a request are visible at the peer before it is counted.
    #[inline]
    pub fn sends(&self) -> u64 {
        self.counts.sends.load(Ordering::Acquire)
    }

    /// Returns how many receives have succeeded: their data has been placed.
    #[inline]
    pub fn receives(&self) -> u64 {
        self.counts.receives.load(Ordering::Acquire)
    }

    /// Returns which completions are counted.
    pub fn watched(&self) -> Watch {
        self.what
    }
}

impl From<&Progress> for QpExtension {
    fn from(progress: &Progress) -> Self {
        Self::new("low-latency-qp", &LOW_LATENCY, progress.what.bits())
            .holding(Held::new(Arc::clone(&progress.counts)))
            .check(has_own_receives)
    }
}

fn has_own_receives(shape: &QpShape) -> Result<(), VerbError> {
    if shape.has_srq {
        let reason = "a low-latency queue pair has no SRQ: it has receives of its own";
        return Err(VerbError::argument("srq", reason));
    }
    Ok(())
}

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
    /// Ways in which a device can show completions.
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

    /// Which completions of a queue pair are watched.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Watch: u64 {
        /// Requests of the send queue.
        const SENDS = 1;
        /// Receives.
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

/// The extension.
pub static EXTENSION: ExtensionDescriptor =
    ExtensionDescriptor::new("low-latency-qp", "completions seen without their queue")
        .features(&[LOW_LATENCY])
        .probes(PROBES)
        .parts(&[&EMULATION]);

link_extension!(EXTENSION);

/// Low-latency queue pairs: makes the [`Progress`] with which a queue pair is created.
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
    /// A progress of one queue pair, or the sum of several.
    ///
    /// # Errors
    /// Nothing or something unknown is to be watched.
    pub fn watch(&self, what: Watch) -> Result<Progress, VerbError> {
        if what.is_empty() || !Watch::all().contains(what) {
            return Err(VerbError::argument("watch", "SENDS, RECEIVES or both"));
        }
        let counts = Arc::default();
        Ok(Progress { what, counts })
    }
}

/// The progress of queue pairs: pass it to [`QpOptions::with`](verbs_api::QpOptions::with). Cloning shares it.
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
    /// How many requests of the send queue have succeeded, in order, signaled or not. Where the transport acknowledges, the
    /// peer sees their effects before they are counted.
    #[inline]
    pub fn sends(&self) -> u64 {
        self.counts.sends.load(Ordering::Acquire)
    }

    /// How many receives have succeeded: their data are in place.
    #[inline]
    pub fn receives(&self) -> u64 {
        self.counts.receives.load(Ordering::Acquire)
    }

    /// What is watched.
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
        let reason = "a low-latency queue pair has receives of its own";
        return Err(VerbError::argument("srq", reason));
    }
    Ok(())
}

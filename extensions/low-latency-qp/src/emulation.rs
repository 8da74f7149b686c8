//! Low-latency queue pairs on software devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use polyverbs_engine::emulation::{
    CompletionObserver, Emulation, EmulationPart, Gains, QpHandle, QpHooks,
};
use polyverbs_engine::rules::{self, Rule};
use verbs_api::{
    VerbError, WcStatus,
    capability::DeviceAttributes,
    extension::{Held, QpExtension},
};

use crate::{Counts, LowLatencyFeatures, Watch};

/// The implementation of low-latency queue pairs on software devices.
pub struct InSoftware;

/// The part of the extension by which software devices find its implementation.
pub static EMULATION: EmulationPart = EmulationPart(&InSoftware);

impl Emulation for InSoftware {
    fn gains(&self, _: &DeviceAttributes) -> Gains {
        Gains {
            own: LowLatencyFeatures::LOW_LATENCY.bits(),
            ..Gains::default()
        }
    }

    fn extend_qp(&self, extension: &QpExtension, _: &QpHandle<'_>) -> Result<QpHooks, VerbError> {
        let what = Watch::from_bits(extension.value()).filter(|what| !what.is_empty());
        let counts = extension.held().and_then(Held::get::<Arc<Counts>>);
        let (Some(what), Some(counts)) = (what, counts) else {
            return Err(VerbError::argument("watch", "made by LowLatency::watch"));
        };
        let counts = Arc::clone(counts);
        Ok(QpHooks {
            completion_observer: Some(Box::new(Observer { what, counts })),
            ..QpHooks::default()
        })
    }
}

struct Observer {
    what: Watch,
    counts: Arc<Counts>,
}

impl Observer {
    // Several queue pairs may share one progress.
    fn note(&self, what: Watch, status: WcStatus, counter: &AtomicU64) {
        if status.is_success() && self.what.contains(what) {
            counter.fetch_add(1, Ordering::Release);
        }
    }
}

impl CompletionObserver for Observer {
    fn sent(&self, status: WcStatus) {
        self.note(Watch::SENDS, status, &self.counts.sends);
    }

    fn received(&self, status: WcStatus) {
        if !rules::is_broken(Rule::ReceivesSeen) {
            self.note(Watch::RECEIVES, status, &self.counts.receives);
        }
    }
}

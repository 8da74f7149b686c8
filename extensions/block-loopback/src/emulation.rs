//! Block loopback on software devices.

use polyverbs_engine::emulation::{
    DeliveryFilter, Emulation, EmulationPart, Gains, QpHandle, QpHooks, Station,
};
use polyverbs_engine::rules::{self, Rule};
use verbs_api::{
    Features, VerbError, capability::DeviceAttributes, extension::QpExtension, ids::Gid,
};

use crate::LoopbackFeatures;

/// Implements the extension on software devices: a datagram queue pair created with it gets no copy of its own multicasts.
pub struct InSoftware;

/// The part of the extension by which software devices find its implementation.
pub static EMULATION: EmulationPart = EmulationPart(&InSoftware);

impl Emulation for InSoftware {
    fn gains(&self, device: &DeviceAttributes) -> Gains {
        if !device.features.contains(Features::MULTICAST) {
            return Gains::default();
        }
        Gains {
            own: LoopbackFeatures::BLOCK_MULTICAST.bits(),
            ..Gains::default()
        }
    }

    fn extend_qp(&self, _: &QpExtension, _: &QpHandle<'_>) -> Result<QpHooks, VerbError> {
        Ok(QpHooks {
            delivery_filter: Some(Box::new(OthersOnly)),
            ..QpHooks::default()
        })
    }
}

struct OthersOnly;

impl DeliveryFilter for OthersOnly {
    fn takes(&self, sender: Station, receiver: Station, _: Gid) -> bool {
        sender != receiver || rules::is_broken(Rule::LoopbackBlocked)
    }
}

//! A meter in front of an RDMA device: it counts what is posted and completed, and has a quota of queue pairs.
//!
//! Everything else is the device's behind it: a verb is handed on, and so is its answer.
#![forbid(unsafe_code)]

mod completion_queue;
mod device;
mod domain;
mod meter;
mod queue_pair;
mod receive_queue;

use std::sync::Arc;

use verbs_api::VerbError;
use verbs_api::extension::Extensions;
use verbs_api::provider::{DeviceList, Provider, link_provider};

use device::Device;

/// Queue pairs that a metered device has, if the one behind it has as many.
pub const QUOTA: u32 = 64;

/// Meters in front of the devices of another provider.
pub struct Metered {
    behind: &'static dyn Provider,
}

/// Meters in front of emulated InfiniBand.
pub static PROVIDER: Metered = Metered {
    behind: &emulated_ib::PROVIDER,
};

link_provider!(PROVIDER);

impl Provider for Metered {
    fn name(&self) -> &'static str {
        "acme-meter"
    }

    fn devices(&self, extensions: &Extensions) -> Result<DeviceList, VerbError> {
        // Its handles look for the queues of the engine in what a program gives them, and would find those of the meter.
        let extensions = extensions.clone().without("xrc");
        let behind = self.behind.devices(&extensions)?;
        let numbered = behind.devices.into_iter().enumerate();
        let metered = numbered.map(|(number, device)| {
            let name = format!("meter{number}");
            Arc::new(Device::new(name, self.name(), device)) as _
        });
        Ok(metered.collect())
    }
}

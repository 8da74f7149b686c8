//! A meter in front of an RDMA device: it counts posted and completed requests, and has a quota of queue pairs.
//!
//! Everything else is done by the inner device: the meter forwards each verb and its answer.
#![forbid(unsafe_code)]
// A method with a default would be lost if it were not forwarded.
#![warn(clippy::missing_trait_methods)]

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

/// The queue pairs of a metered device, if the inner device has as many.
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

#[expect(
    clippy::missing_trait_methods,
    reason = "the devices of the meter stay, and are no fallback"
)]
impl Provider for Metered {
    fn name(&self) -> &'static str {
        "acme-meter"
    }

    fn devices(&self, extensions: &Extensions) -> Result<DeviceList, VerbError> {
        // The handles of XRC look for the engine's queues in the objects of the program, and would find those of the
        // meter.
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

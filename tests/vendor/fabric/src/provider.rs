//! The device, which is registered when a program links and names this crate.

use std::sync::Arc;

use polyverbs_engine::device::Device;
use polyverbs_io::emulated::{
    EmulatedError, EmulatedKind, EmulatedOptions, EmulatedProvider, FIRST_ADDRESS, LinkedKind,
};
use verbs_api::provider::DeviceOps;
use verbs_api::{VerbError, inventory};

use crate::{Common, Full};

/// The kind of device, by which more of them can be made.
pub struct Kind;

/// The range of the queue pair numbers.
const NUMBERS: (u32, u32) = (0x4000, 0x8000);

/// The device that is registered.
pub static PROVIDER: EmulatedProvider<Kind> = EmulatedProvider(Kind);

inventory::submit! { LinkedKind(&PROVIDER.0) }
verbs_api::provider::link_provider!(PROVIDER);

impl EmulatedKind for Kind {
    fn name(&self) -> &'static str {
        "acme0"
    }

    fn provider(&self) -> &'static str {
        "acme-fabric"
    }

    fn make(&self, options: &EmulatedOptions) -> Result<Arc<dyn DeviceOps>, EmulatedError> {
        if options.framed || !options.faults.is_none() || options.at.is_some() {
            let reason = "an Acme device has no frames and no wire";
            return Err(VerbError::UnsupportedHere(reason.to_owned()).into());
        }
        let name = options.name.clone();
        let name = name.unwrap_or_else(|| self.name().to_owned());
        let driver = Full::from(Common::new(name, FIRST_ADDRESS, NUMBERS, Arc::default()));
        let network = options.network(None);
        Ok(Device::new(driver, &network, options.engine())?)
    }
}

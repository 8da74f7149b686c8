//! The provider of the device, which is registered if this crate is linked and named.

use std::sync::Arc;

use polyverbs_engine::device::Device;
use polyverbs_engine::link::SharedLink;
use polyverbs_io::emulated::{
    EmulatedError, EmulatedKind, EmulatedOptions, EmulatedProvider, FIRST_ADDRESS, LinkedKind,
};
use polyverbs_io::sim::{Contract, DatagramLink};
use verbs_api::ids::Guid;
use verbs_api::provider::DeviceOps;
use verbs_api::{Transport, capability::Mtu, inventory};

use crate::InfiniBand;
#[cfg(feature = "fabric")]
use crate::fabric;
use crate::header::Header;
use crate::subnet::{Subnet, SubnetLink, SubnetPort};
#[cfg(feature = "sockets")]
use crate::wire::{OnWire, WireOptions};

/// An emulated InfiniBand device: with windows of type 2B, or of type 2A instead.
pub struct EmulatedIb {
    name: &'static str,
    windows_2a: bool,
}

/// The registered device, with windows of type 2B.
pub static PROVIDER: EmulatedProvider<EmulatedIb> = EmulatedProvider(EmulatedIb {
    name: "ib0",
    windows_2a: false,
});

/// The device with windows of type 2A instead. Devices of this kind can be created, but the kind is not registered.
pub static WITH_2A: EmulatedIb = EmulatedIb {
    name: "ib0-2a",
    windows_2a: true,
};

inventory::submit! { LinkedKind(&PROVIDER.0) }
inventory::submit! { LinkedKind(&WITH_2A) }
verbs_api::provider::link_provider!(PROVIDER);

impl EmulatedKind for EmulatedIb {
    fn name(&self) -> &'static str {
        self.name
    }

    fn provider(&self) -> &'static str {
        "emulated-ib"
    }

    fn make(&self, options: &EmulatedOptions) -> Result<Arc<dyn DeviceOps>, EmulatedError> {
        options.check(Contract::Datagram)?;
        let name = options.name.clone().unwrap_or_else(|| self.name.to_owned());
        let driver = |address| InfiniBand {
            name,
            address,
            windows_2a: self.windows_2a,
            management: None,
            subnet: None,
        };
        #[cfg(feature = "sockets")]
        let wire = |at| {
            let mut wire = WireOptions {
                faults: options.faults,
                ..WireOptions::new(at)
            };
            wire.link.memory = !options.without_shared_memory;
            wire.link.tap = options.tap.as_ref().map(|tap| Arc::clone(&tap.0) as _);
            wire
        };
        #[cfg(feature = "fabric")]
        if let Some(place) = &options.fabric {
            return Ok(fabric::make(driver, place, options, wire)?);
        }
        #[cfg(not(feature = "fabric"))]
        if options.fabric.is_some() {
            return Err(EmulatedError::WithoutFabric);
        }
        #[cfg(feature = "sockets")]
        if let Some(at) = options.at {
            return Ok(OnWire::new(driver, wire(at), options.engine())?.device);
        }
        #[cfg(not(feature = "sockets"))]
        if let Some(at) = options.at {
            return Err(EmulatedError::WithoutSockets(at));
        }
        let is_framed = options.framed || options.managed || !options.faults.is_none();
        let link = is_framed.then(|| -> SharedLink<Header> {
            Arc::new(DatagramLink::new(Some(Mtu::Mtu4096), options.faults))
        });
        let driver = driver(FIRST_ADDRESS);
        let (driver, link) = match link {
            Some(link) if options.managed => {
                let (driver, link) = managed(driver, link);
                (driver, Some(link))
            }
            link => (driver, link),
        };
        let network = options.network(link);
        Ok(Device::new(driver, &network, options.engine())?)
    }
}

/// Makes the port of the driver one that a subnet manager configures.
fn managed(driver: InfiniBand, link: SharedLink<Header>) -> (InfiniBand, SharedLink<Header>) {
    let address = driver.address;
    let guid = Guid::software(Transport::InfiniBand, address.ip_or_stand_in());
    let port = Arc::new(SubnetPort::new(&driver.name, guid));
    let link = SubnetLink::new(link);
    link.attach(address, &port);
    let driver = InfiniBand {
        subnet: Some(Subnet::Own(port)),
        ..driver
    };
    (driver, link)
}

//! The RDMA devices that the user has configured with `polyverbs run`.

use std::net::IpAddr;
use std::sync::Arc;

use polyverbs::Device;
use polyverbs::emulated::EmulatedDeviceError;
use polyverbs::provider::MadeOnce;
use polyverbs_configuration::{Configuration, Device as Configured, VARIABLE, complain};

/// Creates the RDMA device of a local address: the first configured one that has the address or, if none has, one with the
/// options of the first configured device. `None` if no device is configured.
pub(crate) fn configured(at: IpAddr) -> Option<Result<Device, EmulatedDeviceError>> {
    static READ: MadeOnce<Configuration> = MadeOnce::new();
    let configuration = READ.get_or_make(|| {
        Configuration::from_environment().unwrap_or_else(|error| {
            complain(format_args!("{VARIABLE}: {error}"));
            Configuration::default()
        })
    });
    // An adapter in a fabric has no IP address.
    let is_usable = |device: &&Configured| device.wire && !device.is_in_fabric();
    let mut devices = configuration.devices.iter().filter(is_usable);
    let there = devices.clone().find(|device| device.address == at);
    let mut device = there.or_else(|| devices.next())?.clone();
    device.address = at;
    let tap = configuration.tap().unwrap_or_else(|error| {
        complain(format_args!("the capture cannot be written: {error}"));
        None
    });
    let made = device.make(tap, None, Arc::new(|_, _| ()));
    Some(made.map_err(EmulatedDeviceError::from))
}

//! What the commands that reach other processes have in common: a device at an address.

use std::net::{IpAddr, SocketAddr};

use polyverbs::Device;
use polyverbs::connection::{devices_at, source_of};
use polyverbs::emulated::{self, EmulatedOptions, FaultSpec};

/// Where the device is, and what its link does
#[derive(clap::Args, Clone)]
pub(crate) struct DeviceOptions {
    /// The device
    #[arg(long, value_name = "NAME")]
    pub(crate) device: String,
    /// What its link does to frames on their way out: see `polyverbs copy --help`
    #[arg(long, value_name = "FAULTS")]
    pub(crate) fault: Option<FaultSpec>,
}

impl DeviceOptions {
    /// The device at an address of this machine.
    pub(crate) fn at(&self, address: IpAddr) -> anyhow::Result<Device> {
        // One that is registered there is as good, unless its link is to be bad.
        if self.fault.is_none() {
            let registry = polyverbs::registry()?;
            let there = devices_at(registry, address);
            if let Some(device) = there.into_iter().find(|it| it.name() == self.device) {
                return Ok(device);
            }
        }
        let options = EmulatedOptions {
            faults: self.fault.unwrap_or_default(),
            ..EmulatedOptions::default()
        };
        Ok(emulated::device_at(&self.device, address, &options)?)
    }

    /// The device from which `to` is reached: at `from`, where that is named.
    pub(crate) fn reaching(&self, to: SocketAddr, from: Option<IpAddr>) -> anyhow::Result<Device> {
        let from = match from {
            Some(from) => from,
            None => source_of(to).map_err(|error| anyhow::anyhow!("no way to {to}: {error}"))?,
        };
        self.at(from)
    }
}

//! What the commands that reach other processes have in common: a device at an address.

use std::fs::File;
use std::io::BufWriter;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;

use polyverbs::Device;
use polyverbs::connection::{devices_at, source_of};
use polyverbs::emulated::{self, EmulatedOptions, FaultSpec, OctetCapture, Tap};

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
        if self.fault.is_none() && CAPTURE.get().is_none() {
            let registry = polyverbs::registry()?;
            let there = devices_at(registry, address);
            if let Some(device) = there.into_iter().find(|it| it.name() == self.device) {
                return Ok(device);
            }
        }
        let options = EmulatedOptions {
            faults: self.fault.unwrap_or_default(),
            tap: CAPTURE.get().map(|capture| Tap(Arc::clone(capture) as _)),
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

/// Where what the devices of this command send and receive goes.
static CAPTURE: OnceLock<Arc<OctetCapture>> = OnceLock::new();

/// Captures what `work` sends and receives to a file.
pub(crate) fn captured(
    file: &Path,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", file.display());
    let writer = BufWriter::new(File::create(file).with_context(cannot)?);
    let capture = Arc::new(OctetCapture::new(writer).with_context(cannot)?);
    anyhow::ensure!(
        CAPTURE.set(Arc::clone(&capture)).is_ok(),
        "a capture of a capture"
    );
    let result = work();
    capture.flush().with_context(cannot)?;
    result
}

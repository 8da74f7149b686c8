//! Emulated devices: no hardware, no kernel module, no privileges.
//!
//! The registry has one of each kind. A program that wants another one, slower or with a bad link, makes its own.

use std::io;
#[cfg(feature = "sockets")]
use std::net::IpAddr;
use std::net::SocketAddr;
use std::sync::Arc;

#[cfg(feature = "sockets")]
use polyverbs_io::source_of;
use thiserror::Error;
use verbs_api::{Device, provider::errno_of};

pub use polyverbs_io::emulated::{
    ADDRESS_VARIABLE, Appearance, EmulatedError, EmulatedKind, EmulatedOptions, FabricPlace,
    ROCE_PORT, kind, kinds,
};
pub use polyverbs_io::sim::fault::{Contract, FORMS, FaultSpec, FaultSpecError, Form};
pub use polyverbs_io::sim::{SimulationError, VirtualClock};
#[cfg(feature = "sockets")]
pub use polyverbs_io::{
    Name, OctetCapture, Presence, Tap, Witness,
    fork::{Unshared, is_own_descriptor, without_own_descriptors},
    has_descriptors,
};

/// Why an emulated device could not be made.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum EmulatedDeviceError {
    /// There is no kind of emulated devices with this name.
    #[error("no emulated device is named {wanted}; there are {}", known.join(", "))]
    NoSuchKind {
        /// The name that was asked for.
        wanted: String,
        /// The names of all kinds.
        known: Vec<&'static str>,
    },
    /// The options do not fit the kind of device.
    #[error("{name}: {error}")]
    NotMade {
        /// The name of the kind of devices.
        name: String,
        /// Which option does not fit, and why.
        error: EmulatedError,
    },
    /// The machine has no route to an address.
    #[error("there is no way to {to}: {error}")]
    Unreachable {
        /// The address to which there is no route.
        to: SocketAddr,
        /// The error of the operating system for the route.
        error: Arc<io::Error>,
    },
}

impl EmulatedDeviceError {
    /// Returns the operating system's error number; `None` if the error is not the system's.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::NoSuchKind { .. } => None,
            Self::NotMade { error, .. } => error.errno(),
            Self::Unreachable { error, .. } => Some(errno_of(error)),
        }
    }
}

/// Makes a device of the kind `name`, which is in no registry and on a network of its own.
///
/// Its queue pairs reach one another, but no other device.
///
/// # Errors
/// There is no such kind, or the options do not fit it.
///
/// ```
/// use polyverbs::emulated::{self, EmulatedOptions};
/// use polyverbs::Requirements;
///
/// // Every twentieth frame is lost: the program does not notice.
/// let faults = "drop=5%,seed=7".parse()?;
/// let device = emulated::device("ib0", &EmulatedOptions { faults, ..EmulatedOptions::default() })?;
/// let context = device.open(&Requirements::new())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn device(name: &str, options: &EmulatedOptions) -> Result<Device, EmulatedDeviceError> {
    let Some(kind) = kind(name) else {
        let known = kinds().iter().map(|kind| kind.name()).collect();
        return Err(EmulatedDeviceError::NoSuchKind {
            wanted: name.to_owned(),
            known,
        });
    };
    match kind.make(options) {
        Ok(ops) => Ok(Device::of(ops)),
        Err(error) => Err(EmulatedDeviceError::NotMade {
            name: name.to_owned(),
            error,
        }),
    }
}

/// Makes a device of the kind `name` at an address of this machine. Over an IP network it reaches devices at other
/// addresses, of any process and any machine. Several devices may have one address.
///
/// ```no_run
/// use polyverbs::Requirements;
/// use polyverbs::emulated::{EmulatedOptions, device_at};
/// // Found by RoCEv2 at this address, by other processes as well.
/// let device = device_at("ib0", "127.0.0.1".parse()?, &EmulatedOptions::default())?;
/// let context = device.open(&Requirements::new())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// There is no such kind, the address is not this machine's, or another program uses its port.
#[cfg(feature = "sockets")]
pub fn device_at(
    name: &str,
    address: IpAddr,
    options: &EmulatedOptions,
) -> Result<Device, EmulatedDeviceError> {
    let options = EmulatedOptions {
        at: Some(SocketAddr::new(address, ROCE_PORT)),
        ..options.clone()
    };
    device(name, &options)
}

/// Makes a device as [`device_at`] does, at the local address from which `to` is reached.
///
/// # Errors
/// As for [`device_at`]; or the machine has no route to `to`.
#[cfg(feature = "sockets")]
pub fn device_reaching(
    name: &str,
    to: SocketAddr,
    options: &EmulatedOptions,
) -> Result<Device, EmulatedDeviceError> {
    let unreachable = |error| EmulatedDeviceError::Unreachable {
        to,
        error: Arc::new(error),
    };
    device_at(name, source_of(to).map_err(unreachable)?, options)
}

//! Connections between queue pairs of two programs, whichever transport they run on.
//!
//! [`Connector::of`] makes them for any device. [`devices_for`] finds the devices that serve a destination.

use std::net::IpAddr;
#[cfg(feature = "sockets")]
use std::net::SocketAddr;

use verbs_api::{Device, Registry};

#[cfg(feature = "sockets")]
pub use polyverbs_io::source_of;

pub use polyverbs_connection::{
    Accepted, ConnectError, Connection, ConnectionOptions, Connector, DatagramListener,
    DatagramQuestion, DatagramService, Incoming, Listener, Phase, PortSpace, PrivateDataLimits,
    ReadLimits, Refusal, Withdrawal, flush,
};

/// Returns the devices of a registry from which an address can be reached: those at the source address of the route to it.
/// A device on a network of its own reaches only itself.
///
/// ```no_run
/// use polyverbs::connection::devices_for;
/// use polyverbs::emulated::{self, EmulatedOptions};
/// let server = "192.0.2.1:7471".parse()?;
/// let device = match devices_for(&*polyverbs::registry()?, server).into_iter().next() {
///     Some(device) => device,
///     None => emulated::device_reaching("ib0", server, &EmulatedOptions::default())?,
/// };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "sockets")]
pub fn devices_for(registry: &Registry, to: SocketAddr) -> Vec<Device> {
    let Ok(source) = source_of(to) else {
        return Vec::new();
    };
    devices_at(registry, source)
}

/// Returns the devices of a registry that have this address of the machine, as their link address or in their GID table.
///
/// ```
/// use polyverbs::{connection::devices_at, registry};
/// for device in devices_at(&*registry()?, "127.0.0.1".parse()?) {
///     println!("{} is there", device.name());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn devices_at(registry: &Registry, address: IpAddr) -> Vec<Device> {
    let is_there = |device: &&Device| {
        let ports = device.attributes().ports;
        ports.iter().any(|port| port.is_at(address))
    };
    registry.devices().filter(is_there).cloned().collect()
}

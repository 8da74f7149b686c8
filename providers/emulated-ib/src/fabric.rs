//! A device at a port of a fabric that another process holds.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use polyverbs_engine::link::SharedLink;
use polyverbs_fabric::FabricName;
use polyverbs_fabric::attachment::Attachment;
use polyverbs_io::emulated::{EmulatedError, EmulatedOptions, FabricPlace, ROCE_PORT};
use verbs_api::ids::LinkAddress;
use verbs_api::provider::errno_of;

use crate::header::Header;
use crate::subnet::{FabricLink, FabricPort, Subnet};
use crate::wire::{OnWire, WireOptions};
use crate::{Device, InfiniBand};

/// Makes a device at a port of a fabric.
pub(crate) fn make(
    driver: impl FnOnce(LinkAddress) -> InfiniBand,
    place: &FabricPlace,
    options: &EmulatedOptions,
    wire: impl FnOnce(SocketAddr) -> WireOptions,
) -> Result<Arc<Device>, EmulatedError> {
    let name = match &place.socket {
        Some(name) => name.parse().map_err(io::Error::other)?,
        None => FabricName::standard(),
    };
    let said = |error: io::Error| EmulatedError::Wire {
        reason: match place.node.is_empty() {
            true => format!("there is no adapter in a fabric {name}: {error}"),
            false => format!(
                "there is no adapter {} in a fabric {name}: {error}",
                place.node
            ),
        },
        errno: errno_of(&error),
    };
    let attached = Attachment::new(name.clone(), &place.node, 1);
    let (attachment, carrier) = attached.map_err(said)?;
    let at = SocketAddr::new(carrier.at.into(), ROCE_PORT);
    let port = Arc::new(FabricPort::new(attachment, carrier));
    let subnet = Subnet::Fabric(Arc::clone(&port));
    let driver = |address| InfiniBand {
        subnet: Some(subnet),
        ..driver(address)
    };
    let link_port = Arc::clone(&port);
    let within = |link| -> SharedLink<Header> { Arc::new(FabricLink::new(link, link_port)) };
    let device = OnWire::within(driver, wire(at), options.engine(), within)?.device;
    port.watch(&device)?;
    Ok(device)
}

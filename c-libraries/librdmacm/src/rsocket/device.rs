//! The devices that rsockets use: each process opens them when its first socket needs them, and closes them with its last
//! socket.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use polyverbs_connection::Connector;
use polyverbs_libibverbs::device::{self, ListedDevice, devices};
use polyverbs_libibverbs::errno::Errno;
use verbs_api::provider::{Mutex, PerProcess};
use verbs_api::{Context, Device, Pd, Transport};

use crate::device::{source_towards, those_that_open};
use crate::errno;

/// An open device, for all rsockets of this process.
pub(crate) struct Opened {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) connector: Connector,
    pub(crate) address: IpAddr,
    pub(crate) transport: Transport,
    listed: &'static ListedDevice,
    _device: Arc<Device>,
}

#[derive(Default)]
struct Table {
    devices: Vec<Arc<Opened>>,
    users: usize,
}

static OPENED: PerProcess<Mutex<Table>> = PerProcess::new(Mutex::default);

/// Keeps the devices open. Each rsocket has one; the devices are closed when the last is dropped.
pub(crate) struct User(());

impl User {
    pub(crate) fn new() -> Self {
        OPENED.lock().users += 1;
        Self(())
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut table = OPENED.lock();
        table.users -= 1;
        if table.users > 0 || table.devices.is_empty() {
            return;
        }
        let devices = std::mem::take(&mut table.devices);
        drop(table);
        drop(devices);
        device::closed();
    }
}

fn opened(listed: &'static ListedDevice) -> Result<Arc<Opened>, Errno> {
    let all = &mut OPENED.lock().devices;
    let mut same = all.iter();
    if let Some(there) = same.find(|there| std::ptr::eq(there.listed, listed)) {
        return Ok(Arc::clone(there));
    }
    let (device, context) = listed.open()?;
    let made = Arc::new(Opened {
        pd: context.alloc_pd().wait()?,
        connector: Connector::of(&context)
            .map_err(|error| errno::of(&error))?
            .with_private_data_as_sent(),
        context,
        address: listed.address(),
        transport: listed.transport(),
        listed,
        _device: device,
    });
    all.push(Arc::clone(&made));
    Ok(made)
}

/// Opens the devices at this address, or all of its family if it is a wildcard address. Devices that cannot be opened are
/// left out.
///
/// # Errors
/// There is no device at the address, or none that can be opened.
pub(crate) fn at(address: IpAddr) -> Result<Vec<Arc<Opened>>, Errno> {
    let is_there = |listed: &&ListedDevice| {
        let own = listed.address();
        own == address || address.is_unspecified() && own.is_ipv4() == address.is_ipv4()
    };
    those_that_open(devices().iter().filter(is_there), |listed| {
        if address.is_unspecified() {
            listed.room()?;
        }
        opened(listed)
    })
}

/// Opens the devices on which a listener at this address listens. With `both`, the wildcard address includes both address
/// families.
///
/// # Errors
/// There is no device at the address, or none that can be opened.
pub(crate) fn listening(address: IpAddr, both: bool) -> Result<Vec<Arc<Opened>>, Errno> {
    if both && address.is_unspecified() {
        let opened = |listed: &'static ListedDevice| listed.room().and_then(|()| opened(listed));
        return those_that_open(devices().iter(), opened);
    }
    at(address)
}

/// Opens the device from which an address is reached: the one at `from` or, if that is `None` or a wildcard address, the
/// one of the system's route to `to`.
///
/// # Errors
/// There is no route, or no device at its source address.
pub(crate) fn reaching(to: SocketAddr, from: Option<IpAddr>) -> Result<Arc<Opened>, Errno> {
    let from = match from.filter(|from| !from.is_unspecified()) {
        Some(from) => from,
        None => source_towards(to)?,
    };
    at(from)?.into_iter().next().ok_or(Errno(libc::ENODEV))
}

//! The devices of rsockets: opened when the first socket needs them, in each process by itself, and closed with the last socket.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use polyverbs_connection::Connector;
use polyverbs_libibverbs::device::{self, ListedDevice, devices};
use polyverbs_libibverbs::errno::Errno;
use verbs_api::provider::{Mutex, PerProcess};
use verbs_api::{Context, Device, Pd, Transport};

use crate::device::{source_towards, those_that_open};
use crate::errno;

/// An open device.
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

/// Keeps the devices open: each rsocket has one.
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

/// The devices at this address, which may be the wildcard address; without those that cannot be opened.
///
/// # Errors
/// There is none, or none of them can be opened.
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

/// The devices on which a listener at this address listens; with `both`, the wildcard address stands for both families.
///
/// # Errors
/// There is none, or none of them can be opened.
pub(crate) fn listening(address: IpAddr, both: bool) -> Result<Vec<Arc<Opened>>, Errno> {
    if both && address.is_unspecified() {
        let opened = |listed: &'static ListedDevice| listed.room().and_then(|()| opened(listed));
        return those_that_open(devices().iter(), opened);
    }
    at(address)
}

/// The device from which an address is reached: the one at `from`, unless that is the wildcard address.
///
/// # Errors
/// There is none.
pub(crate) fn reaching(to: SocketAddr, from: Option<IpAddr>) -> Result<Arc<Opened>, Errno> {
    let from = match from.filter(|from| !from.is_unspecified()) {
        Some(from) => from,
        None => source_towards(to)?,
    };
    at(from)?.into_iter().next().ok_or(Errno(libc::ENODEV))
}

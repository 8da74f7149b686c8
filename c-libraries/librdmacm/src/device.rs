//! The devices that identifiers use. A process opens each when its first identifier needs it, and keeps it open until the
//! process ends, as rdma-core does: programs go on to use the `verbs` of an identifier that they have destroyed.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ptr;
use std::sync::Arc;

use polyverbs::connection::source_of;
use polyverbs_connection::{ConnectError, Connector, PortSpace};
use polyverbs_libibverbs::abi::{IbvAhAttr, IbvContext, IbvPd};
use polyverbs_libibverbs::context;
use polyverbs_libibverbs::device::{self, ListedDevice};
use polyverbs_libibverbs::errno::{Errno, pointer};
use polyverbs_libibverbs::open::open_device;
use polyverbs_libibverbs::pd;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use verbs_api::provider::{Mutex, PerProcess};
use verbs_api::qp::AddressVector;
use verbs_api::{Context, Transport, provider::errno_of};

/// An open device of this process.
pub struct CmDevice {
    listed: &'static ListedDevice,
    /// The pointer to the device's context that programs get.
    pub public: *mut IbvContext,
    /// The context of `verbs-api` that it stands for.
    pub context: Context,
    // The connection manager of the device, by port space: that of IP addresses first.
    connectors: [Connector; 2],
    // The PD of QPs for which the program names none; null until it is needed.
    pd: Mutex<*mut IbvPd>,
}

// SAFETY: the pointers are to objects that live until the process ends, and are behind locks or never changed.
unsafe impl Send for CmDevice {}
// SAFETY: as above.
unsafe impl Sync for CmDevice {}

impl CmDevice {
    fn open(listed: &'static ListedDevice) -> Result<Arc<Self>, Errno> {
        let public = open_device(listed.as_public());
        if public.is_null() {
            return Err(Errno::last());
        }
        // SAFETY: just opened, and never closed.
        let context = unsafe { context::own(public) }?.context.clone();
        let connector = |space| {
            let connector = Connector::in_port_space(&context, space);
            let connector = connector.map_err(|error| crate::errno::of(&error))?;
            Ok::<_, Errno>(connector.with_private_data_as_sent())
        };
        let connectors = [connector(PortSpace::Ip)?, connector(PortSpace::Ib)?];
        Ok(Arc::new(Self {
            listed,
            public,
            context,
            connectors,
            pd: Mutex::new(ptr::null_mut()),
        }))
    }

    /// The IP address of the device.
    pub fn address(&self) -> IpAddr {
        self.listed.address()
    }

    /// The connection manager of the device for services in this port space.
    pub const fn connector(&self, space: PortSpace) -> &Connector {
        let [ip, ib] = &self.connectors;
        match space {
            PortSpace::Ip => ip,
            PortSpace::Ib => ib,
        }
    }

    /// The path in the form of address handle attributes, with the device's GID as its source.
    pub fn path(&self, path: &AddressVector) -> IbvAhAttr {
        let port = self.context.query_port(path.port_num);
        IbvAhAttr::from(&AddressVector {
            sgid_index: port.map_or(0, |port| port.default_gid_index()),
            ..*path
        })
    }

    /// Writes to standard error why the device does not listen; only the first time.
    pub(crate) fn report(&self, error: &ConnectError) {
        if !matches!(error, ConnectError::AddressInUse { .. }) {
            let name = self.listed.name().to_string_lossy();
            self.listed
                .report(format_args!("{name} does not listen: {error}"));
        }
    }

    /// The transport of the device.
    pub fn transport(&self) -> Transport {
        self.listed.transport()
    }

    /// The PD of QPs for which the program names none, created on first use.
    ///
    /// # Errors
    /// The device has no room for another PD.
    pub fn pd(&self) -> Result<*mut IbvPd, Errno> {
        let mut pd = self.pd.lock();
        if pd.is_null() {
            // SAFETY: the device is never closed.
            *pd = unsafe { pd::alloc(self.public) };
        }
        if pd.is_null() {
            return Err(Errno::last());
        }
        Ok(*pd)
    }
}

// The open devices of this process. A child of a fork opens its own.
static OPENED: PerProcess<Mutex<Vec<Arc<CmDevice>>>> = PerProcess::new(Mutex::default);

fn open(listed: &'static ListedDevice) -> Result<Arc<CmDevice>, Errno> {
    let mut devices = OPENED.lock();
    let found = devices.iter().find(|device| ptr::eq(device.listed, listed));
    if let Some(found) = found {
        return Ok(Arc::clone(found));
    }
    let device = CmDevice::open(listed)?;
    devices.push(Arc::clone(&device));
    Ok(device)
}

/// The kind of service that an identifier provides or uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Connections, by RC QPs.
    Connections,
    /// Datagrams, by UD QPs, which iWARP does not have.
    Datagrams,
}

fn fitting(at: Option<IpAddr>, service: Service) -> impl Iterator<Item = &'static ListedDevice> {
    device::devices().iter().filter(move |listed| {
        // An adapter in a fabric has no IP address.
        !listed.configured().is_in_fabric()
            && at.is_none_or(|at| at == listed.address())
            && (service == Service::Connections || listed.transport() == Transport::InfiniBand)
    })
}

/// Whether a device with this service has this address.
pub fn is_at(address: IpAddr, service: Service) -> bool {
    fitting(Some(address), service).next().is_some()
}

/// Opens the first device at an address.
///
/// # Errors
/// No device with this service has the address, or the address is not one of this machine.
pub fn at(address: SocketAddr, service: Service) -> Result<Arc<CmDevice>, Errno> {
    let fitting = fitting(Some(address.ip()), service).next();
    open(fitting.ok_or_else(|| without_device(address))?)
}

// The error number that Linux returns for an address that no device has. For a link-local address the system knows whether
// the interface of its scope has it.
fn without_device(mut address: SocketAddr) -> Errno {
    if is_at(address.ip(), Service::Connections) {
        return Errno::OPNOTSUPP;
    }
    // The system's sockets take it for IPv4; no interface has it.
    if is_mapped(address.ip()) {
        return Errno(libc::EADDRNOTAVAIL);
    }
    address.set_port(0);
    match udp_at(address, false) {
        Ok(_) => Errno(libc::ENODEV),
        Err(error) => Errno(error.raw_os_error()),
    }
}

// Whether an address of IPv6 stands for one of IPv4.
fn is_mapped(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some())
}

/// A nonblocking UDP socket of the system. It is created by a system call, because librspreload replaces `socket` by a
/// function that creates an rsocket, which itself needs a UDP socket.
pub(crate) fn udp_at(at: SocketAddr, reuses: bool) -> Result<UdpSocket, rustix::io::Errno> {
    let family = match at {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    set_socket_reuseaddr(&socket, reuses)?;
    bind(&socket, &at)?;
    Ok(socket.into())
}

/// Opens all devices at an address or, for `None`, at any address.
///
/// # Errors
/// There is no such device, or none that can be opened.
pub fn all(at: Option<IpAddr>, service: Service) -> Result<Vec<Arc<CmDevice>>, Errno> {
    those_that_open(fitting(at, service), |listed| {
        if at.is_none() {
            listed.room()?;
        }
        open(listed)
    })
}

/// Opens these devices by `open`, and leaves out those that cannot be opened.
///
/// # Errors
/// The list is empty, or no device can be opened.
pub(crate) fn those_that_open<L, D>(
    listed: impl Iterator<Item = L>,
    open: impl Fn(L) -> Result<D, Errno>,
) -> Result<Vec<D>, Errno> {
    let mut refused = Errno(libc::ENODEV);
    let mut opened = Vec::new();
    for listed in listed {
        match open(listed) {
            Ok(device) => opened.push(device),
            Err(errno) => refused = errno,
        }
    }
    if opened.is_empty() {
        return Err(refused);
    }
    Ok(opened)
}

/// The source address of the system's route to a destination.
///
/// # Errors
/// There is no route.
pub fn source_towards(to: SocketAddr) -> Result<IpAddr, Errno> {
    if is_mapped(to.ip()) {
        return Err(Errno(libc::ENETUNREACH));
    }
    let mut there = to;
    // The system accepts no destination with port 0.
    there.set_port(to.port().max(1));
    let from = source_of(there).map_err(|error| Errno(errno_of(&error)))?;
    let has_device = |ip| fitting(Some(ip), Service::Connections).next().is_some();
    // The system may choose another of this machine's addresses, such as loopback, for the route to an address of this
    // machine that has a device.
    if !has_device(from) && has_device(to.ip()) {
        return Ok(to.ip());
    }
    Ok(from)
}

/// The source address of the route to a destination for this service, with the destination's scope. Groups are not routed: the way
/// to one begins at the first device, unless the route to it begins at another.
///
/// # Errors
/// There is no route.
pub fn source_for(to: SocketAddr, service: Service) -> Result<SocketAddr, Errno> {
    let routed = source_towards(to);
    let mut source = to;
    source.set_ip(match routed {
        Ok(from) if is_at(from, service) => from,
        routed if to.ip().is_multicast() => {
            let same = |listed: &&ListedDevice| listed.address().is_ipv4() == to.is_ipv4();
            let first = fitting(None, service).find(same);
            first.map_or(routed, |first| Ok(first.address()))?
        }
        routed => routed?,
    });
    Ok(source)
}

/// Implements `rdma_get_devices`: returns a null-terminated list of open devices, or null if there are none.
///
/// # Safety
/// `count` is null or writable.
pub unsafe extern "C-unwind" fn get_devices(count: *mut c_int) -> *mut *mut IbvContext {
    let listed = all(None, Service::Connections).and_then(|devices| {
        // SAFETY: room for the pointers and the null, zeroed.
        let list: *mut *mut IbvContext =
            unsafe { libc::calloc(devices.len() + 1, size_of::<*mut IbvContext>()) }.cast();
        if list.is_null() {
            return Err(Errno::NOMEM);
        }
        for (place, device) in devices.iter().enumerate() {
            // SAFETY: within what was allocated.
            unsafe { *list.add(place) = device.public };
        }
        Ok((list, devices.len()))
    });
    // SAFETY: as the caller promises.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = listed.map_or(0, |(_, length)| length as c_int);
    }
    pointer(listed.map(|(list, _)| list))
}

/// Implements `rdma_free_devices`.
///
/// # Safety
/// The list is null, or was returned by [`get_devices`].
pub unsafe extern "C-unwind" fn free_devices(list: *mut *mut IbvContext) {
    // SAFETY: `calloc` made it.
    unsafe { libc::free(list.cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    // Without its scope, the system would refuse the link-local address.
    #[test]
    fn the_scope_of_a_destination_reaches_the_system() {
        let to: SocketAddr = "[fe80::9%1]:7".parse().unwrap();
        let routed = source_of(to).map_err(|error| Errno(errno_of(&error)));
        assert_eq!(source_towards(to), routed);
        assert_ne!(routed, Err(Errno::INVAL));
    }
}

//! UDP sockets that send and receive in batches.
//!
//! A socket is never connected and sends with `IP_PMTUDISC_DO`. So the kernel sets DF and writes 0 into the IPv4
//! identification of each datagram, and k into that of datagram k of a call with segmentation offload. A checksum that
//! covers the IP header can therefore be computed in advance.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use rustix::fs::{Uid, fchown, fstat};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, connect, getsockname, ipproto, sendto,
    socket_with,
};
use rustix::process::geteuid;
use thiserror::Error;

use crate::fork::Unshared;
use crate::sockets::address::{self, Name};
use crate::sockets::control::{self, Control};
use crate::sockets::interface::interface_of;
use crate::sockets::receive::ReceiveBatch;
use crate::sockets::refusal::explained;
use crate::sockets::sys::{self, AT_ONCE, Outgoing};

/// The most datagrams into which the kernel cuts one message.
pub(crate) const MAX_SEGMENTS: usize = 64;
/// The most bytes of one message, with or without segmentation, excluding IP and UDP headers.
pub(crate) const MAX_BYTES: usize = 65_507;

/// The default time to live, or hop limit, of unicast datagrams, as in most systems.
pub(crate) const HOP_LIMIT: u8 = 64;

/// Link-local multicast groups to which every host belongs.
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const DISCARD: u16 = 9;

// Room for three numbers.
const CONTROL: usize = 3 * control::space(size_of::<libc::c_int>());

/// Options with which a UDP socket is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// Bytes that may wait to be read, as the kernel counts them. The kernel reduces the value to `net.core.rmem_max`.
    pub receive_buffer: usize,
    /// Bytes that may wait to be sent. The kernel reduces the value to `net.core.wmem_max`.
    pub send_buffer: usize,
    /// The offloads that the socket requests of the kernel.
    pub offload: Offload,
}

impl Default for UdpOptions {
    /// Buffers of 4 MiB for each direction, and every offload.
    fn default() -> Self {
        Self {
            receive_buffer: 4 << 20,
            send_buffer: 4 << 20,
            offload: Offload::default(),
        }
    }
}

/// Work that the kernel does for a UDP socket if it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// Whether the kernel cuts long messages into datagrams when it sends them (GSO).
    pub segmentation: bool,
    /// Whether the kernel joins datagrams of one sender into a message when they arrive (GRO).
    pub joining: bool,
}

impl Offload {
    /// The kernel does no work for the socket: it neither cuts nor joins datagrams.
    pub const NONE: Self = Self {
        segmentation: false,
        joining: false,
    };
}

impl Default for Offload {
    fn default() -> Self {
        Self {
            segmentation: true,
            joining: true,
        }
    }
}

/// A bound UDP socket, which is never connected.
#[derive(Debug)]
pub struct UdpSocket {
    descriptor: Unshared,
    local: SocketAddr,
    segments: AtomicBool,
    joins: bool,
    /// The socket's own traffic class, which is the first one that was requested, because passing one with each datagram
    /// costs time.
    class: OnceLock<u8>,
}

/// A message to be sent: one datagram, or several of equal length that the kernel cuts apart.
#[derive(Clone, Copy)]
pub struct Transmit<'a> {
    /// The destination's address and port.
    pub to: SocketAddr,
    /// TOS of IPv4 or traffic class of IPv6.
    pub traffic_class: u8,
    /// Time to live of IPv4 or hop limit of IPv6; 0 for the default: 64 for unicast, 1 for multicast.
    pub hop_limit: u8,
    /// Length in bytes of each datagram except the last one, which may be shorter; 0 for a single datagram.
    pub segment: u16,
    /// The bytes of all datagrams, one after another.
    pub bytes: &'a [u8],
}

impl<'a> Transmit<'a> {
    /// Creates a message of one datagram with traffic class 0 and the default hop limit.
    pub const fn new(to: SocketAddr, bytes: &'a [u8]) -> Self {
        Self {
            to,
            traffic_class: 0,
            hop_limit: 0,
            segment: 0,
            bytes,
        }
    }

    /// Returns whether the kernel must cut the message into several datagrams.
    fn is_cut(&self) -> bool {
        self.segment != 0 && self.bytes.len() > usize::from(self.segment)
    }

    // Returns the control messages that a socket with this traffic class needs to send the message.
    fn control(&self, own_class: u8) -> Control<CONTROL> {
        let mut control = Control::default();
        let (level, class, hops) = match self.to {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
        };
        if self.traffic_class != own_class {
            control.push_number(level, class, self.traffic_class.into());
        }
        // The socket has another hop limit for groups.
        let is_usual = self.hop_limit == HOP_LIMIT && !self.to.ip().is_multicast();
        if self.hop_limit != 0 && !is_usual {
            control.push_number(level, hops, self.hop_limit.into());
        }
        if self.is_cut() {
            control.push(
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                &self.segment.to_ne_bytes(),
            );
        }
        control
    }
}

/// The reason why a message was not sent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The send buffer is full for now. Wait until the socket is writable.
    #[error("the socket is full")]
    Full,
    /// The kernel does not cut datagrams on this route; [`UdpSocket::can_segment`] returns `false` from now on. The caller
    /// sends the datagrams one by one, and computes checksums that cover the IPv4 identification again.
    #[error("the kernel does not segment datagrams on this route")]
    NoSegmentation,
    /// The system refuses the message for another reason.
    #[error(transparent)]
    Refused(io::Error),
}

impl UdpSocket {
    /// Binds a socket to `local`. Port 0 stands for any free port.
    ///
    /// # Errors
    /// The address is not this machine's, or the port is taken.
    pub fn bind(local: SocketAddr, options: &UdpOptions) -> io::Result<Self> {
        Self::bind_as(local, options, |_| Ok(()))
    }

    /// Binds the first of several sockets that share one address and port (`SO_REUSEPORT`).
    pub(crate) fn bind_shared(local: SocketAddr, options: &UdpOptions) -> io::Result<Self> {
        Self::bind_as(local, options, |fd| sockopt::set_socket_reuseport(fd, true))
    }

    /// Binds another socket to the address and port of this one. The kernel lets only sockets of one user share a port, so
    /// root gives the new socket to the owner of the first.
    pub(crate) fn bind_next(&self, options: &UdpOptions) -> io::Result<Self> {
        let owner = Uid::from_raw(fstat(&self.descriptor)?.st_uid);
        Self::bind_as(self.local, options, |fd| {
            if owner != geteuid() {
                fchown(fd, Some(owner), None)?;
            }
            sockopt::set_socket_reuseport(fd, true)
        })
    }

    /// Binds a socket to the address of a multicast group. Any number of sockets may do so: each receives a copy of every
    /// datagram.
    pub(crate) fn bind_group(group: SocketAddr, options: &UdpOptions) -> io::Result<Self> {
        Self::bind_as(group, options, |fd| sockopt::set_socket_reuseaddr(fd, true))
    }

    fn bind_as(
        local: SocketAddr,
        options: &UdpOptions,
        prepare: impl Fn(BorrowedFd<'_>) -> rustix::io::Result<()>,
    ) -> io::Result<Self> {
        let descriptor = unbound(local.ip(), options)?;
        prepare(descriptor.as_fd())?;
        bind(&descriptor, &local)?;
        Self::of(descriptor, options)
    }

    fn of(descriptor: Unshared, options: &UdpOptions) -> io::Result<Self> {
        let local = SocketAddr::try_from(getsockname(&descriptor)?)?;
        let fd = descriptor.as_fd();
        let segments = options.offload.segmentation
            && sys::number(fd, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok();
        let joins = sys::number(fd, libc::SOL_UDP, libc::UDP_GRO).is_ok_and(|on| on != 0);
        Ok(Self {
            local,
            segments: AtomicBool::new(segments),
            joins,
            descriptor,
            class: OnceLock::new(),
        })
    }

    /// The address and port to which the socket is bound.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Takes a socket whose descriptor another process passed, if it is bound to `local`.
    ///
    /// # Errors
    /// The descriptor is not a UDP socket bound to `local` ([`InvalidData`](io::ErrorKind::InvalidData)).
    pub(crate) fn passed(
        descriptor: Unshared,
        local: SocketAddr,
        options: &UdpOptions,
    ) -> io::Result<Self> {
        let socket = Self::of(descriptor, options);
        let socket = socket.ok().filter(|one| one.local == local && one.is_udp());
        socket.ok_or_else(|| {
            let wrong = format!("another process passed a file that is no socket of {local}");
            io::Error::new(io::ErrorKind::InvalidData, wrong)
        })
    }

    /// Returns a second descriptor of the same socket.
    pub(crate) fn duplicate(&self, options: &UdpOptions) -> io::Result<Self> {
        let copy = Unshared::made(|| self.as_fd().try_clone_to_owned())?;
        Self::of(copy, options)
    }

    fn is_udp(&self) -> bool {
        let kind = sockopt::socket_type(&self.descriptor);
        let protocol = sockopt::socket_protocol(&self.descriptor);
        kind == Ok(SocketType::DGRAM) && protocol == Ok(Some(ipproto::UDP))
    }

    /// Returns whether the kernel cuts messages into datagrams (GSO). It may turn out later, during a send, that it does
    /// not.
    pub fn can_segment(&self) -> bool {
        self.segments.load(Ordering::Relaxed)
    }

    /// Returns whether the kernel may join received datagrams (GRO), so that a message has up to 65,535 bytes.
    pub fn joins(&self) -> bool {
        self.joins
    }

    /// The size of the receive buffer, as it was set: bytes that may wait to be read, including the kernel's own overhead.
    ///
    /// # Errors
    /// The system does not report the value.
    pub fn receive_buffer(&self) -> io::Result<usize> {
        // Linux reports twice the value that was set (socket(7)).
        Ok(sockopt::socket_recv_buffer_size(self.as_fd())? / 2)
    }

    /// Sends messages without waiting. Returns how many of `transmits` were sent, at least one.
    ///
    /// # Errors
    /// The reason why the first message was not sent.
    pub fn send(&self, transmits: &[Transmit<'_>]) -> Result<usize, SendError> {
        let mut sent = 0;
        while sent < transmits.len() {
            match self.send_some(&transmits[sent..]) {
                Ok(more) => sent += more,
                Err(_) if sent > 0 => break,
                Err(error) => return Err(self.refusal(&transmits[0], error)),
            }
        }
        Ok(sent)
    }

    fn send_some(&self, transmits: &[Transmit<'_>]) -> io::Result<usize> {
        // The kernel has less to read with this call.
        if let [transmit] = transmits
            && self.control(transmit).bytes().is_empty()
        {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let to = address::scoped(transmit.to, self.local);
            sendto(&self.descriptor, transmit.bytes, flags, &to)?;
            return Ok(1);
        }
        self.send_together(transmits)
    }

    #[inline(never)]
    fn send_together(&self, transmits: &[Transmit<'_>]) -> io::Result<usize> {
        let transmits = transmits.iter().take(AT_ONCE);
        let messages: ArrayVec<_, AT_ONCE> = transmits
            .map(|transmit| Outgoing {
                to: Name::of(address::scoped(transmit.to, self.local)),
                bytes: IoSlice::new(transmit.bytes),
                control: self.control(transmit),
            })
            .collect();
        sys::send_many(self.as_fd(), &messages)
    }

    fn control(&self, transmit: &Transmit<'_>) -> Control<CONTROL> {
        transmit.control(self.own_class(transmit.traffic_class))
    }

    // Returns the traffic class of datagrams without a control message. If none has been set yet, this sets `first`.
    #[inline]
    fn own_class(&self, first: u8) -> u8 {
        *self.class.get_or_init(|| {
            let set = match self.local {
                _ if first == 0 => Ok(()),
                SocketAddr::V4(_) => sockopt::set_ip_tos(&self.descriptor, first),
                SocketAddr::V6(_) => sockopt::set_ipv6_tclass(&self.descriptor, first.into()),
            };
            if set.is_ok() { first } else { 0 }
        })
    }

    fn refusal(&self, first: &Transmit<'_>, error: io::Error) -> SendError {
        match Errno::from_io_error(&error) {
            Some(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => SendError::Full,
            Some(Errno::IO | Errno::INVAL | Errno::OPNOTSUPP) if first.is_cut() => {
                self.segments.store(false, Ordering::Relaxed);
                SendError::NoSegmentation
            }
            _ => SendError::Refused(error),
        }
    }

    /// Receives messages that have arrived into `batch`, without waiting, as many as it has room for. Returns how many; 0
    /// if none have arrived.
    ///
    /// # Errors
    /// The socket has failed.
    pub fn receive(&self, batch: &mut ReceiveBatch) -> io::Result<usize> {
        match batch.fill(self.as_fd()) {
            Err(error) if is_passing(&error) => Ok(0),
            received => received,
        }
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Returns the MTU of the interface that has this address: the bytes of the largest IP packet that it carries, including
/// headers.
///
/// # Errors
/// No interface has the address.
pub fn interface_mtu(local: SocketAddr) -> io::Result<u32> {
    // The route to one's own address leads over loopback, so this connects to a group of the link: such datagrams leave by
    // the interface, except for IPv6 over loopback, where none do.
    let socket = connected_to_group(local).or_else(|_| connected_to(local));
    let socket = socket.map_err(|error| explained(error, local.ip()))?;
    Ok(match local {
        SocketAddr::V4(_) => sockopt::ip_mtu(&socket)?,
        SocketAddr::V6(_) => sockopt::ipv6_mtu(&socket)?,
    })
}

// Connecting sends no datagram.
fn connected_to_group(local: SocketAddr) -> io::Result<OwnedFd> {
    let socket = new_socket(local.ip())?;
    let interface = send_groups_by(socket.as_fd(), local)?;
    let group: SocketAddr = match local {
        SocketAddr::V4(_) => (ALL_HOSTS, DISCARD).into(),
        SocketAddr::V6(_) => SocketAddrV6::new(ALL_NODES, DISCARD, 0, interface).into(),
    };
    connect(&socket, &group)?;
    Ok(socket)
}

fn connected_to(local: SocketAddr) -> io::Result<OwnedFd> {
    let socket = new_socket(local.ip())?;
    bind(&socket, &SocketAddr::new(local.ip(), 0))?;
    connect(&socket, &local)?;
    Ok(socket)
}

/// Makes multicast datagrams of a socket leave by the interface that has the address of `local`. Returns the interface's
/// index, as [`interface_of`] does.
pub(crate) fn send_groups_by(fd: BorrowedFd<'_>, local: SocketAddr) -> io::Result<u32> {
    let interface = interface_of(local)?;
    match local.ip() {
        IpAddr::V4(ip) => sockopt::set_ip_multicast_if(fd, &ip)?,
        IpAddr::V6(_) => sockopt::set_ipv6_multicast_if(fd, interface)?,
    }
    Ok(interface)
}

/// Returns the address of this machine from which the kernel sends to `to`, according to its routes.
///
/// # Errors
/// There is no route to `to`.
pub fn source_of(to: SocketAddr) -> io::Result<IpAddr> {
    let socket = new_socket(to.ip())?;
    // Connecting sends no datagram.
    connect(&socket, &to).map_err(|error| explained(error.into(), to.ip()))?;
    Ok(SocketAddr::try_from(getsockname(&socket)?)?.ip())
}

fn new_socket(like: IpAddr) -> io::Result<OwnedFd> {
    let family = match like {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(socket_with(family, SocketType::DGRAM, flags, None)?)
}

fn unbound(ip: IpAddr, options: &UdpOptions) -> io::Result<Unshared> {
    let socket = Unshared::made(|| new_socket(ip))?;
    sockopt::set_socket_recv_buffer_size(&socket, options.receive_buffer)?;
    sockopt::set_socket_send_buffer_size(&socket, options.send_buffer)?;
    let fd = socket.as_fd();
    match ip {
        IpAddr::V4(_) => {
            sockopt::set_ip_mtu_discover(fd, Ipv4PathMtuDiscovery::DO)?;
            sockopt::set_ip_ttl(fd, HOP_LIMIT.into())?;
            sockopt::set_ip_recvtos(fd, true)?;
        }
        IpAddr::V6(_) => {
            sockopt::set_ipv6_v6only(fd, true)?;
            sockopt::set_ipv6_mtu_discover(fd, Ipv6PathMtuDiscovery::DO)?;
            sockopt::set_ipv6_unicast_hops(fd, Some(HOP_LIMIT))?;
            sockopt::set_ipv6_recvtclass(fd, true)?;
        }
    }
    if options.offload.joining {
        // A kernel without this feature delivers each datagram by itself.
        let _ = sys::set_number(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
    }
    Ok(socket)
}

/// Returns whether an error means only that the call may be repeated later: it would block, or a signal interrupted it.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests;

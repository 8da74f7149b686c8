//! TCP sockets whose calls never block.
//!
//! [`TcpSocket::connect`] or a [`TcpListener`] makes a [`TcpSocket`]. Every socket sends small segments at once
//! (`TCP_NODELAY`), and reports a peer that no longer answers as lost.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, accept_with, bind,
    connect, connect_unspec, getpeername, getsockname, listen, recv, send, shutdown, socket_with,
};
use thiserror::Error;

use crate::fork::Unshared;
use crate::sockets::address;
use crate::sockets::sys;

mod tap;

use tap::Tapped;
pub use tap::{Ends, Passed, TcpTap, Way};

/// The reason why a connection ended, or was not made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// No process listens at the address to which this end connects.
    #[error("no program listens there")]
    Refused,
    /// The peer reset the connection, or this end had closed it before.
    #[error("the connection was reset")]
    Reset,
    /// The peer did not answer in time.
    #[error("the peer does not answer")]
    TimedOut,
    /// There is no route to the peer, or a local rule forbids to send to it.
    #[error("the peer cannot be reached: {0}")]
    Unreachable(io::Error),
    /// Another error of the system.
    #[error(transparent)]
    Other(io::Error),
}

impl From<Errno> for StreamError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::CONNREFUSED => Self::Refused,
            Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED | Errno::NOTCONN => Self::Reset,
            Errno::TIMEDOUT => Self::TimedOut,
            Errno::NETUNREACH
            | Errno::HOSTUNREACH
            | Errno::NETDOWN
            | Errno::ADDRNOTAVAIL
            | Errno::ACCESS
            | Errno::PERM => Self::Unreachable(errno.into()),
            other => Self::Other(other.into()),
        }
    }
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(errno) => errno.into(),
            None => Self::Other(error),
        }
    }
}

impl From<StreamError> for io::Error {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Refused => Errno::CONNREFUSED.into(),
            StreamError::Reset => Errno::CONNRESET.into(),
            StreamError::TimedOut => Errno::TIMEDOUT.into(),
            StreamError::Unreachable(error) | StreamError::Other(error) => error,
        }
    }
}

/// The result of a receive call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// This many bytes were received.
    Bytes(usize),
    /// No bytes have arrived.
    Nothing,
    /// The peer has ended its direction, and this end has received everything that it sent before.
    End,
}

/// A TCP socket, which may be connected or still connecting.
pub struct TcpSocket {
    descriptor: Unshared,
    tap: Option<Tapped>,
    is_accepted: bool,
}

impl TcpSocket {
    /// Begins to connect from `local` to `to`. When the socket is writable, [`connected`](Self::connected) reports the
    /// result.
    ///
    /// # Errors
    /// The system refuses at once, for instance because there is no route or the local port is in use.
    pub fn connect(local: SocketAddr, to: SocketAddr) -> Result<Self, StreamError> {
        let socket = Self::new(to)?;
        if local.port() != 0 {
            // A connection that has ended keeps its port for a minute, but only for the same peer.
            sockopt::set_socket_reuseaddr(&socket.descriptor, true)?;
        }
        bind(&socket.descriptor, &local)?;
        match connect(&socket.descriptor, &address::scoped(to, local)) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
            // The socket is bound, so another connection to this peer has the port.
            Err(Errno::ADDRNOTAVAIL) if local.port() != 0 => Err(Errno::ADDRINUSE.into()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn new(like: SocketAddr) -> io::Result<Self> {
        let family = match like {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let make = || Ok(socket_with(family, SocketType::STREAM, flags, None)?);
        let descriptor = Unshared::made(make)?;
        if like.is_ipv6() {
            sockopt::set_ipv6_v6only(&descriptor, true)?;
        }
        Self::of(descriptor, false)
    }

    fn of(descriptor: Unshared, is_accepted: bool) -> io::Result<Self> {
        sockopt::set_tcp_user_timeout(&descriptor, USER_TIMEOUT)?;
        sockopt::set_socket_keepalive(&descriptor, true)?;
        sockopt::set_tcp_keepidle(&descriptor, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&descriptor, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&descriptor, KEEPALIVE_COUNT)?;
        sockopt::set_tcp_nodelay(&descriptor, true)?;
        Ok(Self {
            descriptor,
            tap: None,
            is_accepted,
        })
    }

    /// Returns whether a listener made this socket; otherwise this end connected.
    pub const fn is_accepted(&self) -> bool {
        self.is_accepted
    }

    /// Returns whether a tap observes the traffic of this socket.
    pub const fn is_tapped(&self) -> bool {
        self.tap.is_some()
    }

    /// Reports the traffic of the socket to `tap` from now on, beginning with the connection request, which went in the
    /// direction `way` to or from `peer`. If the socket has failed already, nothing is reported.
    #[must_use]
    pub fn tapped(mut self, tap: Arc<dyn TcpTap>, way: Way, peer: SocketAddr) -> Self {
        self.tap = Tapped::of(tap, &self, peer);
        self.note(way, Passed::Request);
        self
    }

    #[inline]
    fn note(&self, way: Way, passed: Passed<'_>) {
        if let Some(tap) = &self.tap {
            tap.passed(way, passed);
        }
    }

    /// Returns whether the connection has been made; `false` while the socket still connects.
    ///
    /// # Errors
    /// The connection could not be made, for this reason.
    pub fn connected(&self) -> Result<bool, StreamError> {
        sockopt::socket_error(&self.descriptor)??;
        Ok(getpeername(&self.descriptor).is_ok_and(|peer| peer.is_some()))
    }

    /// The local address and port.
    ///
    /// # Errors
    /// The socket has failed.
    pub fn local(&self) -> io::Result<SocketAddr> {
        Ok(getsockname(&self.descriptor)?.try_into()?)
    }

    /// The peer's address and port.
    ///
    /// # Errors
    /// The socket is not connected.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        let peer = getpeername(&self.descriptor)?;
        let peer = peer.ok_or(io::ErrorKind::NotConnected)?;
        Ok(peer.try_into()?)
    }

    /// Returns the most payload bytes of a TCP segment on this path (`TCP_MAXSEG`). The value may change while the socket
    /// is connected.
    ///
    /// # Errors
    /// The socket has failed.
    pub fn segment_size(&self) -> io::Result<usize> {
        let size = sys::number(self.as_fd(), libc::IPPROTO_TCP, libc::TCP_MAXSEG)?;
        Ok(usize::try_from(size).unwrap_or_default())
    }

    /// Sends as many of `bytes` as fit into the send buffer now, and returns how many; 0 if the buffer is full.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn send(&self, bytes: &[u8]) -> Result<usize, StreamError> {
        let sent = match send(&self.descriptor, bytes, SEND_FLAGS) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
            sent => sent?,
        };
        self.note(Way::Out, Passed::Bytes(&bytes[..sent]));
        Ok(sent)
    }

    /// Sends bytes that fit into the empty send buffer of a new connection. If they do not fit, this aborts the connection.
    /// An error is reported later, as the connection's end.
    pub fn send_first(&self, bytes: &[u8]) {
        if self.send(bytes).is_ok_and(|sent| sent < bytes.len()) {
            self.abort();
        }
    }

    /// Receives bytes that have arrived into `into`, without waiting.
    ///
    /// # Errors
    /// The connection was lost before the peer ended its direction.
    pub fn receive(&self, into: &mut [u8]) -> Result<Received, StreamError> {
        match recv(&self.descriptor, &mut *into, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => {
                self.note(Way::In, Passed::End);
                Ok(Received::End)
            }
            Ok((_, bytes)) => {
                self.note(Way::In, Passed::Bytes(&into[..bytes]));
                Ok(Received::Bytes(bytes))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Received::Nothing),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Ends the sending direction: the peer sees the end after everything that was sent. Receiving continues.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn finish(&self) -> Result<(), StreamError> {
        shutdown(&self.descriptor, Shutdown::Write)?;
        self.note(Way::Out, Passed::End);
        Ok(())
    }

    /// Resets the connection at once, even if other values own the socket. Sent bytes that have not arrived are lost.
    pub fn abort(&self) {
        // A linger of no time makes TCP send a reset when the socket is closed or loses its peer. If this fails, there is
        // no peer to reset.
        let _ = sockopt::set_socket_linger(&self.descriptor, Some(Duration::ZERO));
        if connect_unspec(&self.descriptor).is_ok() {
            self.note(Way::Out, Passed::Reset);
        }
    }
}

impl AsFd for TcpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A TCP socket that accepts connections.
pub struct TcpListener {
    socket: TcpSocket,
    local: SocketAddr,
}

impl TcpListener {
    /// Listens on `local`; port 0 stands for any free port. The kernel queues up to `backlog` connections that have not
    /// been accepted.
    ///
    /// # Errors
    /// The address is not this machine's, or another socket listens there.
    pub fn listen(local: SocketAddr, backlog: u32) -> io::Result<Self> {
        let socket = TcpSocket::new(local)?;
        // This allows a port whose last connections the system still remembers, but not one that has a listener.
        sockopt::set_socket_reuseaddr(&socket.descriptor, true)?;
        bind(&socket.descriptor, &local)?;
        listen(
            &socket.descriptor,
            i32::try_from(backlog).unwrap_or(i32::MAX),
        )?;
        Ok(Self {
            local: socket.local()?,
            socket,
        })
    }

    /// The address and port on which the socket listens.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Accepts the next connection and returns it with its peer's address; `None` if no connection waits.
    ///
    /// # Errors
    /// The process or the system has no descriptor or no memory left. The connection remains queued.
    pub fn accept(&self) -> io::Result<Option<(TcpSocket, SocketAddr)>> {
        loop {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let make = || Ok(accept_with(&self.socket.descriptor, flags)?);
            let descriptor = match Unshared::made(make) {
                Ok(descriptor) => descriptor,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => return Ok(None),
                    Some(
                        Errno::MFILE
                        | Errno::NFILE
                        | Errno::NOBUFS
                        | Errno::NOMEM
                        | Errno::BADF
                        | Errno::INVAL,
                    ) => return Err(error),
                    // The peer has reset the connection, or the call reports an error of its packets.
                    _ => continue,
                },
            };
            if let Ok(socket) = TcpSocket::of(descriptor, true)
                && let Ok(peer) = socket.peer()
            {
                return Ok(Some((socket, peer)));
            }
        }
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// How many milliseconds sent bytes may be unacknowledged before the kernel reports the connection as lost.
const USER_TIMEOUT: u32 = 30_000;
/// TCP probes a silent peer after this time, three times: rarely enough for thousands of idle connections.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT: u32 = 3;

const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

#[cfg(test)]
mod tests;

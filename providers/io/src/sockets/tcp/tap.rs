//! Taps, which observe the traffic of TCP sockets.

use std::net::SocketAddr;
use std::sync::Arc;

use super::TcpSocket;

/// Observes the bytes that TCP sockets send and receive, in order for each direction.
pub trait TcpTap: Send + Sync {
    /// Observes one event of a connection. The socket calls this while locks of QPs are held, so an implementation must not
    /// call verbs.
    fn passed(&self, way: Way, ends: &Ends, passed: Passed<'_>);
}

/// The direction of traffic, seen from the socket that reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// This socket sent the traffic.
    Out,
    /// This socket received the traffic.
    In,
}

/// The addresses of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// The address and port of the socket that reports the traffic.
    pub local: SocketAddr,
    /// The address and port of the peer of the socket that reports the traffic.
    pub peer: SocketAddr,
}

/// An event of a connection that a socket reports to its tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed<'o> {
    /// The connection request, which the connecting end sends.
    Request,
    /// Bytes that one call has sent or received.
    Bytes(&'o [u8]),
    /// The end of one direction, after its last bytes (FIN).
    End,
    /// A reset of the connection.
    Reset,
}

/// A tap, and the connection that it observes.
pub(super) struct Tapped {
    tap: Arc<dyn TcpTap>,
    ends: Ends,
}

impl Tapped {
    pub(super) fn of(tap: Arc<dyn TcpTap>, socket: &TcpSocket, peer: SocketAddr) -> Option<Self> {
        let local = socket.local().ok()?;
        let ends = Ends { local, peer };
        Some(Self { tap, ends })
    }

    pub(super) fn passed(&self, way: Way, passed: Passed<'_>) {
        self.tap.passed(way, &self.ends, passed);
    }
}

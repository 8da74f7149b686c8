//! Taps of sockets.

use std::net::SocketAddr;
use std::sync::Arc;

use super::TcpSocket;

/// Observes the bytes that a socket sends and receives, in the order of each direction.
pub trait TcpTap: Send + Sync {
    /// Reports an event. The socket calls this with locks of queue pairs held.
    fn passed(&self, way: Way, ends: &Ends, passed: Passed<'_>);
}

/// The direction of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// This socket sent it.
    Out,
    /// This socket received it.
    In,
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// This socket's address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
}

/// An event of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed<'o> {
    /// The request for a connection.
    Request,
    /// Bytes.
    Bytes(&'o [u8]),
    /// The end of a direction, after its last bytes.
    End,
    /// A reset.
    Reset,
}

/// A tap of a socket.
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

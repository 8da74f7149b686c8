//! Who is told of what passes through sockets.

use std::net::SocketAddr;
use std::sync::Arc;

use super::TcpSocket;

/// Is told of what a socket sends and receives, in the order of each direction.
pub trait TcpTap: Send + Sync {
    /// Something has passed. Called with locks of queue pairs held.
    fn passed(&self, way: Way, ends: &Ends, passed: Passed<'_>);
}

/// Which way something passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// It was sent.
    Out,
    /// It was received.
    In,
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// This socket's.
    pub local: SocketAddr,
    /// The other.
    pub peer: SocketAddr,
}

/// What has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed<'o> {
    /// The request for a connection.
    Request,
    /// Bytes.
    Bytes(&'o [u8]),
    /// An end behind the last bytes.
    End,
    /// A reset.
    Reset,
}

/// A tap at a socket.
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

//! Why there is no connection.

use std::net::SocketAddr;

use crate::error::VerbError;
use thiserror::Error;

/// What a request was doing when it failed. What earlier phases did stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Something was done to the connection.
    Connection,
    /// Something was done to the queue pair.
    QueuePair,
}

/// Why a request about a connection failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer gave up before the connection was there.
    #[error("the peer gave up")]
    Aborted,
    /// Somebody listens there already.
    #[error("{0} is in use")]
    AddressInUse(SocketAddr),
    /// The queue pair is connected, or was and has not been reset.
    #[error("the queue pair is connected already")]
    Connected,
    /// There is no connection any more.
    #[error("not connected")]
    NotConnected,
    /// Something answers there that does not speak the protocol of RDMA connections.
    #[error("what answers there is no RDMA device")]
    NoDevice,
    /// A later phase of a request failed.
    #[error("phase {phase:?}: {error}")]
    Phase {
        /// Which.
        phase: Phase,
        /// Why.
        error: VerbError,
    },
    /// More private data than the message has room for.
    #[error("{len} bytes of private data, where there may be {max}")]
    PrivateData {
        /// What was given.
        len: usize,
        /// What fits.
        max: usize,
    },
    /// The peer, or nobody, does not want a connection. The queue pair is as it was and may be used again.
    #[error("the connection was refused")]
    Refused {
        /// What the peer said, with zeros behind it up to at least 148 bytes; zeros or nothing where it said nothing.
        private_data: Vec<u8>,
    },
    /// Nobody answered in time.
    #[error("nobody answered in time")]
    TimedOut,
    /// There is no way to this address from the device.
    #[error("{0} cannot be reached from this device")]
    Unreachable(SocketAddr),
    /// A verb failed before anything was done.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl ConnectError {
    /// Something done to the queue pair failed.
    pub const fn in_queue_pair(error: VerbError) -> Self {
        Self::Phase {
            phase: Phase::QueuePair,
            error,
        }
    }
}

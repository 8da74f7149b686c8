//! Errors of connections.

use std::net::SocketAddr;

use crate::error::VerbError;
use thiserror::Error;

/// The phase of a request in which it failed. The effects of earlier phases remain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Changing the connection.
    Connection,
    /// Changing the queue pair.
    QueuePair,
}

/// Why a request about a connection failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer gave up before the connection was established.
    #[error("the peer gave up")]
    Aborted,
    /// Another listener has the address.
    #[error("{address} is in use{}", holder.iter().map(|holder| format!(" by {holder}")).collect::<String>())]
    AddressInUse {
        /// The address.
        address: SocketAddr,
        /// Who has it, where that is known: this process, or another one and its user.
        holder: Option<String>,
    },
    /// The queue pair is connected, or was and has not been reset.
    #[error("the queue pair is connected already")]
    Connected,
    /// The connection has ended.
    #[error("not connected")]
    NotConnected,
    /// What answers at the address does not speak the RDMA connection protocol.
    #[error("what answers there is no RDMA device")]
    NoDevice,
    /// A later phase of a request failed.
    #[error("phase {phase:?}: {error}")]
    Phase {
        /// The phase.
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
    /// The peer rejected the connection, or has no listener there. The queue pair is unchanged and may be used again.
    #[error("the connection was refused")]
    Refused {
        /// The peer's private data, padded with zeros to at least 148 bytes; zeros or empty where it sent none.
        private_data: Vec<u8>,
    },
    /// The peer did not answer in time.
    #[error("nobody answered in time")]
    TimedOut,
    /// The address cannot be reached from the device.
    #[error("{0} cannot be reached from this device")]
    Unreachable(SocketAddr),
    /// A verb failed before anything was changed.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl ConnectError {
    /// A change of the queue pair failed.
    pub const fn in_queue_pair(error: VerbError) -> Self {
        Self::Phase {
            phase: Phase::QueuePair,
            error,
        }
    }
}

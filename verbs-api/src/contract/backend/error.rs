//! Errors of connections.

use std::net::SocketAddr;

use crate::error::VerbError;
use thiserror::Error;

/// The phase in which a connection request failed. The effects of earlier phases remain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The state of the connection was being changed.
    Connection,
    /// The queue pair was being modified.
    QueuePair,
}

/// Why a peer refused a connection request, or a request to resolve a datagram service (SIDR).
///
/// ```
/// use verbs_api::provider::backend::{ConnectError, Refusal};
/// fn is_worth_another_attempt(error: &ConnectError) -> bool {
///     matches!(error, ConnectError::Refused { reason: Refusal::BacklogFull, .. })
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The listener's backlog is full: another attempt may succeed.
    #[error("the backlog is full")]
    BacklogFull,
    /// Another reason of InfiniBand's connection manager, by its number in the REJ message.
    #[error("the peer's connection manager gives reason {0} of the REJ message")]
    Manager(u16),
    /// No program listens at the address.
    #[error("no program listens there")]
    NoListener,
    /// The peer's program rejected the connection or the question.
    #[error("the program rejected it")]
    Program,
    /// The peer's program rejected the request or its backlog is full: iWARP's reply does not distinguish the two.
    #[error("the program rejected it, or its backlog is full")]
    ProgramOrBacklog,
}

impl Refusal {
    const NO_RESOURCES: u16 = 3;
    const INVALID_SERVICE_ID: u16 = 8;
    const CONSUMER: u16 = 28;
    const REDIRECT: u16 = 24;
    const CLASS_VERSION: u16 = 31;

    /// Converts the reason of a REJ message (IBTA 12.6.7.2).
    pub const fn of_reject_reason(reason: u16) -> Self {
        match reason {
            Self::NO_RESOURCES => Self::BacklogFull,
            Self::INVALID_SERVICE_ID => Self::NoListener,
            Self::CONSUMER => Self::Program,
            other => Self::Manager(other),
        }
    }

    /// Returns the reason to put into a REJ message for this refusal.
    pub const fn reject_reason(self) -> u16 {
        match self {
            Self::BacklogFull => Self::NO_RESOURCES,
            Self::NoListener => Self::INVALID_SERVICE_ID,
            Self::Program | Self::ProgramOrBacklog => Self::CONSUMER,
            Self::Manager(reason) => reason,
        }
    }

    /// The refusal that a SIDR_REP with this status means (IBTA 12.11.2). Statuses that a REJ has reasons for mean what those mean.
    pub const fn of_sidr_status(status: u8) -> Self {
        match status {
            1 => Self::NoListener,
            3 => Self::BacklogFull,
            4 => Self::Manager(Self::REDIRECT),
            5 => Self::Manager(Self::CLASS_VERSION),
            _ => Self::Program,
        }
    }

    /// The status of the SIDR_REP that says so.
    pub const fn sidr_status(self) -> u8 {
        match self {
            Self::NoListener => 1,
            Self::BacklogFull => 3,
            Self::Manager(Self::REDIRECT) => 4,
            Self::Manager(Self::CLASS_VERSION) => 5,
            _ => 2,
        }
    }
}

/// Why a request of connection management failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer gave up before the connection was established.
    #[error("the peer gave up before the connection was established")]
    Aborted,
    /// Another listener uses the address.
    #[error("{address} is in use{}", holder.iter().map(|holder| format!(" by {holder}")).collect::<String>())]
    AddressInUse {
        /// The address that is in use.
        address: SocketAddr,
        /// Which process listens there, where that is known: this one, or another one and its user.
        holder: Option<String>,
    },
    /// The queue pair is connected, or was and has not been reset.
    #[error("the queue pair is connected already")]
    Connected,
    /// The connection has ended, or never existed.
    #[error("not connected")]
    NotConnected,
    /// The peer at the address does not speak the RDMA connection protocol.
    #[error("the peer that answers is no RDMA device")]
    NoDevice,
    /// A request failed after some of its effects had taken place.
    #[error("phase {phase:?}: {error}")]
    Phase {
        /// The phase that failed.
        phase: Phase,
        /// Why the phase failed.
        error: VerbError,
    },
    /// More private data was given than the message has room for.
    #[error("{len} bytes of private data, where there may be {max}")]
    PrivateData {
        /// The number of bytes given.
        len: usize,
        /// The largest number of bytes that fit.
        max: usize,
    },
    /// The peer refused the connection. The queue pair is unchanged and may be used again.
    #[error("the connection was refused: {reason}")]
    Refused {
        /// Why the peer refused, as far as the transport reports it.
        reason: Refusal,
        /// The peer's private data, padded with zeros to at least 148 bytes; zeros or empty where it sent none.
        private_data: Vec<u8>,
    },
    /// The peer did not answer in time.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// The address cannot be reached from the device.
    #[error("{0} cannot be reached from this device")]
    Unreachable(SocketAddr),
    /// The operating system refuses to send to the address, with this error number.
    #[error("the system refuses to send there ({}): see the firewall and the routes of this machine", std::io::Error::from_raw_os_error(*.0))]
    Unsent(i32),
    /// A verb failed before anything was changed.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl ConnectError {
    /// Wraps a failure to modify the queue pair.
    pub const fn in_queue_pair(error: VerbError) -> Self {
        Self::Phase {
            phase: Phase::QueuePair,
            error,
        }
    }
}

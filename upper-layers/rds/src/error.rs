//! What goes wrong, each with the error number that Linux has for it.

use std::io;
use std::net::SocketAddr;

use polyverbs::connection::ConnectError;
use polyverbs::emulated::EmulatedDeviceError;
use polyverbs::{OpenError, VerbError};
use polyverbs_rds_wire::MAX_MESSAGE;
use thiserror::Error;

use crate::protocol::PortError;

/// Why a call on a socket failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RdsError {
    /// `EINVAL`: the address is a wildcard, broadcast or multicast one, or lacks its scope.
    #[error("{0} is no address of one host")]
    Address(SocketAddr),
    /// `EDESTADDRREQ`: a wildcard is no destination.
    #[error("{0} is no destination")]
    Destination(SocketAddr),
    /// `EINVAL`: the socket has an address.
    #[error("the socket is bound to {0} already")]
    Bound(SocketAddr),
    /// `ENOTCONN`: nothing was bound, or there is no destination.
    #[error("{0}")]
    NotConnected(&'static str),
    /// `EADDRINUSE`, or `EINVAL` for the port that is reserved.
    #[error("{at}: {error}")]
    Port {
        /// Where.
        at: SocketAddr,
        /// Why.
        error: PortError,
    },
    /// `EADDRNOTAVAIL`: no device is at the address, and none can be.
    #[error("no device for {at}: {error}")]
    NoDevice {
        /// Where.
        at: SocketAddr,
        /// Why.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// `ENOPROTOOPT`: the transport that was chosen does not have the address.
    #[error("the transport that was chosen does not have {0}")]
    WrongTransport(SocketAddr),
    /// `EOPNOTSUPP`: a transport was chosen already.
    #[error("the socket has a transport already")]
    TransportChosen,
    /// `ENOPROTOOPT`: RDS over TCP is another protocol.
    #[error("there is no RDS over this transport")]
    NoTransport,
    /// `EOPNOTSUPP`: an IPv4 address and an IPv6 address.
    #[error("{from} and {to} are of different families")]
    Family {
        /// The socket's.
        from: SocketAddr,
        /// The destination.
        to: SocketAddr,
    },
    /// `EMSGSIZE`: longer than a message may be, or than the send buffer.
    #[error("a message of {length} bytes, where there may be {most}")]
    TooLong {
        /// Its length.
        length: usize,
        /// What the socket takes.
        most: usize,
    },
    /// `EAGAIN`: there is no room in the send buffer, or nothing to receive.
    #[error("not now")]
    WouldBlock,
    /// `ENOBUFS`: the receiver has more waiting than its receive buffer.
    #[error("the destination is congested")]
    Congested,
    /// `ETIMEDOUT`.
    #[error("the time is over")]
    TimedOut,
    /// `ECONNRESET`: the leader of the own address, which passed on the socket's messages, has ended, and may have passed on this number of
    /// unacknowledged messages or not. They are not sent again; later messages are sent.
    #[error("{0} messages may not have arrived: the process that passed them on has ended")]
    Undelivered(u64),
    /// `EINVAL`, `EFAULT` and others: what was asked for of remote memory makes no sense.
    #[error("{what}")]
    Rdma {
        /// What is wrong.
        what: &'static str,
        /// The number.
        errno: i32,
    },
    /// `ENOMEM`, or what the device says.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl RdsError {
    /// The error number that Linux's sockets give.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Address(_) | Self::Bound(_) => libc::EINVAL,
            Self::Destination(_) => libc::EDESTADDRREQ,
            Self::NotConnected(_) => libc::ENOTCONN,
            Self::Port { error, .. } => match error {
                PortError::Reserved => libc::EINVAL,
                PortError::InUse(_) | PortError::Exhausted => libc::EADDRINUSE,
            },
            Self::NoDevice { .. } => libc::EADDRNOTAVAIL,
            Self::WrongTransport(_) | Self::NoTransport => libc::ENOPROTOOPT,
            Self::TransportChosen | Self::Family { .. } => libc::EOPNOTSUPP,
            Self::TooLong { .. } => libc::EMSGSIZE,
            Self::WouldBlock => libc::EAGAIN,
            Self::Congested => libc::ENOBUFS,
            Self::TimedOut => libc::ETIMEDOUT,
            Self::Undelivered(_) => libc::ECONNRESET,
            Self::Rdma { errno, .. } => *errno,
            Self::Verb(_) => libc::ENOMEM,
        }
    }

    pub(crate) fn too_long(length: usize, send_buffer: usize) -> Self {
        Self::TooLong {
            length,
            most: send_buffer.min(MAX_MESSAGE),
        }
    }

    pub(crate) fn no_device(
        at: SocketAddr,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::NoDevice {
            at,
            error: error.into(),
        }
    }
}

impl From<RdsError> for io::Error {
    fn from(error: RdsError) -> Self {
        Self::from_raw_os_error(error.errno())
    }
}

/// Why there is no device at an address.
#[derive(Debug, Error)]
pub(crate) enum DeviceError {
    #[error(transparent)]
    Emulated(#[from] EmulatedDeviceError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Verb(#[from] VerbError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

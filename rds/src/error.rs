//! The errors of sockets, each with the error number that Linux has for it.

use std::io;
use std::net::SocketAddr;

use polyverbs::connection::ConnectError;
use polyverbs::emulated::EmulatedDeviceError;
use polyverbs::{OpenError, VerbError};
use polyverbs_wire::rds::MAX_MESSAGE;
use thiserror::Error;

use crate::protocol::PortError;

/// Why a call on a socket failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RdsError {
    /// `EINVAL`: the address is a wildcard, a broadcast or a multicast address, or lacks its scope.
    #[error("{0} is no address of one host")]
    Address(SocketAddr),
    /// `EADDRNOTAVAIL`: the address is valid on the link of its scope only, and sockets are not at such addresses.
    #[error(
        "{0} has a scope, which sockets do not support: use an address of the host that is not link-local"
    )]
    Scope(SocketAddr),
    /// `EDESTADDRREQ`: the destination is a wildcard.
    #[error("{0} is no destination")]
    Destination(SocketAddr),
    /// `EINVAL`: the socket already has an address.
    #[error("the socket is bound to {0} already")]
    Bound(SocketAddr),
    /// `ENOTCONN`: the socket is not bound, or the message has no destination.
    #[error("{0}")]
    NotConnected(&'static str),
    /// `EADDRINUSE`: the port is in use; or `EINVAL`: the port is reserved.
    #[error("{at}: {error}")]
    Port {
        /// The address and the port.
        at: SocketAddr,
        /// Why the port cannot be bound.
        error: PortError,
    },
    /// The system's error number if the system refused a device at the address; otherwise `EADDRNOTAVAIL`.
    #[error("no device for {at}: {error}")]
    NoDevice {
        /// The address.
        at: SocketAddr,
        /// The error number.
        errno: i32,
        /// Why there is no device.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// `ENOPROTOOPT`: the chosen transport has no device at the address.
    #[error("the transport that was chosen does not have {0}")]
    WrongTransport(SocketAddr),
    /// `EOPNOTSUPP`: the socket already has a transport.
    #[error("the socket has a transport already")]
    TransportChosen,
    /// `ENOPROTOOPT`: RDS over TCP is another protocol.
    #[error("there is no RDS over this transport")]
    NoTransport,
    /// `EOPNOTSUPP`: one address is IPv4 and the other IPv6.
    #[error("{from} and {to} are of different families")]
    Family {
        /// The socket's address.
        from: SocketAddr,
        /// The destination.
        to: SocketAddr,
    },
    /// `EMSGSIZE`: the message is longer than the protocol or the send buffer allows.
    #[error("a message of {length} bytes, where there may be {most}")]
    TooLong {
        /// Length of the message, in bytes.
        length: usize,
        /// The longest message that the socket takes, in bytes.
        most: usize,
    },
    /// `EAGAIN`: the send buffer is full, or there is nothing to receive.
    #[error("not now")]
    WouldBlock,
    /// `ENOBUFS`: more bytes wait at the receiver than its receive buffer allows.
    #[error("the destination is congested")]
    Congested,
    /// `ETIMEDOUT`: the deadline has passed.
    #[error("the time is over")]
    TimedOut,
    /// `ECONNRESET`: the leader of the own address, which forwarded the socket's messages, has ended. It may or may not have
    /// forwarded this number of unacknowledged messages. They are not sent again; later messages are sent.
    #[error("{0} messages may not have arrived: the process that passed them on has ended")]
    Undelivered(u64),
    /// `EINVAL`, `EFAULT` and others: the operation on remote memory is invalid.
    #[error("{what}")]
    Rdma {
        /// The fault of the operation.
        what: &'static str,
        /// The error number.
        errno: i32,
    },
    /// `ENOMEM`, or the error of the device.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl RdsError {
    /// The error number that Linux's sockets give.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Address(_) | Self::Bound(_) => libc::EINVAL,
            Self::Scope(_) => libc::EADDRNOTAVAIL,
            Self::Destination(_) => libc::EDESTADDRREQ,
            Self::NotConnected(_) => libc::ENOTCONN,
            Self::Port { error, .. } => match error {
                PortError::Reserved => libc::EINVAL,
                PortError::InUse(_) | PortError::Exhausted => libc::EADDRINUSE,
            },
            Self::WrongTransport(_) | Self::NoTransport => libc::ENOPROTOOPT,
            Self::TransportChosen | Self::Family { .. } => libc::EOPNOTSUPP,
            Self::TooLong { .. } => libc::EMSGSIZE,
            Self::WouldBlock => libc::EAGAIN,
            Self::Congested => libc::ENOBUFS,
            Self::TimedOut => libc::ETIMEDOUT,
            Self::Undelivered(_) => libc::ECONNRESET,
            Self::NoDevice { errno, .. }
            | Self::Rdma { errno, .. }
            | Self::Verb(VerbError::Os { errno, .. }) => *errno,
            Self::Verb(_) => libc::ENOMEM,
        }
    }

    pub(crate) fn too_long(length: usize, send_buffer: usize) -> Self {
        Self::TooLong {
            length,
            most: send_buffer.min(MAX_MESSAGE),
        }
    }

    pub(crate) fn no_device(at: SocketAddr, error: impl Into<DeviceError>) -> Self {
        let error = error.into();
        Self::NoDevice {
            at,
            errno: error.errno().unwrap_or(libc::EADDRNOTAVAIL),
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

impl DeviceError {
    // The system's number for it, where the system refused.
    fn errno(&self) -> Option<i32> {
        match self {
            Self::Emulated(error) => error.errno(),
            Self::Open(OpenError::Failed { error, .. })
            | Self::Verb(error)
            | Self::Connect(ConnectError::Verb(error)) => match error {
                VerbError::Os { errno, .. } => Some(*errno),
                _ => None,
            },
            Self::Connect(ConnectError::Unsent(errno)) => Some(*errno),
            Self::Open(_) | Self::Connect(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_cannot_be_made_gives_the_cause() {
        let at = "192.0.2.1:4000".parse().unwrap();
        let refused = || VerbError::os("eventfd", io::Error::from_raw_os_error(libc::EMFILE));
        let open = OpenError::Failed {
            device: "ib0".to_owned(),
            error: refused(),
        };
        let emulated = EmulatedDeviceError::Unreachable {
            to: at,
            error: std::sync::Arc::new(io::Error::from_raw_os_error(libc::EMFILE)),
        };
        for error in [
            DeviceError::from(open),
            emulated.into(),
            refused().into(),
            ConnectError::from(refused()).into(),
        ] {
            assert_eq!(RdsError::no_device(at, error).errno(), libc::EMFILE);
        }
        assert_eq!(RdsError::from(refused()).errno(), libc::EMFILE);
        let without_number = ConnectError::NoDevice;
        let error = RdsError::no_device(at, without_number);
        assert_eq!(error.errno(), libc::EADDRNOTAVAIL);
    }
}

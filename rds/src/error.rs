//! The errors of sockets, each with the error number that Linux has for it.

use std::io;
use std::net::SocketAddr;

use polyverbs::connection::ConnectError;
use polyverbs::emulated::EmulatedDeviceError;
use polyverbs::{OpenError, VerbError};
use polyverbs_wire::rds::MAX_MESSAGE;
use thiserror::Error;

use crate::protocol::PortError;

/// Why a call on an RDS socket failed. The comments name the error number that [`errno`](Self::errno) returns.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RdsError {
    /// `EINVAL`: the address is a wildcard, broadcast or multicast address, or a link-local one without a scope.
    #[error("{0} is not the address of a single host")]
    Address(SocketAddr),
    /// `EADDRNOTAVAIL`: the address is link-local with a scope. Sockets do not support such addresses.
    #[error(
        "{0} has a scope, which sockets do not support: use an address of the host that is not link-local"
    )]
    Scope(SocketAddr),
    /// `EDESTADDRREQ`: the destination of the message is a wildcard address.
    #[error("{0} cannot be a destination")]
    Destination(SocketAddr),
    /// `EINVAL`: the socket is bound already, to this address.
    #[error("the socket is bound to {0} already")]
    Bound(SocketAddr),
    /// `ENOTCONN`: the socket is not bound, or the message has no destination.
    #[error("{0}")]
    NotConnected(&'static str),
    /// `EADDRINUSE`: the port is in use; or `EINVAL`: port 1 was requested, which is reserved.
    #[error("{at}: {error}")]
    Port {
        /// The address and port that the socket should be bound to.
        at: SocketAddr,
        /// Why the socket cannot have the port.
        error: PortError,
    },
    /// There is no RDMA device at the address. The error number is that of the system if it refused to make a device there,
    /// otherwise `EADDRNOTAVAIL`.
    #[error("no device for {at}: {error}")]
    NoDevice {
        /// The address that the socket should be bound to.
        at: SocketAddr,
        /// The error number of the system, or `EADDRNOTAVAIL`.
        errno: i32,
        /// The error that says why there is no device.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// `ENOPROTOOPT`: the device at this address has another transport than the one that the socket has chosen.
    #[error("the transport that was chosen does not have {0}")]
    WrongTransport(SocketAddr),
    /// `EOPNOTSUPP`: the socket already has a transport, by its address or an earlier choice.
    #[error("the socket has a transport already")]
    TransportChosen,
    /// `ENOPROTOOPT`: RDS over TCP was chosen, which is another protocol and not supported.
    #[error("there is no RDS over this transport")]
    NoTransport,
    /// `EOPNOTSUPP`: the socket and the destination have addresses of different families, IPv4 and IPv6.
    #[error("{from} and {to} are of different families")]
    Family {
        /// The address that the socket is bound to.
        from: SocketAddr,
        /// The destination of the message.
        to: SocketAddr,
    },
    /// `EMSGSIZE`: the message is longer than the protocol or the send buffer allows.
    #[error("a message of {length} bytes, where there may be {most}")]
    TooLong {
        /// Length of the message, in bytes.
        length: usize,
        /// The longest message that the socket accepts, in bytes.
        most: usize,
    },
    /// `EAGAIN`: the call would have to wait for room in the send buffer, or for something to receive.
    #[error("the call would have to wait")]
    WouldBlock,
    /// `ENOBUFS`: the receiver has marked the destination port as congested, because more bytes wait there than its receive
    /// buffer allows.
    #[error("the destination is congested")]
    Congested,
    /// `ETIMEDOUT`: the deadline of the call has passed.
    #[error("the deadline has passed")]
    TimedOut,
    /// `ECONNRESET`: the leader of the socket's own address, through which its messages went, has ended. This many
    /// unacknowledged messages were given up; each of them may or may not have arrived. Later messages are sent as usual.
    #[error("{0} messages may not have arrived: the process that passed them on has ended")]
    Undelivered(u64),
    /// `EINVAL`, `EFAULT` and others: the RDMA operation, atomic or memory of the call is invalid.
    #[error("{what}")]
    Rdma {
        /// The fault of the operation or memory, in words.
        what: &'static str,
        /// The error number that the call returns.
        errno: i32,
    },
    /// `ENOMEM`, or the error number of the device: a verb of the device failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl RdsError {
    /// The error number that a call on a Linux RDS socket returns for this error.
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

/// Why no RDMA device is at an address.
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
    // The error number of the system, if the system refused; `None` otherwise.
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

//! The errors of control verbs.

mod argument;
mod registry;

use std::{fmt, io};

use rustix::io::Errno;
use thiserror::Error;

pub use argument::ArgumentReason;
pub use registry::RegistryError;

use crate::capability::{BaselineGaps, Features, ShortLimit, Unsupported, feature_names};
use crate::object_id::{Holder, ObjectKind};
use crate::qp_attributes::{BadModify, QpState};

/// The kind of an error: the same few for all operations.
///
/// ```
/// use verbs_api::{ErrorKind, VerbError};
/// let error = VerbError::Resources("memory regions");
/// let may_pass = matches!(error.kind(), ErrorKind::Busy | ErrorKind::Resources);
/// assert!(may_pass, "worth another attempt when something was given back");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The object is in use.
    Busy,
    /// The operation was canceled.
    Canceled,
    /// The device was removed.
    DeviceRemoved,
    /// A fault of this library: please report it.
    Internal,
    /// An argument of the caller is invalid.
    InvalidArgument,
    /// The object was destroyed.
    InvalidHandle,
    /// A number exceeds a limit of the device.
    Limit,
    /// The object or device was not found.
    NotFound,
    /// A resource, such as memory or entries of a table, is exhausted.
    Resources,
    /// The device or the system does not support the operation.
    Unsupported,
    /// Waiting would never end, because the waiting thread is in a handler.
    WouldDeadlock,
}

/// Why a control verb failed.
///
/// ```
/// use verbs_api::VerbError;
///
/// fn advice(error: &VerbError) -> String {
///     match error {
///         VerbError::Busy(holders) => format!("destroy {} objects first", holders.len()),
///         VerbError::Limit(short) => format!("ask for {} at most", short.offered),
///         other => other.to_string(),
///     }
/// }
///
/// assert_eq!(advice(&VerbError::DeviceRemoved), "the device was removed");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum VerbError {
    /// The device lacks a baseline ability.
    #[error("the device lacks a baseline ability: {}", GapNames(*.0))]
    BaselineGap(BaselineGaps),
    /// The state table of queue pairs does not allow the modification.
    #[error(transparent)]
    BadModify(#[from] BadModify),
    /// The object is in use by these holders, as far as the device knows them.
    #[error("in use by {}", HolderNames(.0))]
    Busy(Vec<Holder>),
    /// The operation was canceled before it completed.
    #[error("canceled before it completed")]
    Canceled,
    /// The completion queue overran and is unusable.
    #[error(
        "the completion queue overran: it was made for fewer completions than were outstanding"
    )]
    CqOverrun,
    /// The device was removed.
    #[error("the device was removed")]
    DeviceRemoved,
    /// A fault of this library, described by this text: please report it.
    #[error("internal fault, please report it: {0}")]
    Internal(&'static str),
    /// An argument of the caller is invalid.
    #[error("{argument}: {reason}")]
    InvalidArgument {
        /// The verbs name of the invalid attribute.
        argument: &'static str,
        /// Why the value is invalid, and which would be valid.
        reason: ArgumentReason,
    },
    /// The object was destroyed through another handle.
    #[error("the {0} was destroyed")]
    InvalidHandle(ObjectKind),
    /// An extension was used whose features were not granted.
    #[error(transparent)]
    Extension(#[from] Unsupported),
    /// The operation is not allowed in this state of the queue pair.
    #[error("not allowed in state {0}")]
    InvalidState(QpState),
    /// A number exceeds a limit of the device.
    #[error("{0}")]
    Limit(ShortLimit),
    /// The process may not lock so much memory for a device.
    #[error(
        "{wanted} bytes cannot be locked for the device: the process may lock {limit} (RLIMIT_MEMLOCK); `ulimit -l unlimited`, \
         or `memlock` in /etc/security/limits.conf, or LimitMEMLOCK= of a service raises it"
    )]
    MemoryLock {
        /// How many bytes were to be locked.
        wanted: u64,
        /// How many bytes the process may have locked at one time.
        limit: u64,
    },
    /// The operating system refused an operation.
    #[error("{verb}: {}", io::Error::from_raw_os_error(*errno))]
    Os {
        /// Name of the system call, or of the verb that it is part of.
        verb: &'static str,
        /// The error number (`errno`) of the operating system.
        errno: i32,
    },
    /// The named resource is exhausted.
    #[error("out of {0}")]
    Resources(&'static str),
    /// The device lacks these features, or the program was not granted them.
    #[error("needs {}, which the device lacks or the program did not ask for", feature_names(*missing).join(", "))]
    Unsupported {
        /// The features that are missing.
        missing: Features,
    },
    /// The device has the feature, but cannot provide it in this case.
    #[error("not supported here: {0}")]
    UnsupportedHere(String),
    /// The device does not support the verb with this name.
    #[error("the device does not support {0}")]
    UnsupportedVerb(&'static str),
    /// `wait` was called where waiting would never end.
    #[error("waiting inside a handler would never end: await it or give it a handler of its own")]
    WouldDeadlock,
}

impl VerbError {
    /// Creates an [`InvalidArgument`](Self::InvalidArgument) for the attribute with this verbs name.
    pub fn argument(argument: &'static str, reason: impl Into<ArgumentReason>) -> Self {
        Self::InvalidArgument {
            argument,
            reason: reason.into(),
        }
    }

    /// Creates an [`Os`](Self::Os): the operating system refused `verb`. An error without a number gets the nearest number,
    /// or `EIO`.
    pub fn os(verb: &'static str, error: impl Into<io::Error>) -> Self {
        let errno = errno_of(&error.into());
        Self::Os { verb, errno }
    }

    /// Returns the kind of the error.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::BadModify(_) | Self::InvalidArgument { .. } | Self::InvalidState(_) => {
                ErrorKind::InvalidArgument
            }
            Self::Busy(_) => ErrorKind::Busy,
            Self::Canceled => ErrorKind::Canceled,
            Self::CqOverrun => ErrorKind::Resources,
            Self::DeviceRemoved => ErrorKind::DeviceRemoved,
            Self::Internal(_) => ErrorKind::Internal,
            Self::InvalidHandle(_) => ErrorKind::InvalidHandle,
            Self::Limit(_) => ErrorKind::Limit,
            Self::Os { errno, .. } => kind_of_errno(*errno),
            Self::MemoryLock { .. } | Self::Resources(_) => ErrorKind::Resources,
            Self::BaselineGap(_)
            | Self::Extension(_)
            | Self::Unsupported { .. }
            | Self::UnsupportedHere(_)
            | Self::UnsupportedVerb(_) => ErrorKind::Unsupported,
            Self::WouldDeadlock => ErrorKind::WouldDeadlock,
        }
    }
}

pub(crate) const fn kind_of_errno(errno: i32) -> ErrorKind {
    kind_of(Errno::from_raw_os_error(errno))
}

const fn kind_of(errno: Errno) -> ErrorKind {
    match errno {
        Errno::BUSY | Errno::ADDRINUSE | Errno::EXIST => ErrorKind::Busy,
        Errno::CANCELED => ErrorKind::Canceled,
        Errno::NODEV | Errno::NXIO | Errno::IO => ErrorKind::DeviceRemoved,
        Errno::INVAL | Errno::BADF | Errno::FAULT => ErrorKind::InvalidArgument,
        Errno::NOENT
        | Errno::ADDRNOTAVAIL
        | Errno::CONNREFUSED
        | Errno::HOSTUNREACH
        | Errno::NETUNREACH => ErrorKind::NotFound,
        Errno::OPNOTSUPP
        | Errno::NOSYS
        | Errno::AFNOSUPPORT
        | Errno::PROTONOSUPPORT
        | Errno::PERM
        | Errno::ACCESS => ErrorKind::Unsupported,
        Errno::DEADLK => ErrorKind::WouldDeadlock,
        // ENOMEM, ENOSPC, EMFILE, ENFILE, ENOBUFS, EAGAIN …: the system has none left, or none now.
        _ => ErrorKind::Resources,
    }
}

/// Returns the `errno` of an I/O error. If text was added to an error of the system, it is the number of that error, which
/// is then the source. An error without a number gets the nearest number, or `EIO`.
pub fn errno_of(error: &io::Error) -> i32 {
    let explained = error.get_ref().and_then(|explained| explained.source());
    let cause = explained.and_then(|cause| cause.downcast_ref::<io::Error>());
    cause
        .unwrap_or(error)
        .raw_os_error()
        .unwrap_or_else(|| nearest_errno(error.kind()).raw_os_error())
}

fn nearest_errno(kind: io::ErrorKind) -> Errno {
    match kind {
        io::ErrorKind::AddrInUse => Errno::ADDRINUSE,
        io::ErrorKind::AddrNotAvailable => Errno::ADDRNOTAVAIL,
        io::ErrorKind::AlreadyExists => Errno::EXIST,
        io::ErrorKind::ConnectionRefused => Errno::CONNREFUSED,
        io::ErrorKind::ConnectionReset => Errno::CONNRESET,
        io::ErrorKind::InvalidInput => Errno::INVAL,
        io::ErrorKind::NotConnected => Errno::NOTCONN,
        io::ErrorKind::NotFound => Errno::NOENT,
        io::ErrorKind::OutOfMemory => Errno::NOMEM,
        io::ErrorKind::PermissionDenied => Errno::ACCESS,
        io::ErrorKind::StorageFull => Errno::NOSPC,
        io::ErrorKind::TimedOut => Errno::TIMEDOUT,
        io::ErrorKind::Unsupported => Errno::OPNOTSUPP,
        _ => Errno::IO,
    }
}

/// Displays baseline gaps as a list of their names.
pub(crate) struct GapNames(pub(crate) BaselineGaps);

impl fmt::Display for GapNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(&self.0, f)
    }
}

struct HolderNames<'a>(&'a [Holder]);

impl fmt::Display for HolderNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("objects that the device does not name");
        }
        for (index, holder) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{holder}")?;
        }
        Ok(())
    }
}

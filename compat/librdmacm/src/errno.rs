//! Error numbers of connections: one table.

use polyverbs_connection::ConnectError;
use polyverbs_libibverbs::errno::Errno;

/// What a call answers that failed so, and, negative, what an event tells.
pub fn of(error: &ConnectError) -> Errno {
    Errno(match error {
        ConnectError::Aborted => libc::ECONNABORTED,
        ConnectError::AddressInUse(_) => libc::EADDRINUSE,
        ConnectError::Connected => libc::EISCONN,
        ConnectError::NoDevice => libc::EPROTO,
        ConnectError::NotConnected => libc::ENOTCONN,
        ConnectError::Phase { error, .. } => return error.clone().into(),
        ConnectError::PrivateData { .. } => libc::EINVAL,
        ConnectError::Refused { .. } => libc::ECONNREFUSED,
        ConnectError::TimedOut => libc::ETIMEDOUT,
        ConnectError::Unreachable(_) => libc::EHOSTUNREACH,
        ConnectError::Verb(error) => return error.clone().into(),
        _ => libc::EIO,
    })
}

/// What a function answers that returns 0, or -1 where it failed.
pub fn done(result: Result<(), Errno>) -> std::ffi::c_int {
    polyverbs_libibverbs::errno::minus_one(result.map(|()| 0))
}

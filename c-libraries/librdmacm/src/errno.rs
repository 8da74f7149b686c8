//! The conversion of connection errors to the error numbers of `rdma_*` calls.

use polyverbs_connection::ConnectError;
use polyverbs_libibverbs::errno::Errno;

/// The error number that a call reports for this error; the status of an event is its negative.
pub fn of(error: &ConnectError) -> Errno {
    Errno(match error {
        ConnectError::Aborted => libc::ECONNABORTED,
        ConnectError::AddressInUse { .. } => libc::EADDRINUSE,
        ConnectError::Connected => libc::EISCONN,
        ConnectError::NoDevice => libc::EPROTO,
        ConnectError::NotConnected => libc::ENOTCONN,
        ConnectError::Phase { error, .. } => return error.clone().into(),
        ConnectError::PrivateData { .. } => libc::EINVAL,
        ConnectError::Refused { .. } => libc::ECONNREFUSED,
        ConnectError::TimedOut => libc::ETIMEDOUT,
        ConnectError::Unreachable(_) => libc::EHOSTUNREACH,
        ConnectError::Unsent(errno) => *errno,
        ConnectError::Verb(error) => return error.clone().into(),
        _ => libc::EIO,
    })
}

/// The return value of a call: 0, or -1 on failure with the error number in `errno`.
pub fn done(result: Result<(), Errno>) -> std::ffi::c_int {
    polyverbs_libibverbs::errno::minus_one(result.map(|()| 0))
}

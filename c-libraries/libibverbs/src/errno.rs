//! The conversion of errors to the error numbers that the manual pages of verbs give for them.

use std::ffi::c_int;
use std::ptr;

use verbs_api::{
    DestroyError, ErrorKind, OpenError, PostError, VerbError, memory::OutOfMemory, wr::PostReason,
};

/// An error number of the system, such as `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

impl Errno {
    /// `EINVAL`: an argument is invalid.
    pub const INVAL: Self = Self(libc::EINVAL);
    /// `EFAULT`: an address is not mapped.
    pub const FAULT: Self = Self(libc::EFAULT);
    /// `EOPNOTSUPP`: the call or an option is not supported.
    pub const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// `ENOMEM`: there is not enough memory or another resource.
    pub const NOMEM: Self = Self(libc::ENOMEM);
    /// `EBUSY`: the object is in use.
    pub const BUSY: Self = Self(libc::EBUSY);

    /// The value of `errno` for the calling thread; EIO if it is not set.
    pub fn last() -> Self {
        Self(
            std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO),
        )
    }

    /// Sets `errno` for the calling thread to this number, and returns the number.
    pub fn set(self) -> c_int {
        // SAFETY: the place is the calling thread's own.
        unsafe { *libc::__errno_location() = self.0 };
        self.0
    }
}

impl From<ErrorKind> for Errno {
    fn from(kind: ErrorKind) -> Self {
        Self(match kind {
            ErrorKind::Busy => libc::EBUSY,
            ErrorKind::Canceled => libc::ECANCELED,
            // As the kernel answers every call of a device that was removed.
            ErrorKind::DeviceRemoved => libc::EIO,
            ErrorKind::InvalidArgument | ErrorKind::InvalidHandle | ErrorKind::Limit => {
                libc::EINVAL
            }
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::Resources => libc::ENOMEM,
            ErrorKind::Unsupported => libc::EOPNOTSUPP,
            ErrorKind::WouldDeadlock => libc::EDEADLK,
            // Internal errors, and kinds that later versions may add.
            _ => libc::EIO,
        })
    }
}

impl From<VerbError> for Errno {
    fn from(error: VerbError) -> Self {
        match error {
            VerbError::Os { errno, .. } => Self(errno),
            other => other.kind().into(),
        }
    }
}

impl From<OutOfMemory> for Errno {
    fn from(_: OutOfMemory) -> Self {
        Self::NOMEM
    }
}

impl<T> From<DestroyError<T>> for Errno {
    fn from(error: DestroyError<T>) -> Self {
        error.into_verb_error().into()
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        error.reason.into()
    }
}

impl From<PostReason> for Errno {
    fn from(reason: PostReason) -> Self {
        match reason {
            PostReason::Os { errno } => Self(errno),
            other => other.kind().into(),
        }
    }
}

impl From<OpenError> for Errno {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Failed { error, .. } => error.into(),
            _ => Self(libc::ENODEV),
        }
    }
}

/// The return value of a verb that returns an error number: 0 for success. Also sets `errno` on failure.
pub fn code(result: Result<(), Errno>) -> c_int {
    result.map_or_else(Errno::set, |()| 0)
}

/// The return value of a verb that returns a pointer: null on failure, with the error number in `errno`.
pub fn pointer<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        errno.set();
        ptr::null_mut()
    })
}

/// The return value of a verb that returns a number, or -1 on failure with the error number in `errno`.
pub fn minus_one(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| {
        errno.set();
        -1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_error_keeps_its_number() {
        for errno in [libc::EMFILE, libc::ENETUNREACH, libc::EACCES] {
            let error = std::io::Error::from_raw_os_error(errno);
            let error = VerbError::os("eventfd", error);
            assert_eq!(Errno::from(error.clone()), Errno(errno));
            let failed = DestroyError::<()>::Failed(error);
            assert_eq!(Errno::from(failed), Errno(errno));
        }
    }
}

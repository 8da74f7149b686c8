//! What a test needs that calls the library as C does.

use std::ffi::c_int;
use std::{io, mem};

/// A call of a function of the library, as C makes it.
macro_rules! call {
    ($call:expr) => {{
        // SAFETY: pointers are to memory of the test or objects of the library, or are ones that it must refuse.
        unsafe { $call }
    }};
}
pub(crate) use call;

/// The error number of the last failed call.
pub(crate) fn last() -> Option<c_int> {
    io::Error::last_os_error().raw_os_error()
}

/// A structure of numbers and null pointers.
pub(crate) fn zeroed<T>() -> T {
    // SAFETY: zeros are a value of all structures of C that the tests use.
    unsafe { mem::zeroed() }
}

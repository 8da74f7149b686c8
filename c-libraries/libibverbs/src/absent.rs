//! Functions that are not implemented: they fail as functions of their signature do, and appear in a trace.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::errno::Errno;

/// For functions that return an error number.
pub extern "C-unwind" fn number() -> c_int {
    Errno::OPNOTSUPP.set()
}

/// For functions that return -1.
pub extern "C-unwind" fn minus_one() -> c_int {
    Errno::OPNOTSUPP.set();
    -1
}

/// For functions that return a pointer.
pub extern "C-unwind" fn null() -> *mut c_void {
    Errno::OPNOTSUPP.set();
    ptr::null_mut()
}

/// For functions that return nothing, or a number of which 0 means none.
pub extern "C-unwind" fn nothing() -> c_int {
    Errno::OPNOTSUPP.set();
    0
}

/// `ibv_post_srq_ops`, for tag matching: the first operation fails.
///
/// # Safety
/// `bad_op` is null or writable.
pub unsafe extern "C-unwind" fn post_srq_ops(
    _srq: *mut c_void,
    op: *mut c_void,
    bad_op: *mut *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    if let Some(bad_op) = unsafe { bad_op.as_mut() } {
        *bad_op = op;
    }
    number()
}

//! The verbs that are not implemented: each fails with EOPNOTSUPP in the way of its signature, and appears in a trace.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::errno::Errno;

/// Implements unsupported verbs that return an error number.
pub extern "C-unwind" fn number() -> c_int {
    Errno::OPNOTSUPP.set()
}

/// Implements unsupported verbs that return -1 and set `errno`.
pub extern "C-unwind" fn minus_one() -> c_int {
    Errno::OPNOTSUPP.set();
    -1
}

/// Implements unsupported verbs that return a pointer: returns null and sets `errno`.
pub extern "C-unwind" fn null() -> *mut c_void {
    Errno::OPNOTSUPP.set();
    ptr::null_mut()
}

/// Implements unsupported verbs that return nothing, or a count: sets `errno` and returns 0.
pub extern "C-unwind" fn nothing() -> c_int {
    Errno::OPNOTSUPP.set();
    0
}

/// Implements `ibv_post_srq_ops`, for tag matching, which is not supported: reports the first operation as the bad one.
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

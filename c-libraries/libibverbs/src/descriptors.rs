//! Protects the descriptors of the library from programs that close or replace descriptors which they have not opened, as
//! with `closefrom` and `dup2`.
//!
//! The functions here interpose those of the C library in programs that are linked with the library. A descriptor of the
//! library that was closed in this way could become another file of the program, which the library would then read and
//! write.
// Each function has the contract of the C function of its name.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use std::ffi::{c_int, c_uint};
use std::mem;

use polyverbs::emulated::{is_own_descriptor, without_own_descriptors};

use crate::errno::Errno;
use crate::kept::Next;

/// Interposes `close`: a descriptor of the library fails with EBADF, as one that is not open.
pub unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    static NEXT: Next = Next::new(c"close");
    if is_own_descriptor(descriptor) {
        Errno(libc::EBADF).set();
        return -1;
    }
    // SAFETY: the function of this name, which every C library has.
    unsafe {
        let next: unsafe extern "C" fn(c_int) -> c_int = mem::transmute(NEXT.find());
        next(descriptor)
    }
}

/// Interposes `dup2`: replacing a descriptor of the library fails with EBUSY, as if another thread were opening it.
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    static NEXT: Next = Next::new(c"dup2");
    if is_own_descriptor(to) {
        return busy();
    }
    // SAFETY: the function of this name, which every C library has.
    unsafe {
        let next: unsafe extern "C" fn(c_int, c_int) -> c_int = mem::transmute(NEXT.find());
        next(from, to)
    }
}

/// Interposes `dup3`, with the same rule as [`dup2`].
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    static NEXT: Next = Next::new(c"dup3");
    if is_own_descriptor(to) {
        return busy();
    }
    // SAFETY: as for `dup2`.
    unsafe {
        let next: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int = mem::transmute(NEXT.find());
        next(from, to, flags)
    }
}

fn busy() -> c_int {
    Errno(libc::EBUSY).set();
    -1
}

fn system_close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: it takes numbers.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as c_int }
}

/// `close_range`: the parts between the descriptors of the library.
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let parts = without_own_descriptors(first..=last);
    let mut answers = parts.map(|part| system_close_range(*part.start(), *part.end(), flags));
    answers.find(|answer| *answer != 0).unwrap_or(0)
}

/// Interposes `closefrom`, by [`close_range`].
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: the same contract.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

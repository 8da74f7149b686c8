//! Makes sure that the pages of memory that a program registers are present.
#![allow(unsafe_code)]

use std::ffi::c_void;

#[cfg(target_os = "linux")]
use rustix::mm::{Advice, madvise};
use rustix::mm::{MsyncFlags, msync};
use rustix::param::page_size;

/// Makes the operating system allocate the pages of a range, for writing or only for reading, as a kernel does that pins
/// memory for a device. Returns whether all pages are present: a part may be unmapped, protected, or beyond the end of its
/// file.
pub fn make_resident(start: *const u8, length: usize, is_written: bool) -> bool {
    let before = start.addr() % page_size();
    let Some(length) = length.checked_add(before) else {
        return false;
    };
    let start = start.wrapping_sub(before).cast::<c_void>().cast_mut();
    populate(start, length, is_written).unwrap_or_else(|| {
        // SAFETY: with this flag nothing is written; the addresses are only looked up.
        unsafe { msync(start, length, MsyncFlags::ASYNC) }.is_ok()
    })
}

/// Returns whether all pages of a range are present now; `None` if the operating system can only check mappings. Linux before 5.14
/// does not know the request and answers as for protected pages, and a sandbox may refuse the call.
#[cfg(target_os = "linux")]
fn populate(start: *mut c_void, length: usize, is_written: bool) -> Option<bool> {
    let advice = match is_written {
        true => Advice::LinuxPopulateWrite,
        false => Advice::LinuxPopulateRead,
    };
    // SAFETY: pages that exist keep their contents, and the call fails where there are none.
    let populated = unsafe { madvise(start, length, advice) };
    (populated.is_ok() || knows_advice()).then_some(populated.is_ok())
}

#[cfg(not(target_os = "linux"))]
fn populate(_start: *mut c_void, _length: usize, _is_written: bool) -> Option<bool> {
    None
}

/// Whether the operating system supports this request, which is tried with the page of a local variable.
#[cfg(target_os = "linux")]
fn knows_advice() -> bool {
    let here = 0_u8;
    let page = (&raw const here).cast::<c_void>().cast_mut();
    let page = page.wrapping_byte_sub(page.addr() % page_size());
    // SAFETY: the page is there, and keeps its contents.
    unsafe { madvise(page, page_size(), Advice::LinuxPopulateRead) }.is_ok()
}

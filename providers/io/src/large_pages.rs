//! Large pages: the engine allocates its most used memory in chunks of the size of a large page.

// `madvise` takes a pointer.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use polyverbs_engine::pool;
use rustix::mm::{Advice, madvise};

/// Makes the engine request large pages for its chunks (`MADV_HUGEPAGE`).
pub(crate) fn offer() {
    pool::use_large_pages(advise);
}

fn advise(chunk: NonNull<[u8]>) {
    // SAFETY: the engine has just allocated this memory and has not used it. The advice changes no byte of it. A refused
    // advice changes nothing.
    let _ = unsafe { madvise(chunk.as_ptr().cast(), chunk.len(), Advice::LinuxHugepage) };
}

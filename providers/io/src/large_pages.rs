//! The large pages of the system: the engine allocates its most used memory in chunks of their size.

// `madvise` takes a pointer.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use polyverbs_engine::pool;
use rustix::mm::{Advice, madvise};

/// Makes the engine's chunks use large pages, if the system gives them on request.
pub(crate) fn offer() {
    pool::use_large_pages(advise);
}

fn advise(chunk: NonNull<[u8]>) {
    // SAFETY: the engine has just allocated this memory and has not used it. The advice changes no byte of it. A refused
    // advice changes nothing.
    let _ = unsafe { madvise(chunk.as_ptr().cast(), chunk.len(), Advice::LinuxHugepage) };
}

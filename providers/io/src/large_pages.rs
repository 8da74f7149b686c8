//! The large pages that the system lends: the engine keeps what it touches most in chunks of their size.

// The advice takes a pointer.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use polyverbs_engine::pool;
use rustix::mm::{Advice, madvise};

/// Has the engine's chunks backed by large pages, where the system gives them to those that ask.
pub(crate) fn offer() {
    pool::use_large_pages(advise);
}

fn advise(chunk: NonNull<[u8]>) {
    // SAFETY: memory that the engine has just allocated and not used. The advice changes no byte of it. Refused, it
    // stays as it is.
    let _ = unsafe { madvise(chunk.as_ptr().cast(), chunk.len(), Advice::LinuxHugepage) };
}

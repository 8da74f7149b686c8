//! Descriptors that a child of a fork does not keep open.
//!
//! A child has none of its parent's threads, so nobody there answers for an address. Were its sockets open in the child, the
//! address would stay taken, and peers would take the parent for alive, when the parent has ended.
// The system calls a function back in each child, which makes system calls only.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// A descriptor whose number stands for nothing in a child of a fork.
#[derive(Debug)]
pub struct Unshared(OwnedFd);

impl Unshared {
    /// In children of forks from now on, until it is dropped.
    pub fn new(descriptor: OwnedFd) -> Self {
        NOTHING.get_or_init(|| {
            let nothing = eventfd(0, EventfdFlags::CLOEXEC).ok()?;
            // SAFETY: `replace_all` takes nothing, and is there until the process ends, or until this library is unloaded:
            // then it is called no more.
            let is_set = unsafe { libc::pthread_atfork(None, None, Some(replace_all)) } == 0;
            is_set.then_some(nothing)
        });
        if let Some((word, bit)) = place(&descriptor) {
            word.fetch_or(bit, Ordering::SeqCst);
        }
        Self(descriptor)
    }
}

impl AsFd for Unshared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        if let Some((word, bit)) = place(&self.0) {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
    }
}

fn place(descriptor: &OwnedFd) -> Option<(&'static AtomicU64, u64)> {
    let number = descriptor.as_raw_fd() as usize;
    Some((OPEN.get(number / 64)?, 1 << (number % 64)))
}

// The numbers stay taken: whoever has one in the child may use and close it.
extern "C" fn replace_all() {
    let Some(nothing) = NOTHING.get().and_then(Option::as_ref) else {
        return;
    };
    for (place, word) in OPEN.iter().enumerate() {
        let mut left = word.load(Ordering::SeqCst);
        while left != 0 {
            let number = place * 64 + left.trailing_zeros() as usize;
            left &= left - 1;
            // SAFETY: the number is that of a descriptor which is ours. Its owner finds another file there.
            unsafe { libc::dup3(nothing.as_raw_fd(), number as libc::c_int, libc::O_CLOEXEC) };
        }
    }
}

/// What a number stands for in a child; `None` where children cannot be told apart.
static NOTHING: OnceLock<Option<OwnedFd>> = OnceLock::new();
/// A bit for each number. Descriptors with greater ones are as open in a child as here.
static OPEN: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

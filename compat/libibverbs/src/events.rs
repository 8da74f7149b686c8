//! Events behind a file descriptor that a C program may wait for in any way: it reads, polls, or makes it one that does
//! not wait.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;

use crate::context::lock;
use crate::errno::Errno;

/// A queue whose descriptor is readable once for each event in it.
pub struct Events<T> {
    queue: Mutex<VecDeque<T>>,
    fd: OwnedFd,
}

impl<T> Events<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: makes a descriptor.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(Errno::last());
        }
        Ok(Self {
            queue: Mutex::default(),
            // SAFETY: just made, and nobody else's.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
        })
    }

    /// The descriptor.
    pub fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// Adds an event.
    pub fn push(&self, event: T) {
        // Who takes it back finds it counted.
        let mut queue = lock(&self.queue);
        queue.push_back(event);
        let one = 1_u64;
        // SAFETY: eight octets. The count never gets near its end.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), size_of::<u64>()) };
    }

    /// The next event: waits for it, unless the descriptor is one that does not wait.
    ///
    /// # Errors
    /// There is none and the descriptor does not wait, or a signal came.
    pub fn next(&self) -> Result<T, Errno> {
        loop {
            let mut count = 0_u64;
            // SAFETY: room for eight octets.
            let read = unsafe { libc::read(self.fd(), (&raw mut count).cast(), size_of::<u64>()) };
            if read < 0 {
                return Err(Errno::last());
            }
            // An event may have been taken back.
            if let Some(event) = lock(&self.queue).pop_front() {
                return Ok(event);
            }
        }
    }

    /// Takes back what has not been fetched.
    pub fn remove(&self, what: impl FnMut(&T) -> bool) {
        drop(self.take(what));
    }

    /// The same, for who wants them.
    pub fn take(&self, what: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut queue = lock(&self.queue);
        let (taken, left) = queue.drain(..).partition(what);
        *queue = left;
        let taken: VecDeque<T> = taken;
        drop(queue);
        for _ in &taken {
            self.forget_one();
        }
        taken.into()
    }

    /// How many of them wait.
    pub fn count(&self, what: impl FnMut(&&T) -> bool) -> usize {
        lock(&self.queue).iter().filter(what).count()
    }

    // Whoever polls is not to be told of what was taken back. Whoever reads just now has its count already.
    fn forget_one(&self) {
        let mut count = 0_u64;
        let place = libc::iovec {
            iov_base: (&raw mut count).cast(),
            iov_len: size_of::<u64>(),
        };
        // SAFETY: room for eight octets. It does not wait.
        unsafe { libc::preadv2(self.fd(), &raw const place, 1, -1, libc::RWF_NOWAIT) };
    }
}

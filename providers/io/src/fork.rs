//! Descriptors that a child of a fork does not keep open.
//!
//! A child has none of its parent's threads, so nobody there answers for an address. Were its sockets open in the child, the
//! address would stay taken, and peers would take the parent for alive, when the parent has ended.
// In a child, descriptors of other owners are replaced by their numbers.
#![allow(unsafe_code)]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use verbs_api::provider::ForkLock;

/// A descriptor whose number stands for nothing in a child of a fork.
#[derive(Debug)]
pub struct Unshared(ManuallyDrop<OwnedFd>);

impl Unshared {
    /// In children of forks from now on, until it is dropped.
    pub fn new(descriptor: OwnedFd) -> Self {
        OPEN.lock().add(descriptor)
    }

    /// Opens a descriptor with `make` and marks it, so that no fork comes between the two.
    pub(crate) fn made(make: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<Self> {
        let mut open = OPEN.lock();
        make().map(|descriptor| open.add(descriptor))
    }
}

impl AsFd for Unshared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        // A child that is forked between the two would keep the descriptor open.
        let mut open = OPEN.lock();
        if let Some((word, bit)) = open.place(&self.0) {
            *word &= !bit;
        }
        // SAFETY: nothing uses the field after this.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// The descriptors of this process that a child does not keep.
struct Open {
    /// What their numbers stand for in a child; `None` where the system has no free file.
    nothing: Option<OwnedFd>,
    /// A bit for each number. Descriptors with greater ones are as open in a child as here.
    numbers: [u64; 1024],
}

static OPEN: ForkLock<Open> = ForkLock::with_change(
    Open {
        nothing: None,
        numbers: [0; 1024],
    },
    replace_all,
);

impl Open {
    fn add(&mut self, descriptor: OwnedFd) -> Unshared {
        if self.nothing.is_none() {
            self.nothing = eventfd(0, EventfdFlags::CLOEXEC).ok();
        }
        if let Some((word, bit)) = self.place(&descriptor) {
            *word |= bit;
        }
        Unshared(ManuallyDrop::new(descriptor))
    }

    fn place(&mut self, descriptor: &OwnedFd) -> Option<(&mut u64, u64)> {
        let number = descriptor.as_raw_fd() as usize;
        Some((self.numbers.get_mut(number / 64)?, 1 << (number % 64)))
    }
}

// The numbers stay taken: the owner of one may use and close it in the child.
fn replace_all(open: &mut Open) {
    let Some(nothing) = &open.nothing else {
        return;
    };
    for (place, word) in open.numbers.iter().enumerate() {
        let mut left = *word;
        while left != 0 {
            let number = place * 64 + left.trailing_zeros() as usize;
            left &= left - 1;
            // SAFETY: the number is that of a descriptor which is ours. Its owner finds another file there.
            unsafe { libc::dup3(nothing.as_raw_fd(), number as libc::c_int, libc::O_CLOEXEC) };
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rustix::fs::{MemfdFlags, fstat, memfd_create};
    use waiting::forked_beside;

    use super::*;
    use crate::exit::tests::a_child_starts;

    /// Forks when no child of another test starts, and returns whether the child ended with `true` before an alarm ended it.
    pub(crate) fn in_a_child(body: impl FnOnce() -> bool) -> bool {
        let _starting = a_child_starts();
        waiting::in_a_child(body)
    }

    /// Whether a child that is forked while another thread calls `busy` again and again ends with `true`, each of many times.
    pub(crate) fn in_children_beside(busy: impl Fn() + Sync, body: impl Fn() -> bool) -> bool {
        forked_beside(1, busy, || in_a_child(&body))
    }

    fn made() -> Unshared {
        Unshared::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap())
    }

    #[test]
    fn a_child_has_another_file_while_threads_open_and_close_some() {
        let (kept, file) = (made(), memfd_create("", MemfdFlags::CLOEXEC).unwrap());
        let inode = |of: BorrowedFd<'_>| fstat(of).unwrap().st_ino;
        let shared = Unshared::new(file);
        let own = inode(shared.as_fd());
        let there = || inode(shared.as_fd()) != own && inode(kept.as_fd()) != own;
        assert!(in_children_beside(
            || drop(made()),
            || there() && inode(made().as_fd()) != own
        ));
        assert_eq!(inode(shared.as_fd()), own);
    }
}

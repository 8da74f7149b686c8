//! Descriptors that a child of a fork does not keep open.
//!
//! A child has none of its parent's threads, so no thread of the child answers for an address. If its sockets stayed open
//! in the child, the address would stay taken and peers would consider the parent alive after the parent has ended.
// A child replaces descriptors by their numbers while other values own them.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, iter};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::fcntl_dupfd_cloexec;
use verbs_api::provider::ForkLock;

/// An open descriptor that a child of a fork replaces by an unused event descriptor, so that the child does not keep the
/// file open.
#[derive(Debug)]
pub struct Unshared(ManuallyDrop<OwnedFd>);

impl Unshared {
    /// Opens a descriptor with `make`, which must not block, and marks it for replacement in children. One lock covers both
    /// steps, because a child that is forked between them would keep the file open.
    ///
    /// # Errors
    /// The error of `make`.
    pub fn made(make: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<Self> {
        let mut open = OPEN.lock();
        make().map(|descriptor| open.add(descriptor))
    }

    /// Opens several descriptors with `make`, which must not block, and marks them for replacement in children. Returns the
    /// value of `make` with the marked descriptors.
    ///
    /// # Errors
    /// The error of `make`.
    pub fn several<T>(
        make: impl FnOnce() -> io::Result<(T, Vec<OwnedFd>)>,
    ) -> io::Result<(T, Vec<Self>)> {
        let mut open = OPEN.lock();
        let (value, descriptors) = make()?;
        let marked = descriptors.into_iter().map(|one| open.add(one)).collect();
        Ok((value, marked))
    }
}

impl AsFd for Unshared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        // The lock covers both steps: a child that is forked between them would keep the descriptor open.
        let mut open = OPEN.lock();
        open.unmark(&self.0);
        // SAFETY: nothing uses the field after this.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// The descriptors of this process that are marked for replacement in children.
struct Open {
    /// The event descriptor by which a child replaces the marked ones; `None` if none is marked, or if the system has no
    /// free file.
    nothing: Option<OwnedFd>,
    count: usize,
}

/// A bit for each descriptor number, set while the descriptor is marked. It changes under the lock of [`OPEN`]. A child
/// keeps descriptors with greater numbers open.
static NUMBERS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Returns whether an open descriptor belongs to this library. It takes no lock, so that signal handlers may call it.
pub fn is_own_descriptor(descriptor: RawFd) -> bool {
    place(descriptor).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// The parts of a range of numbers that are not descriptors of this library, in order. It takes no lock.
pub fn without_own_descriptors(
    numbers: RangeInclusive<u32>,
) -> impl Iterator<Item = RangeInclusive<u32>> {
    let (first, last) = numbers.into_inner();
    let highest = last.min(NUMBERS.len() as u32 * 64 - 1);
    let mut next = Some(first);
    iter::from_fn(move || {
        loop {
            let start = next?;
            let own = (start..=highest).find(|&number| is_own_descriptor(number as RawFd));
            next = own.filter(|own| *own < last).map(|own| own + 1);
            match own {
                None => return Some(start..=last),
                Some(own) if own > start => return Some(start..=own - 1),
                Some(_) => {}
            }
        }
    })
}

fn place(descriptor: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(descriptor).ok()?;
    Some((NUMBERS.get(number / 64)?, 1 << (number % 64)))
}

static OPEN: ForkLock<Open> = ForkLock::with_change(
    Open {
        nothing: None,
        count: 0,
    },
    replace_all,
);

impl Open {
    fn add(&mut self, descriptor: OwnedFd) -> Unshared {
        if self.nothing.is_none() {
            let nothing = eventfd(0, EventfdFlags::CLOEXEC).ok();
            self.nothing = nothing.map(above_standard);
            self.nothing.as_ref().map(mark);
        }
        let descriptor = above_standard(descriptor);
        mark(&descriptor);
        self.count += 1;
        Unshared(ManuallyDrop::new(descriptor))
    }

    fn unmark(&mut self, descriptor: &OwnedFd) {
        clear(descriptor);
        self.count -= 1;
        if self.count == 0 {
            drop(self.nothing.take().inspect(clear));
        }
    }
}

// A program that has closed its standard streams replaces them later by `dup2`, which must not hit a descriptor of a device,
// and what it prints meanwhile must not go to a socket of a device. Keeps the number if the process has no other left.
fn above_standard(descriptor: OwnedFd) -> OwnedFd {
    const FIRST: RawFd = 3;
    if descriptor.as_raw_fd() >= FIRST {
        return descriptor;
    }
    fcntl_dupfd_cloexec(&descriptor, FIRST).unwrap_or(descriptor)
}

fn mark(descriptor: &OwnedFd) {
    if let Some((word, bit)) = place(descriptor.as_raw_fd()) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

fn clear(descriptor: &OwnedFd) {
    if let Some((word, bit)) = place(descriptor.as_raw_fd()) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

// Replaces the marked descriptors in a child. Their numbers stay in use, because the owner of one may use and close it in
// the child.
fn replace_all(open: &mut Open) {
    let Some(nothing) = &open.nothing else {
        return;
    };
    for (place, word) in NUMBERS.iter().enumerate() {
        let mut left = word.load(Ordering::Relaxed);
        while left != 0 {
            let number = place * 64 + left.trailing_zeros() as usize;
            left &= left - 1;
            let (from, to) = (nothing.as_raw_fd(), number as libc::c_int);
            // SAFETY: the number is that of a descriptor of this process. Its owner finds another file there. The function of C may
            // be one that protects the descriptors of this library.
            unsafe { libc::syscall(libc::SYS_dup3, from, to, libc::O_CLOEXEC) };
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::SocketAddr;

    use rustix::fs::{MemfdFlags, fstat, memfd_create};
    use rustix::net::getsockname;
    use test_kit::waiting::forked_beside;

    use super::*;
    use crate::exit::tests::a_child_starts;
    use crate::sockets::UdpSocket;
    use crate::sockets::udp::UdpOptions;

    /// Forks while no other test starts a child. Returns `true` if the child's `body` returned `true` before an alarm ended
    /// the child.
    pub(crate) fn in_a_child(body: impl FnOnce() -> bool) -> bool {
        let _starting = a_child_starts();
        test_kit::waiting::in_a_child(body)
    }

    /// Forks many times while another thread calls `busy` repeatedly. Returns whether `body` returned `true` in every
    /// child.
    pub(crate) fn in_children_beside(busy: impl Fn() + Sync, body: impl Fn() -> bool) -> bool {
        forked_beside(1, busy, || in_a_child(&body))
    }

    fn made() -> Unshared {
        Unshared::made(|| Ok(eventfd(0, EventfdFlags::CLOEXEC)?)).unwrap()
    }

    #[test]
    fn a_range_of_numbers_is_cut_at_own_descriptors() {
        let own = made();
        let number = own.as_fd().as_raw_fd() as u32;
        let parts = |numbers| without_own_descriptors(numbers).collect::<Vec<_>>();
        assert_eq!(parts(number..=number), []);
        assert_eq!(parts(70_000..=u32::MAX), [70_000..=u32::MAX]);
        // The system refuses an empty range.
        let (greater, less) = (70_001, 70_000);
        assert_eq!(parts(greater..=less), [greater..=less]);
        let all = parts(0..=u32::MAX);
        assert_eq!(all.last().unwrap().end(), &u32::MAX);
        assert!(all.iter().all(|part| !part.contains(&number)));
    }

    #[test]
    fn no_descriptor_takes_the_place_of_a_standard_stream() {
        assert!(in_a_child(|| {
            // SAFETY: nothing in the child uses the standard streams.
            let closed = (0..3).all(|stream| unsafe { libc::close(stream) } == 0);
            let all = [made(), made(), made(), made()];
            closed && all.iter().all(|one| one.as_fd().as_raw_fd() >= 3)
        }));
    }

    // A child that had the socket would keep the address taken.
    #[test]
    fn a_child_has_no_socket_that_a_thread_opens() {
        let address: SocketAddr = "127.0.3.71:47123".parse().unwrap();
        let open = || drop(UdpSocket::bind(address, &UdpOptions::default()));
        let is_free = || {
            (3..1000).all(|number| {
                // SAFETY: a number without a descriptor is an error of the call.
                let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
                getsockname(descriptor).map_or(true, |name| name != address.into())
            })
        };
        assert!(in_children_beside(open, is_free));
    }

    #[test]
    fn a_child_has_another_file_while_threads_open_and_close_some() {
        let (kept, file) = (made(), memfd_create("", MemfdFlags::CLOEXEC).unwrap());
        let inode = |of: BorrowedFd<'_>| fstat(of).unwrap().st_ino;
        let shared = Unshared::made(|| Ok(file)).unwrap();
        let own = inode(shared.as_fd());
        let there = || inode(shared.as_fd()) != own && inode(kept.as_fd()) != own;
        assert!(in_children_beside(
            || drop(made()),
            || there() && inode(made().as_fd()) != own
        ));
        assert_eq!(inode(shared.as_fd()), own);
    }
}

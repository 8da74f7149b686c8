//! Events behind a file descriptor that a C program may wait for in any way: it reads, polls, or makes it one that does
//! not wait.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;

use crate::errno::Errno;
use crate::lock::lock;

/// A queue whose descriptor is readable once for each event in it, and never writable, as a kernel's are: programs wait for
/// both (InfiniStore). It is the end of a pipe that has one octet for each event.
pub struct Events<T> {
    queue: Mutex<Queue<T>>,
    readable: OwnedFd,
    writable: OwnedFd,
}

struct Queue<T> {
    events: VecDeque<T>,
    /// How many of them the pipe had no room for.
    untold: usize,
}

impl<T> Events<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn new() -> Result<Self, Errno> {
        let mut ends = [-1; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
            return Err(Errno::last());
        }
        // SAFETY: just made, and nobody else's.
        let [readable, writable] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: a flag of a descriptor that is our own.
        if unsafe { libc::fcntl(writable.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } < 0 {
            return Err(Errno::last());
        }
        Ok(Self {
            queue: Mutex::new(Queue {
                events: VecDeque::new(),
                untold: 0,
            }),
            readable,
            writable,
        })
    }

    /// The descriptor.
    pub fn fd(&self) -> c_int {
        self.readable.as_raw_fd()
    }

    /// Adds an event.
    pub fn push(&self, event: T) {
        // Who takes it back finds it told.
        let mut queue = lock(&self.queue);
        queue.events.push_back(event);
        queue.untold += 1;
        self.tell(&mut queue);
    }

    /// The next event: waits for it, unless the descriptor is one that does not wait.
    ///
    /// # Errors
    /// There is none and the descriptor does not wait, or a signal came.
    pub fn next(&self) -> Result<T, Errno> {
        loop {
            let mut octet = 0_u8;
            // SAFETY: room for an octet.
            let read = unsafe { libc::read(self.fd(), (&raw mut octet).cast(), 1) };
            if read < 0 {
                return Err(Errno::last());
            }
            let mut queue = lock(&self.queue);
            // An event may have been taken back.
            if let Some(event) = queue.events.pop_front() {
                self.tell(&mut queue);
                return Ok(event);
            }
        }
    }

    fn tell(&self, queue: &mut Queue<T>) {
        let octet = 0_u8;
        while queue.untold > 0 {
            // SAFETY: an octet. It does not wait.
            let written =
                unsafe { libc::write(self.writable.as_raw_fd(), (&raw const octet).cast(), 1) };
            if written < 1 {
                return;
            }
            queue.untold -= 1;
        }
    }

    /// Takes back what has not been fetched.
    pub fn remove(&self, what: impl FnMut(&T) -> bool) {
        drop(self.take(what));
    }

    /// The same, for who wants them.
    pub fn take(&self, what: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut queue = lock(&self.queue);
        let (taken, left) = queue.events.drain(..).partition(what);
        queue.events = left;
        let taken: VecDeque<T> = taken;
        for _ in &taken {
            match queue.untold {
                0 => self.forget_one(),
                _ => queue.untold -= 1,
            }
        }
        drop(queue);
        taken.into()
    }

    /// How many of them wait.
    pub fn count(&self, what: impl FnMut(&&T) -> bool) -> usize {
        lock(&self.queue).events.iter().filter(what).count()
    }

    // Whoever polls is not to be told of what was taken back. Whoever reads just now has its octet already, so that this must
    // not wait, although the program may have left the descriptor as one that does.
    fn forget_one(&self) {
        // Not kept open: what the process has does not grow with what it once did.
        if let Ok(nowhere) = File::options().write(true).open("/dev/null") {
            let (from, to) = (self.fd(), nowhere.as_raw_fd());
            let (here, there) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: between descriptors that are open; no offsets.
            unsafe { libc::splice(from, here, to, there, 1, libc::SPLICE_F_NONBLOCK) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READABLE: i16 = libc::POLLIN;

    fn polled(events: &Events<usize>) -> i16 {
        let mut entry = libc::pollfd {
            fd: events.fd(),
            events: libc::POLLIN | libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: one entry, and no waiting.
        unsafe { libc::poll(&raw mut entry, 1, 0) };
        entry.revents
    }

    #[test]
    fn the_descriptor_is_readable_for_each_event_and_never_writable() {
        let events = Events::new().unwrap();
        assert_eq!(polled(&events), 0);
        (0..3).for_each(|event| events.push(event));
        assert_eq!(polled(&events), READABLE);
        assert_eq!(events.next(), Ok(0));
        assert_eq!(events.take(|&event| event == 1), [1]);
        assert_eq!(polled(&events), READABLE);
        assert_eq!(events.next(), Ok(2));
        assert_eq!(polled(&events), 0);
    }

    #[test]
    fn more_events_than_the_pipe_has_room_for_are_all_told() {
        const COUNT: usize = 70_000;
        let events = Events::new().unwrap();
        (0..COUNT).for_each(|event| events.push(event));
        events.remove(|&event| event % 2 == 1);
        for event in (0..COUNT).step_by(2) {
            assert_eq!(polled(&events), READABLE);
            assert_eq!(events.next(), Ok(event));
        }
        assert_eq!(polled(&events), 0);
    }
}

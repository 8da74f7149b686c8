//! Queues of events that a C program fetches, each with a file descriptor that the program may read, poll or make
//! nonblocking.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

use polyverbs::emulated::Unshared;
use verbs_api::provider::{Mutex, errno_of};

use crate::cancel::sleep_in;
use crate::errno::Errno;

/// A queue of events with a descriptor that is readable while there are events in it. The descriptor is never writable, as
/// a kernel's is not, because programs poll for both (InfiniStore). It is the read end of a pipe that holds one byte for
/// each event.
pub struct Events<T> {
    queue: Mutex<Queue<T>>,
    readable: Unshared,
    writable: Unshared,
}

fn raw(descriptor: &Unshared) -> c_int {
    descriptor.as_fd().as_raw_fd()
}

struct Queue<T> {
    events: VecDeque<T>,
    /// The number of events in the queue whose byte did not fit into the pipe yet.
    untold: usize,
}

impl<T> Events<T> {
    /// An empty queue with a new pipe.
    ///
    /// # Errors
    /// The process cannot open further files.
    pub fn new() -> Result<Self, Errno> {
        let made = Unshared::several(|| {
            let (readable, writable) = io::pipe()?;
            Ok(((), vec![readable.into(), writable.into()]))
        });
        let (_, made) = made.map_err(|error| Errno(errno_of(&error)))?;
        let [readable, writable] = made.try_into().map_err(|_| Errno::NOMEM)?;
        // SAFETY: a flag of a descriptor that is our own.
        if unsafe { libc::fcntl(raw(&writable), libc::F_SETFL, libc::O_NONBLOCK) } < 0 {
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

    /// The descriptor that is readable while there are events in the queue.
    pub fn fd(&self) -> c_int {
        raw(&self.readable)
    }

    /// Adds an event to the queue, which makes the descriptor readable.
    pub fn push(&self, event: T) {
        // The lock is held for both steps, so that an event that is removed again has its byte in the pipe.
        let mut queue = self.queue.lock();
        queue.events.push_back(event);
        queue.untold += 1;
        self.tell(&mut queue);
    }

    /// Takes the next event from the queue. Waits for one, unless the descriptor is nonblocking.
    ///
    /// # Errors
    /// There is no event and the descriptor is nonblocking, a signal arrived, or the thread was cancelled.
    pub fn next(&self) -> Result<T, Errno> {
        loop {
            let mut byte = 0_u8;
            let room = (&raw mut byte).expose_provenance();
            // SAFETY: room for a byte.
            unsafe {
                sleep_in(
                    libc::read as *const c_void,
                    [self.fd() as usize, room, 1, 0],
                )
            }?;
            let mut queue = self.queue.lock();
            // The event of this byte may have been removed.
            if let Some(event) = queue.events.pop_front() {
                self.tell(&mut queue);
                return Ok(event);
            }
        }
    }

    fn tell(&self, queue: &mut Queue<T>) {
        let byte = 0_u8;
        while queue.untold > 0 {
            // The function `write` of the C library could cancel the thread, which may be one that polls.
            // SAFETY: a byte. It does not wait.
            let written =
                unsafe { libc::syscall(libc::SYS_write, raw(&self.writable), &raw const byte, 1) };
            if written < 1 {
                return;
            }
            queue.untold -= 1;
        }
    }

    /// Removes from the queue the events for which `what` returns true.
    pub fn remove(&self, what: impl FnMut(&T) -> bool) {
        drop(self.take(what));
    }

    /// Removes from the queue the events for which `what` returns true, and returns them.
    pub fn take(&self, what: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut queue = self.queue.lock();
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

    /// The number of events in the queue for which `what` returns true.
    pub fn count(&self, what: impl FnMut(&&T) -> bool) -> usize {
        self.queue.lock().events.iter().filter(what).count()
    }

    // Removes the byte of an event that was removed from the queue, so that the descriptor does not report it. A concurrent
    // reader may already have read the byte, so this read must not block, although the program may have made the descriptor
    // blocking.
    fn forget_one(&self) {
        // Opened only for this call, so that the process does not accumulate descriptors.
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
    fn events_beyond_the_capacity_of_the_pipe_are_delivered() {
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

//! Polling of several rsockets and other files at the same time (`rpoll`).

use std::ffi::c_short;
use std::time::{Duration, Instant};

use libc::pollfd;
use polyverbs_libibverbs::errno::Errno;

use super::stream::Ready;
use super::table::{self, Socket};
use super::waiting::{Deadline, SLICE, SPIN, Waker, poll};

/// The entries of an `rpoll`, separated into rsockets and other files.
struct Polled<'a> {
    entries: &'a mut [pollfd],
    sockets: Vec<(usize, Socket)>,
    // The entries that are other files, and their indices among all entries.
    files: Vec<pollfd>,
    places: Vec<usize>,
}

fn events_of(ready: Ready, wanted: c_short) -> c_short {
    let mut events = 0;
    for (is_ready, event) in [
        (ready.read, libc::POLLIN | libc::POLLRDNORM),
        (ready.write, libc::POLLOUT | libc::POLLWRNORM),
    ] {
        if is_ready {
            events |= event & wanted;
        }
    }
    for (is_ready, event) in [(ready.error, libc::POLLERR), (ready.hang_up, libc::POLLHUP)] {
        if is_ready {
            events |= event;
        }
    }
    events
}

impl<'a> Polled<'a> {
    fn new(entries: &'a mut [pollfd]) -> Self {
        let mut sockets = Vec::new();
        let mut files = Vec::new();
        let mut places = Vec::new();
        for (place, entry) in entries.iter_mut().enumerate() {
            entry.revents = 0;
            match table::find(entry.fd) {
                Some(socket) => sockets.push((place, socket)),
                None => {
                    files.push(*entry);
                    places.push(place);
                }
            }
        }
        Self {
            entries,
            sockets,
            files,
            places,
        }
    }

    // Polls the rsockets. Returns how many are ready. With `arm`, changes wake the waiting thread.
    fn look_at_sockets(&mut self, arm: bool) -> usize {
        let mut count = 0;
        for (place, socket) in &self.sockets {
            let entry = &mut self.entries[*place];
            entry.revents = events_of(socket.ready(arm), entry.events);
            count += usize::from(entry.revents != 0);
        }
        count
    }

    // Polls the other files, for up to `time`. Returns how many are ready.
    fn look_at_files(&mut self, time: Duration) -> Result<usize, Errno> {
        if self.files.is_empty() {
            return Ok(0);
        }
        poll(&mut self.files, time)?;
        let mut count = 0;
        for (place, file) in self.places.iter().zip(&self.files) {
            self.entries[*place].revents = file.revents;
            count += usize::from(file.revents != 0);
        }
        Ok(count)
    }

    fn look(&mut self, arm: bool) -> Result<usize, Errno> {
        Ok(self.look_at_sockets(arm) + self.look_at_files(Duration::ZERO)?)
    }

    fn sleep(&mut self, waker: &Waker, deadline: Deadline) -> Result<usize, Errno> {
        loop {
            waker.clear();
            let found = self.look(true)?;
            let Some(left) = deadline.left(SLICE).filter(|_| found == 0) else {
                return Ok(found);
            };
            // The waker of this thread and the UDP sockets of rsockets are polled too; they have no index among the
            // program's entries.
            let own = self.files.len();
            let fds = self.sockets.iter().filter_map(|(_, socket)| socket.file());
            let others = std::iter::once(waker.fd()).chain(fds).map(|fd| pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
            self.files.extend(others);
            let slept = self.look_at_files(left);
            self.files.truncate(own);
            slept?;
            self.sockets.iter().for_each(|(_, socket)| socket.probe());
        }
    }
}

/// Waits until an entry is ready or the deadline has passed. Returns the number of ready entries.
///
/// # Errors
/// A signal arrived; or `EBADF`: this process has inherited one of the sockets from its parent.
pub(crate) fn wait(entries: &mut [pollfd], deadline: Deadline) -> Result<usize, Errno> {
    let mut polled = Polled::new(entries);
    let is_parents = |(_, socket): &(usize, Socket)| socket.waiting().is_parents();
    if polled.sockets.iter().any(is_parents) {
        return Err(Errno(libc::EBADF));
    }
    let began = Instant::now();
    loop {
        let found = polled.look(false)?;
        let is_over = deadline.left(SLICE).is_none();
        if found > 0 || is_over {
            return Ok(found);
        }
        if polled.sockets.is_empty() || began.elapsed() >= SPIN {
            break;
        }
        std::hint::spin_loop();
    }
    let waker = Waker::new()?;
    let add = |(_, socket): &(usize, Socket)| socket.waiting().waiters.add(&waker);
    polled.sockets.iter().for_each(add);
    let found = polled.sleep(&waker, deadline);
    for (_, socket) in &polled.sockets {
        socket.waiting().waiters.remove(&waker);
    }
    found
}

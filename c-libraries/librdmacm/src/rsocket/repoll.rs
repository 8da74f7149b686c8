//! Sets of rsockets and other files that a program waits for (`repoll_create`, `repoll_ctl`, `repoll_wait`), as with epoll.
//!
//! All events are level-triggered: an edge-triggered entry (`EPOLLET`) is reported as long as it is ready. `EPOLLONESHOT` is
//! as epoll's.

use std::collections::HashMap;
use std::ffi::{c_int, c_short};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use libc::pollfd;
use polyverbs_libibverbs::errno::Errno;
use verbs_api::provider::{ForkLock, Mutex};

use super::waiting::{Deadline, Waiters, Waker, event_fd};
use super::{poll, table};

// A child of a fork may close the descriptors of the sets that it has inherited.
static SETS: ForkLock<Option<HashMap<c_int, Set>>> = ForkLock::new(None);

/// A set, and its descriptor, which the system assigns so that no other file gets its number.
struct Set {
    interests: Arc<Interests>,
    fd: OwnedFd,
}

/// The files of a set.
#[derive(Default)]
struct Interests {
    list: Mutex<List>,
    waiters: Waiters,
}

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    /// Where the next wait begins to report, so that each ready file has its turn if there are more than a call returns.
    first: usize,
    is_closed: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    fd: c_int,
    /// The events as epoll names them, with its flags.
    wanted: u32,
    data: u64,
}

/// A ready file: its events, and the data that the program has given for it.
pub(crate) struct Report {
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// A change of a set.
pub(crate) enum Change {
    Add(u32, u64),
    Modify(u32, u64),
    Remove,
}

const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
// The bits of events, which have the same values for `poll`; flags are above.
const EVENTS: u32 = 0x3fff;

/// Creates a set. Returns its descriptor.
///
/// # Errors
/// The process cannot open further files.
pub(crate) fn create(close_on_exec: bool) -> Result<c_int, Errno> {
    let fd = event_fd(if close_on_exec { libc::EFD_CLOEXEC } else { 0 })?;
    let number = fd.as_raw_fd();
    let set = Set {
        interests: Arc::default(),
        fd,
    };
    let before = SETS.lock().get_or_insert_default().insert(number, set);
    if let Some(Set { interests, fd }) = before {
        // The program has closed the old descriptor by the system's `close`; the number is that of the new one.
        std::mem::forget(fd);
        interests.close();
    }
    Ok(number)
}

fn is_open(fd: c_int) -> bool {
    // `poll` finds out without changing the file.
    let mut one = [pollfd {
        fd,
        events: 0,
        revents: 0,
    }];
    let asked = super::waiting::poll(&mut one, Duration::ZERO);
    asked.is_ok() && one[0].revents & libc::POLLNVAL == 0
}

fn find(set: c_int) -> Result<Arc<Interests>, Errno> {
    let all = SETS.lock();
    let found = all.as_ref().and_then(|all| all.get(&set));
    let found = found.map(|set| Arc::clone(&set.interests));
    drop(all);
    found.ok_or_else(|| match set >= 0 && is_open(set) {
        true => Errno::INVAL,
        false => Errno(libc::EBADF),
    })
}

/// Closes a set, and ends the calls that wait for it. Returns whether there was one with this descriptor.
pub(crate) fn close(fd: c_int) -> bool {
    let set = SETS.lock().as_mut().and_then(|all| all.remove(&fd));
    set.inspect(|set| set.interests.close()).is_some()
}

/// Changes the entry of a file in a set.
///
/// # Errors
/// `EBADF`: one of the descriptors is closed. `EINVAL`: the first is no set, or the second is one. `EEXIST`, `ENOENT`: the file is in
/// the set already, or is not.
pub(crate) fn change(set: c_int, fd: c_int, change: Change) -> Result<(), Errno> {
    let interests = find(set)?;
    let is_set = SETS
        .lock()
        .as_ref()
        .is_some_and(|all| all.contains_key(&fd));
    let mut list = interests.list.lock();
    let place = list.entries.iter().position(|entry| entry.fd == fd);
    match (change, place) {
        (Change::Remove, Some(place)) => _ = list.entries.swap_remove(place),
        (Change::Add(..), Some(_)) => return Err(Errno(libc::EEXIST)),
        _ if fd < 0 || table::find(fd).is_none() && !is_open(fd) => {
            return Err(Errno(libc::EBADF));
        }
        _ if is_set => return Err(Errno::INVAL),
        (Change::Remove | Change::Modify(..), None) => return Err(Errno(libc::ENOENT)),
        (Change::Add(wanted, data), None) => list.entries.push(Entry { fd, wanted, data }),
        (Change::Modify(wanted, data), Some(place)) => {
            list.entries[place] = Entry { fd, wanted, data };
        }
    }
    drop(list);
    interests.waiters.wake();
    Ok(())
}

/// Waits until a file of a set is ready or the deadline has passed. Returns at most `most` ready files.
///
/// # Errors
/// `EBADF`: the set is closed. `EINVAL`: the descriptor is no set. A signal arrived.
pub(crate) fn wait(set: c_int, most: usize, deadline: Deadline) -> Result<Vec<Report>, Errno> {
    let interests = find(set)?;
    let found = interests.look(most, None, Deadline::after(Duration::ZERO))?;
    if !found.is_empty() || deadline.left(Duration::MAX).is_none() {
        return Ok(found);
    }
    let waker = Waker::new()?;
    interests.waiters.add(&waker);
    let found = interests.sleep(most, &waker, deadline);
    interests.waiters.remove(&waker);
    found
}

impl Interests {
    fn close(&self) {
        self.list.lock().is_closed = true;
        self.waiters.wake();
    }

    fn sleep(&self, most: usize, waker: &Waker, deadline: Deadline) -> Result<Vec<Report>, Errno> {
        loop {
            waker.clear();
            let found = self.look(most, Some(waker), deadline)?;
            // A change of the set ends the poll early.
            if !found.is_empty() || deadline.left(Duration::MAX).is_none() {
                return Ok(found);
            }
        }
    }

    /// Polls the files of the set, and the waker, until the deadline.
    fn look(
        &self,
        most: usize,
        waker: Option<&Waker>,
        deadline: Deadline,
    ) -> Result<Vec<Report>, Errno> {
        let list = self.list.lock();
        if list.is_closed {
            return Err(Errno(libc::EBADF));
        }
        let polled = |fd, events| pollfd {
            fd,
            events,
            revents: 0,
        };
        let entries = list.entries.iter().filter(|entry| entry.wanted != 0);
        let entries = entries.map(|entry| polled(entry.fd, (entry.wanted & EVENTS) as c_short));
        let own = waker.map(|waker| polled(waker.fd(), libc::POLLIN));
        let mut files: Vec<_> = entries.chain(own).collect();
        drop(list);
        poll::wait(&mut files, deadline)?;
        Ok(self.collect(most, &files))
    }

    /// The ready files of the set among those that were polled, each for its entry of this moment. A file that the program has
    /// closed leaves the set.
    fn collect(&self, most: usize, polled: &[pollfd]) -> Vec<Report> {
        let ready: HashMap<c_int, c_short> = polled
            .iter()
            .filter(|file| file.revents != 0)
            .map(|file| (file.fd, file.revents))
            .collect();
        let is_closed = |fd| {
            ready
                .get(&fd)
                .is_some_and(|found| found & libc::POLLNVAL != 0)
        };
        let mut list = self.list.lock();
        list.entries.retain(|entry| !is_closed(entry.fd));
        let (count, first) = (list.entries.len(), list.first);
        let mut found = Vec::new();
        for turn in 0..count {
            let place = (first + turn) % count;
            let entry = &mut list.entries[place];
            let Some(&revents) = ready.get(&entry.fd).filter(|_| entry.wanted != 0) else {
                continue;
            };
            found.push(Report {
                events: u32::from(revents as u16),
                data: entry.data,
            });
            if entry.wanted & ONE_SHOT != 0 {
                entry.wanted = 0;
            }
            if found.len() == most {
                list.first = place + 1;
                break;
            }
        }
        found
    }
}

//! Names that one process holds, and connections by which other processes notice that the holder has ended.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, write};
use rustix::net::{Shutdown, shutdown};
use verbs_api::provider::start_thread;

use super::{Admission, Connection, Inbox, holder, listening};
use crate::fork::Unshared;

/// A name that no other process can take while this value exists. The holder accepts no connections to it.
#[derive(Debug)]
pub struct Name {
    listener: Unshared,
}

impl Name {
    /// Takes a name. A child that was just forked may still hold a name that its parent has given up, so this waits for
    /// that child, but no longer than `patience`.
    ///
    /// # Errors
    /// Another process holds the name ([`AddrInUse`](io::ErrorKind::AddrInUse)).
    pub fn take(name: &str, patience: Duration) -> io::Result<Self> {
        let begun = Instant::now();
        loop {
            let taken = Unshared::made(|| listening(name));
            let is_in_use =
                matches!(&taken, Err(error) if error.kind() == io::ErrorKind::AddrInUse);
            if !is_in_use || !is_given_up(name) || begun.elapsed() >= patience {
                return taken.map(|listener| Self { listener });
            }
            thread::yield_now();
        }
    }

    /// Returns whether a process of this process's user or of root holds a name. Also returns `true` if so many connections
    /// wait for the holder that its user cannot be determined.
    pub fn is_taken(name: &str) -> bool {
        match Connection::to(name, &Admission::default()) {
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }

    /// Returns the ID of the process that holds a name, whatever its user. `None` if no process does, or if so many
    /// connections wait for the holder that it cannot be determined.
    pub fn holder(name: &str) -> Option<u32> {
        holder(name).map(|holder| holder.pid.unsigned_abs())
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        // A child that was just forked may have the listener open until its fork handler has run. The shutdown marks the
        // name as given up.
        let _ = shutdown(&self.listener, Shutdown::Both);
    }
}

/// Returns whether a name is still bound although no process listens at it.
fn is_given_up(name: &str) -> bool {
    let connection = Connection::to(name, &Admission::default());
    connection.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Holds a name, to which [witnesses](Witness) connect, until this value is dropped or the process ends. A thread closes
/// connections of other users, so that they cannot fill the backlog.
#[derive(Debug)]
pub struct Presence {
    stop: Arc<Unshared>,
}

impl Presence {
    /// Takes a name and starts the thread that accepts connections to it.
    ///
    /// # Errors
    /// Another process holds the name, or there is no descriptor or no thread left.
    pub fn named(name: &str) -> io::Result<Self> {
        let inbox = Inbox::named(name)?;
        let make = || Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let stop = Arc::new(Unshared::made(make)?);
        let stopped = Arc::clone(&stop);
        start_thread("presence", move || attend(&inbox, &stopped))?;
        Ok(Self { stop })
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        // The write cannot fail: the counter of the eventfd is 0.
        let _ = write(&*self.stop, &1_u64.to_ne_bytes());
    }
}

fn attend(inbox: &Inbox, stop: &Unshared) {
    let (admission, strangers) = (Admission::default(), AtomicU64::new(0));
    loop {
        let mut both = [inbox.as_fd(), stop.as_fd()]
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        match poll(&mut both, None) {
            Ok(_) if both[1].revents().is_empty() => {}
            Err(Errno::INTR) => continue,
            _ => return,
        }
        // Witnesses send nothing; `attend` accepts them and closes those of other users.
        if inbox
            .attend(&admission, &strangers, &mut |_, _| {})
            .is_err()
        {
            return;
        }
    }
}

/// A connection to the holder of a [`Presence`]. The kernel closes it when the holder ends.
#[derive(Debug)]
pub struct Witness(Connection);

impl Witness {
    /// Connects to the process that holds a name.
    ///
    /// # Errors
    /// No process holds the name, its holder belongs to another user, or too many connections wait for the holder.
    pub fn of(name: &str) -> io::Result<Self> {
        Connection::to(name, &Admission::default()).map(Self)
    }

    /// Blocks until the process that holds the name has ended, or until another thread calls [`release`](Self::release).
    pub fn wait(&self) {
        let forever = Duration::from_secs(u64::from(u32::MAX));
        while !self.0.has_gone() {
            if Connection::wait(std::slice::from_ref(&self.0), forever).is_err() {
                return;
            }
        }
    }

    /// Makes [`wait`](Self::wait) return in another thread.
    pub fn release(&self) {
        // An error means that the connection has ended already.
        let _ = shutdown(&self.0.0, Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use test_kit::waiting::{PATIENCE, until_some};

    use super::super::BACKLOG;
    use super::*;
    use crate::exit::tests::no_child_starts;
    use crate::fork::tests::in_children_beside;

    #[test]
    fn a_name_is_free_again_while_children_are_forked() {
        let name = format!("polyverbs-presence-test/{}", std::process::id());
        let take = || drop(Name::take(&name, PATIENCE).unwrap());
        assert!(in_children_beside(take, || true));
    }

    #[test]
    fn a_name_that_is_held_is_refused() {
        let name = format!("polyverbs-presence-test/held/{}", std::process::id());
        let _held = Name::take(&name, PATIENCE).unwrap();
        let refused = Name::take(&name, PATIENCE).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        assert!(Name::is_taken(&name));
        assert_eq!(Name::holder(&name), Some(std::process::id()));
    }

    // The holder of a `Name` accepts nothing, and closed connections stay in its backlog.
    #[test]
    fn calls_return_at_once_if_the_backlog_of_a_name_is_full() {
        let name = format!("polyverbs-presence-test/full/{}", std::process::id());
        let held = Name::take(&name, PATIENCE).unwrap();
        let full = until_refused(&name);
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert!(Name::is_taken(&name));
        assert_eq!(Name::holder(&name), None);
        let refused = Name::take(&name, PATIENCE).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        drop(held);
        Name::take(&name, PATIENCE).unwrap();
    }

    fn until_refused(name: &str) -> io::Error {
        let mut connections = std::iter::repeat_with(|| Witness::of(name));
        connections.find_map(Result::err).unwrap()
    }

    // Twice as many connections as the backlog has room for: without the thread that accepts them, no witness connects
    // after them.
    #[test]
    fn a_witness_connects_after_many_connections() {
        let name = format!("polyverbs-presence-test/many/{}", std::process::id());
        let _open = no_child_starts();
        let presence = Presence::named(&name).unwrap();
        for _ in 0..2 * BACKLOG {
            if let Err(full) = Witness::of(&name) {
                assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
            }
        }
        let witness = until_some(|| Witness::of(&name).ok());
        drop(presence);
        witness.wait();
        let gone = until_refused(&name);
        assert_eq!(gone.kind(), io::ErrorKind::ConnectionRefused);
    }
}

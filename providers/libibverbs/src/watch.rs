//! The thread of the process that sees what the devices have to tell: asynchronous events, and notices of completion queues.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use verbs_api::VerbError;
use verbs_api::provider::{PerProcess, start_thread};

use crate::lock::lock;

/// What is behind a descriptor that can be read.
pub(crate) trait Watched: Send + Sync {
    /// It can be. Called on the thread, with no lock held that others wait for.
    fn is_ready(&self);
}

/// A descriptor that is looked at, until [`stop`](Self::stop).
pub(crate) struct Watch {
    watcher: Arc<Watcher>,
    token: u64,
}

struct Watcher {
    epoll: OwnedFd,
    watched: Mutex<Known>,
    /// Held while something is told.
    telling: Mutex<()>,
}

#[derive(Default)]
struct Known {
    by_token: HashMap<u64, Arc<dyn Watched>>,
    next: u64,
    thread: Option<ThreadId>,
}

/// Tells the program. Where its handler panics, which the panic hook has reported, the thread goes on.
pub(crate) fn guarded(tell: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(tell));
}

// A child of a fork starts its own: the thread of its parent's does not exist there.
static WATCHER: PerProcess<Mutex<Option<Arc<Watcher>>>> = PerProcess::new(Mutex::default);

fn os(verb: &'static str) -> impl Fn(Errno) -> VerbError {
    move |errno| VerbError::Os {
        verb,
        errno: errno.raw_os_error(),
    }
}

impl Watch {
    /// Tells of each time that it becomes readable.
    ///
    /// # Errors
    /// The process is out of descriptors or threads.
    pub(crate) fn edges(fd: BorrowedFd<'_>, what: Arc<dyn Watched>) -> Result<Self, VerbError> {
        Self::new(fd, what, EventFlags::IN | EventFlags::ET)
    }

    /// Tells again and again, as long as it is readable.
    ///
    /// # Errors
    /// The process is out of descriptors or threads.
    pub(crate) fn level(fd: BorrowedFd<'_>, what: Arc<dyn Watched>) -> Result<Self, VerbError> {
        Self::new(fd, what, EventFlags::IN)
    }

    fn new(
        fd: BorrowedFd<'_>,
        what: Arc<dyn Watched>,
        when: EventFlags,
    ) -> Result<Self, VerbError> {
        let watcher = Watcher::of_process()?;
        let mut known = lock(&watcher.watched);
        let token = known.next;
        known.next += 1;
        known.by_token.insert(token, what);
        drop(known);
        let added = epoll::add(&watcher.epoll, fd, EventData::new_u64(token), when);
        if let Err(errno) = added {
            lock(&watcher.watched).by_token.remove(&token);
            return Err(os("epoll_ctl")(errno));
        }
        Ok(Self { watcher, token })
    }

    /// Ends it, for the descriptor that it was begun with. Nothing is told any more when this returns; called by what is told
    /// itself, from its return on.
    pub(crate) fn stop(self, fd: BorrowedFd<'_>) {
        // It was added, so it can be taken out.
        let _ = epoll::delete(&self.watcher.epoll, fd);
        let mut known = lock(&self.watcher.watched);
        let stopped = known.by_token.remove(&self.token);
        let is_teller = known.thread == Some(thread::current().id());
        drop((known, stopped));
        if !is_teller {
            drop(lock(&self.watcher.telling));
        }
    }
}

impl Watcher {
    /// The one of the process, started by the first who needs it.
    fn of_process() -> Result<Arc<Self>, VerbError> {
        let mut known = lock(&WATCHER);
        if let Some(watcher) = &*known {
            return Ok(Arc::clone(watcher));
        }
        let watcher = Arc::new(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(os("epoll_create"))?,
            watched: Mutex::default(),
            telling: Mutex::default(),
        });
        let watching = Arc::clone(&watcher);
        let watch = move || while watching.round().is_ok() {};
        let thread = start_thread("libibverbs-events", watch);
        let thread = thread.map_err(|error| VerbError::os("thread", error))?;
        lock(&watcher.watched).thread = Some(thread.thread().id());
        *known = Some(Arc::clone(&watcher));
        Ok(watcher)
    }

    /// Waits for something, and tells it.
    fn round(&self) -> Result<(), Errno> {
        let mut events = [const { std::mem::MaybeUninit::<Event>::uninit() }; 32];
        let ready = match epoll::wait(&self.epoll, &mut events, None) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        for event in ready {
            let _telling = lock(&self.telling);
            let token = event.data.u64();
            let watched = lock(&self.watched).by_token.get(&token).cloned();
            if let Some(watched) = watched {
                guarded(|| watched.is_ready());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{self, Sender};
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    struct Notifies(Sender<()>);

    impl Watched for Notifies {
        fn is_ready(&self) {
            self.0.send(()).unwrap_or_default();
        }
    }

    #[test]
    fn each_edge_is_told_once_and_nothing_after_the_stop() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let (sender, told) = mpsc::channel();
        let watch = Watch::edges(near.as_fd(), Arc::new(Notifies(sender))).unwrap();
        for byte in 0..2 {
            far.write_all(&[byte]).unwrap();
            told.recv_timeout(PATIENCE).unwrap();
            near.read_exact(&mut [0]).unwrap();
        }
        watch.stop(near.as_fd());
        far.write_all(&[2]).unwrap();
        // What is told is gone with the watch, and nobody else has the sender.
        assert_eq!(told.recv(), Err(mpsc::RecvError));
    }

    struct Panics(Sender<()>);

    impl Watched for Panics {
        fn is_ready(&self) {
            self.0.send(()).unwrap_or_default();
            panic!("a handler of the program");
        }
    }

    #[test]
    fn a_panic_of_what_is_told_does_not_end_the_thread() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let (sender, told) = mpsc::channel();
        let watch = Watch::edges(near.as_fd(), Arc::new(Panics(sender))).unwrap();
        for byte in 0..2 {
            far.write_all(&[byte]).unwrap();
            told.recv_timeout(PATIENCE).unwrap();
        }
        watch.stop(near.as_fd());
    }
}

//! The thread of the process that waits for reports of devices: asynchronous events, and notifications of completion queues.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, ThreadId};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use verbs_api::VerbError;
use verbs_api::provider::{Mutex, PerProcess, start_thread};

/// The handler of a descriptor that the watching thread polls.
pub(crate) trait Watched: Send + Sync {
    /// Called on the watching thread when the descriptor is readable. The thread holds no lock that other threads wait for.
    fn is_ready(&self);
}

/// A descriptor that the watching thread polls until [`stop`](Self::stop).
pub(crate) struct Watch {
    watcher: Arc<Watcher>,
    token: u64,
}

struct Watcher {
    epoll: OwnedFd,
    watched: Mutex<Known>,
    /// Held while the watching thread runs a handler.
    telling: Mutex<()>,
}

#[derive(Default)]
struct Known {
    by_token: HashMap<u64, Arc<dyn Watched>>,
    next: u64,
    thread: Option<ThreadId>,
}

/// Calls a handler of the program. If the handler panics, which the panic hook has reported, the calling thread continues.
pub(crate) fn guarded(tell: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(tell));
}

// A child of a fork starts its own thread, because that of its parent does not exist there.
static WATCHER: PerProcess<Mutex<Option<Arc<Watcher>>>> = PerProcess::new(Mutex::default);

fn os(verb: &'static str) -> impl Fn(Errno) -> VerbError {
    move |errno| VerbError::Os {
        verb,
        errno: errno.raw_os_error(),
    }
}

impl Watch {
    /// Polls the descriptor edge-triggered: the handler is called each time it becomes readable.
    ///
    /// # Errors
    /// The process is out of descriptors or threads.
    pub(crate) fn edges(fd: BorrowedFd<'_>, what: Arc<dyn Watched>) -> Result<Self, VerbError> {
        Self::new(fd, what, EventFlags::IN | EventFlags::ET)
    }

    /// Polls the descriptor level-triggered: the handler is called repeatedly while it is readable.
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
        let mut known = watcher.watched.lock();
        let token = known.next;
        known.next += 1;
        known.by_token.insert(token, what);
        drop(known);
        let added = epoll::add(&watcher.epoll, fd, EventData::new_u64(token), when);
        if let Err(errno) = added {
            watcher.watched.lock().by_token.remove(&token);
            return Err(os("epoll_ctl")(errno));
        }
        Ok(Self { watcher, token })
    }

    /// Stops polling the descriptor. The handler does not run after this has returned or, if the handler itself calls this,
    /// after the handler has returned.
    pub(crate) fn stop(self, fd: BorrowedFd<'_>) {
        // The descriptor was added, so removing it cannot fail.
        let _ = epoll::delete(&self.watcher.epoll, fd);
        let mut known = self.watcher.watched.lock();
        let stopped = known.by_token.remove(&self.token);
        let is_teller = known.thread == Some(thread::current().id());
        drop((known, stopped));
        if !is_teller {
            drop(self.watcher.telling.lock());
        }
    }
}

impl Watcher {
    /// Returns the watching thread of the process, which the first call starts.
    fn of_process() -> Result<Arc<Self>, VerbError> {
        let mut known = WATCHER.lock();
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
        watcher.watched.lock().thread = Some(thread.thread().id());
        *known = Some(Arc::clone(&watcher));
        Ok(watcher)
    }

    /// Waits until descriptors are readable, and runs their handlers.
    fn round(&self) -> Result<(), Errno> {
        let mut events = [const { std::mem::MaybeUninit::<Event>::uninit() }; 32];
        let ready = match epoll::wait(&self.epoll, &mut events, None) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        for event in ready {
            let _telling = self.telling.lock();
            let token = event.data.u64();
            let watched = self.watched.lock().by_token.get(&token).cloned();
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
    fn each_edge_is_reported_once_and_none_after_the_stop() {
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
        // The handler, which has the only sender, is dropped with the watch.
        assert_eq!(told.recv(), Err(mpsc::RecvError));
    }

    struct Panics(Sender<()>);

    impl Watched for Panics {
        fn is_ready(&self) {
            self.0.send(()).unwrap_or_default();
            panic!("a panic of the program's handler");
        }
    }

    #[test]
    fn a_panic_of_a_handler_does_not_end_the_thread() {
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

//! Who waits for a socket: threads, tasks, a callback, and whoever has its descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

/// See the [module](self). A wake-up costs a look where nobody waits.
#[derive(Default)]
pub(crate) struct Watch {
    waiting: AtomicUsize,
    state: Mutex<Waiting>,
    changed: Condvar,
    /// Readable since the first wake-up after it was cleared.
    event: OnceLock<OwnedFd>,
}

#[derive(Default)]
struct Waiting {
    generation: u64,
    threads: usize,
    wakers: Vec<Waker>,
    told: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// A thread that waits.
pub(crate) struct Waiter<'w>(&'w Watch);

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody waits, or wants to be told.
    pub(crate) fn is_watched(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// What is waited for may be there.
    pub(crate) fn wake(&self) {
        if !self.is_watched() {
            return;
        }
        let mut state = self.lock();
        state.generation += 1;
        let wakers = std::mem::take(&mut state.wakers);
        let (told, threads) = (state.told.clone(), state.threads);
        self.waiting.fetch_sub(wakers.len(), Ordering::SeqCst);
        drop(state);
        // It is a system call, also where nobody waits.
        if threads > 0 {
            self.changed.notify_all();
        }
        wakers.into_iter().for_each(Waker::wake);
        self.show();
        if let Some(told) = told {
            told();
        }
    }

    fn show(&self) {
        if let Some(event) = self.event.get() {
            // It is full only where it is readable for long.
            let _ = write(event, &1_u64.to_ne_bytes());
        }
    }

    /// A descriptor that is readable at first, and since the first wake-up after it was [cleared](Self::clear).
    ///
    /// # Errors
    /// The process has no more files.
    pub(crate) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        if self.event.get().is_none() {
            let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            if self.event.set(made).is_ok() {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                self.show();
            }
        }
        Ok(self.event.get().expect("it was made").as_fd())
    }

    /// Whether there is a descriptor, which is not readable any more.
    pub(crate) fn clear(&self) -> bool {
        let event = self.event.get();
        event.is_some_and(|event| {
            // It may not have been readable.
            let _ = read(event, &mut [0; 8]);
            true
        })
    }

    /// Calls this at each wake-up from now on, in the place of what was called before.
    pub(crate) fn tell(&self, told: Option<Arc<dyn Fn() + Send + Sync>>) {
        let mut state = self.lock();
        let now = usize::from(told.is_some());
        let before = usize::from(state.told.is_some());
        state.told = told;
        self.waiting.fetch_add(now, Ordering::SeqCst);
        self.waiting.fetch_sub(before, Ordering::SeqCst);
    }

    /// A task to be woken once.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut state = self.lock();
        if !state.wakers.iter().any(|other| other.will_wake(waker)) {
            state.wakers.push(waker.clone());
            self.waiting.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// From here on no wake-up is missed: look whether there is something to wait for, then [`Waiter::wait`].
    pub(crate) fn waiter(&self) -> Waiter<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiter(self)
    }
}

impl Waiter<'_> {
    /// To be asked for before the look.
    pub(crate) fn generation(&self) -> u64 {
        self.0.lock().generation
    }

    /// Waits for a wake-up after this generation; false if there was none by then.
    pub(crate) fn wait(&self, generation: u64, deadline: Option<Instant>) -> bool {
        let mut state = self.0.lock();
        state.threads += 1;
        let mut is_over = false;
        while state.generation == generation && !is_over {
            let Some(deadline) = deadline else {
                let waited = self.0.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            is_over = left.is_zero();
        }
        state.threads -= 1;
        state.generation != generation
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

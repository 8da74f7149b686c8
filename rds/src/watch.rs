//! The waiters of a socket: threads, tasks, a callback, and users of its descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};
use std::task::Waker;
use std::time::Instant;

use polyverbs::provider::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

/// The waiters of a socket: see the [module](self). Without waiters a wake-up costs one atomic load.
#[derive(Default)]
pub(crate) struct Watch {
    waiting: AtomicUsize,
    state: Mutex<Waiting>,
    changed: Condvar,
    /// Readable from the first wake-up after it was cleared.
    event: OnceLock<OwnedFd>,
}

#[derive(Default)]
struct Waiting {
    generation: u64,
    threads: usize,
    wakers: Vec<Waker>,
    told: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// A thread that waits. While it exists, wake-ups are recorded.
pub(crate) struct Waiter<'w>(&'w Watch);

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock()
    }

    /// Whether there is a waiter.
    pub(crate) fn is_watched(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Wakes all waiters, because the condition that they wait for may hold.
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
        // The call is skipped without waiting threads, because it is a system call even then.
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
            // The write fails if the counter is full; then the descriptor is readable in any case.
            let _ = write(event, &1_u64.to_ne_bytes());
        }
    }

    /// A descriptor that is readable at first, and from the first wake-up after each [`clear`](Self::clear).
    ///
    /// # Errors
    /// The process cannot open further files.
    pub(crate) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        if self.event.get().is_none() {
            let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            if self.event.set(made).is_ok() {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                self.show();
            }
        }
        Ok(self.event.get().expect("it was created above").as_fd())
    }

    /// Makes the descriptor unreadable until the next wake-up. Returns whether there is a descriptor.
    pub(crate) fn clear(&self) -> bool {
        let event = self.event.get();
        event.is_some_and(|event| {
            // The read fails if the descriptor was not readable.
            let _ = read(event, &mut [0; 8]);
            true
        })
    }

    /// Calls `told` at each wake-up from now on, instead of the previous callback.
    pub(crate) fn tell(&self, told: Option<Arc<dyn Fn() + Send + Sync>>) {
        let mut state = self.lock();
        let now = usize::from(told.is_some());
        let before = usize::from(state.told.is_some());
        state.told = told;
        self.waiting.fetch_add(now, Ordering::SeqCst);
        self.waiting.fetch_sub(before, Ordering::SeqCst);
    }

    /// Wakes a task at the next wake-up, once.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut state = self.lock();
        if !state.wakers.iter().any(|other| other.will_wake(waker)) {
            state.wakers.push(waker.clone());
            self.waiting.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Announces a thread that will wait, so that it misses no wake-up: check the condition next, then call [`Waiter::wait`].
    pub(crate) fn waiter(&self) -> Waiter<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiter(self)
    }
}

impl Waiter<'_> {
    /// The number of wake-ups so far: to be read before the check of the condition.
    pub(crate) fn generation(&self) -> u64 {
        self.0.lock().generation
    }

    /// Waits for a wake-up after this generation. Returns false if there was none by the deadline.
    pub(crate) fn wait(&self, generation: u64, deadline: Option<Instant>) -> bool {
        let mut state = self.0.lock();
        state.threads += 1;
        let mut is_over = false;
        while state.generation == generation && !is_over {
            let Some(deadline) = deadline else {
                state = self.0.changed.wait(state);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            state = self.0.changed.wait_timeout(state, left);
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

//! The waiters of one socket: threads and tasks that wait for a change of its readiness, its callback, and its descriptor
//! for `poll`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};
use std::task::Waker;
use std::time::Instant;

use polyverbs::provider::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

/// The waiters of one socket: threads and tasks that wait for a change of its readiness, its callback, and its descriptor
/// for `poll`. Without waiters, a wake-up costs one atomic load.
#[derive(Default)]
pub(crate) struct Watch {
    waiting: AtomicUsize,
    state: Mutex<Waiting>,
    changed: Condvar,
    /// An eventfd, made on demand, that is readable from the first wake-up after it was last cleared.
    event: OnceLock<OwnedFd>,
}

#[derive(Default)]
struct Waiting {
    generation: u64,
    threads: usize,
    wakers: Vec<Waker>,
    told: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// Registers a thread that is about to wait. While this exists, each wake-up is counted, so that the thread misses none.
pub(crate) struct Waiter<'w>(&'w Watch);

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock()
    }

    /// Whether the socket has a waiter of any kind.
    pub(crate) fn is_watched(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Wakes all waiters of the socket, because its readiness may have changed.
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
        // `notify_all` is a system call even if no thread waits, so it is skipped then.
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
            // The write fails only if the counter of the eventfd is full, in which case it is readable anyway.
            let _ = write(event, &1_u64.to_ne_bytes());
        }
    }

    /// A descriptor that is readable at first, and again from the first wake-up after each [`clear`](Self::clear).
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

    /// Makes the descriptor unreadable until the next wake-up. Returns false if the socket has no descriptor.
    pub(crate) fn clear(&self) -> bool {
        let event = self.event.get();
        event.is_some_and(|event| {
            // The read fails if the descriptor was not readable.
            let _ = read(event, &mut [0; 8]);
            true
        })
    }

    /// Sets the callback that each later wake-up calls, in place of the previous one; `None` removes it.
    pub(crate) fn tell(&self, told: Option<Arc<dyn Fn() + Send + Sync>>) {
        let mut state = self.lock();
        let now = usize::from(told.is_some());
        let before = usize::from(state.told.is_some());
        state.told = told;
        self.waiting.fetch_add(now, Ordering::SeqCst);
        self.waiting.fetch_sub(before, Ordering::SeqCst);
    }

    /// Registers a task, which the next wake-up wakes once.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut state = self.lock();
        if !state.wakers.iter().any(|other| other.will_wake(waker)) {
            state.wakers.push(waker.clone());
            self.waiting.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Registers the calling thread as a waiter, so that it misses no wake-up: the caller checks the condition next, then
    /// calls [`Waiter::wait`].
    pub(crate) fn waiter(&self) -> Waiter<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiter(self)
    }
}

impl Waiter<'_> {
    /// The number of wake-ups so far. The caller reads it before it checks the condition that it waits for.
    pub(crate) fn generation(&self) -> u64 {
        self.0.lock().generation
    }

    /// Waits for a wake-up after the one with this number. Returns false if there was none by the deadline; without a
    /// deadline it waits as long as it takes.
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

//! Blocking on a future, and sets of wakers.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::in_handler;
use crate::error::VerbError;
use crate::lock::{Condvar, Mutex};

/// A thread that sleeps until a waker wakes it. It does not use the standard library's `park`, which fails in a thread that
/// is ending.
#[derive(Default)]
struct Sleeper {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Sleeper {
    /// Sleeps until a waker wakes this thread, but for `time` at most if it is given.
    fn sleep(&self, time: Option<Duration>) {
        let locked = self.is_woken.lock();
        let asleep = |is_woken: &mut bool| !*is_woken;
        let mut is_woken = match time {
            None => self.woken.wait_while(locked, asleep),
            Some(time) => self.woken.wait_timeout_while(locked, time, asleep),
        };
        *is_woken = false;
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock() = true;
        self.woken.notify_one();
    }
}

/// Polls `future` on this thread until it is ready. In a handler it returns `WouldDeadlock` at once instead.
pub(crate) fn block_on<T, E: From<VerbError>>(
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    block_until(future, None).map(|result| result.expect("there is no time limit"))
}

/// Polls `future` like [`block_on`], but for `time` at most; returns `None` after that. The future is polled at least once.
pub(crate) fn block_on_for<T, E: From<VerbError>>(
    future: impl Future<Output = Result<T, E>>,
    time: Duration,
) -> Result<Option<T>, E> {
    block_until(future, Instant::now().checked_add(time))
}

// Without an end it waits until there is a result.
fn block_until<T, E: From<VerbError>>(
    future: impl Future<Output = Result<T, E>>,
    end: Option<Instant>,
) -> Result<Option<T>, E> {
    if in_handler() {
        return Err(VerbError::WouldDeadlock.into());
    }
    let sleeper = Arc::new(Sleeper::default());
    let waker = Waker::from(Arc::clone(&sleeper));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return result.map(Some);
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(None);
        }
        sleeper.sleep(left);
    }
}

/// The wakers of tasks that wait for the same event. All are woken, because a task that alone was woken might have been
/// dropped.
#[derive(Default)]
pub(crate) struct Waiters {
    wakers: Mutex<Vec<Waker>>,
}

impl Waiters {
    pub(crate) fn add(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    pub(crate) fn wake(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().for_each(Waker::wake);
    }
}

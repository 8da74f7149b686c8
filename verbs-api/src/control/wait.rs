//! Blocking on a future, and sets of wakers.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::in_handler;
use crate::error::VerbError;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Drives `future` in this thread; in a handler it fails with `WouldDeadlock` instead.
pub(crate) fn block_on<T, E: From<VerbError>>(
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    if in_handler() {
        return Err(VerbError::WouldDeadlock.into());
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return result;
        }
        thread::park();
    }
}

/// The same for at most `time`; `None` after that. The future is polled at least once.
pub(crate) fn block_on_for<T, E: From<VerbError>>(
    future: impl Future<Output = Result<T, E>>,
    time: Duration,
) -> Result<Option<T>, E> {
    if in_handler() {
        return Err(VerbError::WouldDeadlock.into());
    }
    let end = Instant::now().checked_add(time);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return result.map(Some);
        }
        match end.map(|end| end.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => return Ok(None),
            Some(left) => thread::park_timeout(left),
            None => thread::park(),
        }
    }
}

/// Tasks that wait for the same event. All are woken, because a single one might have been dropped.
#[derive(Default)]
pub(crate) struct Waiters {
    wakers: Mutex<Vec<Waker>>,
}

impl Waiters {
    pub(crate) fn add(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    pub(crate) fn wake(&self) {
        let wakers =
            std::mem::take(&mut *self.wakers.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }
}

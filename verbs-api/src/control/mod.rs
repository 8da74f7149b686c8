//! Control verbs: started, then waited for, awaited, or given a handler.

mod handler;
mod help;
mod reply;
mod wait;

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

pub use handler::{handler_scope, in_handler, run_handler};
pub use help::{Help, want_help};
pub use reply::Reply;
pub(crate) use wait::{Waiters, block_on, block_on_for};

use crate::error::VerbError;
use crate::lock::{Condvar, Mutex};

type Handler<T, E> = Box<dyn FnOnce(Result<T, E>) + Send>;
type Unclaimed<T, E> = Box<dyn Fn(Result<T, E>) + Send + Sync>;

/// A control verb that has been started.
///
/// The verb proceeds whatever happens to this value. [`wait`](Self::wait) for it, `.await` it, or
/// give it a handler with [`on_done`](Self::on_done). Dropped, it cancels nothing: the verb is
/// carried out, and an object that it makes is destroyed like any other whose last handle is dropped.
///
/// ```
/// use verbs_api::Started;
/// let started: Started<u32> = Started::ready(Ok(7));
/// assert_eq!(started.wait(), Ok(7));
/// ```
#[must_use = "the verb is carried out, but its result is lost"]
pub struct Started<T, E = VerbError> {
    inner: Inner<T, E>,
}

enum Inner<T, E> {
    Ready(Option<Result<T, E>>),
    Pending(Arc<Shared<T, E>>),
}

struct Shared<T, E> {
    state: Mutex<State<T, E>>,
    done: Condvar,
    unclaimed: Option<Unclaimed<T, E>>,
}

enum State<T, E> {
    Pending {
        waker: Option<Waker>,
        handler: Option<Handler<T, E>>,
    },
    Done(Result<T, E>),
    // The result was handed out or dropped.
    Over,
    // Still in flight, and its result will be dropped.
    Abandoned,
}

impl<T, E> Started<T, E> {
    /// Creates a verb that has ended with `result` already.
    pub const fn ready(result: Result<T, E>) -> Self {
        Self {
            inner: Inner::Ready(Some(result)),
        }
    }

    /// Creates a verb that ends when the [`Completer`] reports its outcome.
    pub fn pending() -> (Self, Completer<T, E>) {
        Self::pending_with(None)
    }

    /// Creates a verb like [`pending`](Self::pending), except that a result which is never taken goes to `unclaimed`. That
    /// runs on the thread that ends the verb or drops this value, with no lock of this module held.
    pub fn pending_or(
        unclaimed: impl Fn(Result<T, E>) + Send + Sync + 'static,
    ) -> (Self, Completer<T, E>) {
        Self::pending_with(Some(Box::new(unclaimed)))
    }

    fn pending_with(unclaimed: Option<Unclaimed<T, E>>) -> (Self, Completer<T, E>) {
        let state = Mutex::new(State::Pending {
            waker: None,
            handler: None,
        });
        let shared = Arc::new(Shared {
            state,
            done: Condvar::new(),
            unclaimed,
        });
        (
            Self {
                inner: Inner::Pending(Arc::clone(&shared)),
            },
            Completer { shared },
        )
    }

    /// Whether the verb has ended, successfully or not.
    pub fn is_done(&self) -> bool {
        match &self.inner {
            Inner::Ready(_) => true,
            Inner::Pending(shared) => !matches!(*shared.lock(), State::Pending { .. }),
        }
    }

    /// Calls `handler` with the outcome: at once if the verb has ended, else on the thread that ends it, with no lock held.
    /// The handler may start every verb, but wait for none.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use verbs_api::Started;
    /// let (started, completer) = Started::<u32>::pending(); // a provider has the completer
    /// let (sender, outcome) = mpsc::channel();
    /// started.on_done(move |result| sender.send(result).expect("the other end is there"));
    /// completer.complete(Ok(7));
    /// assert_eq!(outcome.recv()?, Ok(7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_done(mut self, handler: impl FnOnce(Result<T, E>) + Send + 'static)
    where
        T: 'static,
        E: 'static,
    {
        let result = match &mut self.inner {
            Inner::Ready(result) => result.take(),
            Inner::Pending(shared) => {
                let mut state = shared.lock();
                match &mut *state {
                    State::Pending { handler: slot, .. } => {
                        *slot = Some(Box::new(handler));
                        return;
                    }
                    _ => state.take_result(),
                }
            }
        };
        if let Some(result) = result {
            run_handler(move || handler(result));
        }
    }
}

impl<T, E: From<VerbError>> Started<T, E> {
    /// Blocks this thread until the verb has ended, and returns its result.
    ///
    /// # Errors
    /// The error of the verb. In a handler always [`VerbError::WouldDeadlock`]; the verb proceeds nevertheless.
    pub fn wait(mut self) -> Result<T, E> {
        if !in_handler() && !self.is_done() {
            help::help_until(&|| self.is_done());
        }
        loop {
            if let Some(outcome) = self.wait_for(Duration::MAX)? {
                return Ok(outcome);
            }
        }
    }

    /// Blocks this thread like [`wait`](Self::wait), but for `time` at most; `None` if the verb has not ended by then. The
    /// verb proceeds, and can be waited for again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use verbs_api::{Started, VerbError};
    /// let (mut started, completer) = Started::<u32>::pending();
    /// assert_eq!(started.wait_for(Duration::ZERO)?, None);
    /// completer.complete(Ok(7));
    /// assert_eq!(started.wait_for(Duration::ZERO)?, Some(7));
    /// # Ok::<(), VerbError>(())
    /// ```
    ///
    /// # Errors
    /// As for [`wait`](Self::wait); [`VerbError::InvalidArgument`] if the outcome was returned before.
    pub fn wait_for(&mut self, time: Duration) -> Result<Option<T>, E> {
        if in_handler() {
            return Err(VerbError::WouldDeadlock.into());
        }
        let result = match &mut self.inner {
            Inner::Ready(result) => result.take(),
            Inner::Pending(shared) => {
                let mut state = shared.wait_for(time);
                if let State::Pending { .. } = *state {
                    return Ok(None);
                }
                state.take_result()
            }
        };
        match result {
            Some(result) => result.map(Some),
            None => Err(VerbError::argument("started", "its outcome was handed out before").into()),
        }
    }
}

impl<T, E> Shared<T, E> {
    fn lock(&self) -> MutexGuard<'_, State<T, E>> {
        self.state.lock()
    }

    // Locked when the verb has ended or `time` has passed.
    fn wait_for(&self, time: Duration) -> MutexGuard<'_, State<T, E>> {
        let is_pending = |state: &mut State<T, E>| matches!(state, State::Pending { .. });
        self.done.wait_timeout_while(self.lock(), time, is_pending)
    }

    fn unclaimed(&self, result: Result<T, E>) {
        if let Some(unclaimed) = &self.unclaimed {
            unclaimed(result);
        }
    }
}

impl<T, E> State<T, E> {
    fn take_result(&mut self) -> Option<Result<T, E>> {
        match mem::replace(self, Self::Over) {
            Self::Done(result) => Some(result),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl<T, E> Future for Started<T, E> {
    type Output = Result<T, E>;

    /// # Panics
    /// The future is polled again after it has returned its result.
    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let result = match &mut self.inner {
            Inner::Ready(result) => result.take(),
            Inner::Pending(shared) => {
                let mut state = shared.lock();
                if let State::Pending { waker, .. } = &mut *state {
                    match waker {
                        Some(waker) => waker.clone_from(cx.waker()),
                        None => *waker = Some(cx.waker().clone()),
                    }
                    return Poll::Pending;
                }
                state.take_result()
            }
        };
        Poll::Ready(result.expect("polled after it was ready"))
    }
}

// Nothing in it is ever pinned.
impl<T, E> Unpin for Started<T, E> {}

impl<T, E> Drop for Started<T, E> {
    fn drop(&mut self) {
        let Inner::Pending(shared) = &self.inner else {
            return;
        };
        let mut state = shared.lock();
        let unwanted = match &*state {
            State::Pending { handler: None, .. } => mem::replace(&mut *state, State::Abandoned),
            State::Done(_) => mem::replace(&mut *state, State::Over),
            _ => return,
        };
        drop(state);
        if let State::Done(result) = unwanted {
            shared.unclaimed(result);
        }
    }
}

impl<T, E> fmt::Debug for Started<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Started")
            .field("done", &self.is_done())
            .finish()
    }
}

/// The counterpart of a [`Started`] verb: the provider reports the verb's outcome with it. Only the first outcome counts,
/// later ones are dropped.
pub struct Completer<T, E = VerbError> {
    shared: Arc<Shared<T, E>>,
}

impl<T, E> Completer<T, E> {
    /// Whether a [`Started`] still waits for the outcome, and none has been reported yet.
    pub fn is_wanted(&self) -> bool {
        matches!(*self.shared.lock(), State::Pending { .. })
    }

    /// Reports the outcome of the verb, and runs the handler if there is one. Call it with no lock held.
    ///
    /// Returns whether this was the first outcome.
    pub fn complete(&self, result: Result<T, E>) -> bool
    where
        T: 'static,
        E: 'static,
    {
        let mut state = self.shared.lock();
        match mem::replace(&mut *state, State::Over) {
            State::Pending {
                waker,
                handler: None,
            } => {
                *state = State::Done(result);
                drop(state);
                self.shared.done.notify_all();
                if let Some(waker) = waker {
                    waker.wake();
                }
                true
            }
            State::Pending {
                handler: Some(handler),
                ..
            } => {
                drop(state);
                run_handler(move || handler(result));
                true
            }
            State::Abandoned => {
                drop(state);
                self.shared.unclaimed(result);
                true
            }
            other => {
                *state = other;
                drop(state);
                drop(result);
                false
            }
        }
    }
}

impl<T, E> Clone for Completer<T, E> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

#[cfg(test)]
mod tests;

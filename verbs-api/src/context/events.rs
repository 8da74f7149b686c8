//! Waiting for the asynchronous events of a context.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use futures_core::Stream;

use crate::control::{block_on, block_on_for};
use crate::error::VerbError;
use crate::lifecycle::{AsyncEvent, ContextShared};

/// The next asynchronous event of a context: await it, or [`wait`](Self::wait) for it.
#[must_use = "nothing is fetched unless this is awaited or waited for"]
pub struct NextEvent<'c> {
    pub(super) shared: &'c ContextShared,
}

impl NextEvent<'_> {
    /// Blocks this thread until an event arrives.
    ///
    /// # Errors
    /// `WouldDeadlock` in a handler; `DeviceRemoved` if the device was removed and every event was fetched.
    pub fn wait(self) -> Result<AsyncEvent, VerbError> {
        block_on(self)
    }

    /// Blocks this thread like [`wait`](Self::wait), but for `time` at most; `None` if no event arrives by then.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_for(self, time: Duration) -> Result<Option<AsyncEvent>, VerbError> {
        block_on_for(self, time)
    }
}

impl Future for NextEvent<'_> {
    type Output = Result<AsyncEvent, VerbError>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        self.shared.next_event(cx.waker())
    }
}

/// The asynchronous events of a context as a stream, which ends when the device was removed and every event was fetched.
#[must_use = "nothing is fetched unless this is polled"]
pub struct Events<'c> {
    pub(super) next: NextEvent<'c>,
}

impl Stream for Events<'_> {
    type Item = AsyncEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.next).poll(cx).map(Result::ok)
    }
}

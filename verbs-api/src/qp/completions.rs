//! The completions of one queue pair, as a stream.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use futures_core::Stream;

use super::Qp;
use crate::cq::CqObject;
use crate::error::VerbError;
use crate::lifecycle::Handle;
use crate::wc::Completion;

/// The completions of one queue pair's receives and other requests on its receive completion queue, as a stream.
/// Completions of requests that were submitted go to their futures instead.
///
/// It ends after its first error: that of the queue, as for [`Cq::poll`](crate::Cq::poll), or [`VerbError::Canceled`] if
/// the queue pair was reset or destroyed. Dropping it loses no completion: those that it has not returned can be polled
/// from the queue.
#[must_use = "completions that the program does not take fill the queue"]
pub struct QpCompletions {
    cq: Arc<CqObject>,
    qp: Qp,
    is_over: bool,
}

impl Qp {
    /// Returns the completions of this queue pair from now on, as a stream of its own: many queue pairs can share one
    /// completion queue and one shared receive queue, and yet each be served by its own task.
    ///
    /// From then on polls of the completion queue return only completions of other queue pairs, and `wr_id`s with the top
    /// bit set are reserved for the library on this queue, as after [`submit`](Self::submit). The end of the connection
    /// does not end the stream: a queue pair with a shared receive queue has no receives that would be flushed.
    ///
    /// ```no_run
    /// # async fn example(qp: verbs_api::Qp, srq: verbs_api::Srq) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut calls = qp.completions()?;
    /// loop {
    ///     let mut call = calls.next().await?.success()?;
    ///     println!("{:?}", call.buffer());
    ///     for buffer in call.take_buffers() {
    ///         srq.post_receive(buffer)?;
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// The queue pair has such a stream already, or was destroyed.
    pub fn completions(&self) -> Result<QpCompletions, VerbError> {
        self.object().node.check_live()?;
        let cq = self.queues().recv.upgrade();
        let cq = cq.ok_or_else(|| self.object().node.dead())?;
        if !cq
            .extra
            .router_or_new()
            .open_stream(self.id(), self.qp_num())
        {
            let reason = "has a stream of its completions already: drop that one first";
            return Err(VerbError::argument("qp", reason));
        }
        Ok(QpCompletions {
            cq,
            qp: self.clone(),
            is_over: false,
        })
    }
}

impl QpCompletions {
    /// Returns the next completion. Dropping the future loses none.
    ///
    /// # Errors
    /// The error that ends the stream; [`VerbError::Canceled`] in later calls.
    pub async fn next(&mut self) -> Result<Completion, VerbError> {
        let next = poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await;
        next.unwrap_or(Err(VerbError::Canceled))
    }
}

impl Stream for QpCompletions {
    type Item = Result<Completion, VerbError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let router = self.cq.extra.router_or_new();
        let polled = router.poll_stream(&self.cq, self.qp.qp_num(), cx.waker());
        if let Poll::Ready(Err(_)) = polled {
            self.is_over = true;
        }
        polled.map(Some)
    }
}

impl Drop for QpCompletions {
    fn drop(&mut self) {
        let router = self.cq.extra.router_or_new();
        router.close_stream(&self.cq, self.qp.qp_num());
    }
}

impl fmt::Debug for QpCompletions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QpCompletions({:?})", self.qp)
    }
}

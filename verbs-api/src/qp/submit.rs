//! Requests as futures of their completions.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use thiserror::Error;

use super::Qp;
use crate::control::{block_on, block_on_for};
use crate::cq::CqObject;
use crate::cq::router::Ticket;
use crate::error::VerbError;
use crate::lifecycle::Handle;
use crate::portable::Portable;
use crate::post::PostError;
use crate::wc::{Completion, CompletionError};
use crate::wr::requests::Operation;
use crate::wr::{ReceiveRequest, SendFlags, WorkRequest};

/// Why a submitted request did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The request completed with another status than success.
    #[error(transparent)]
    Failed(#[from] CompletionError),
    /// The request was not posted.
    #[error(transparent)]
    Refused(#[from] PostError),
    /// No completion will arrive: the device was removed, the completion queue overran or was destroyed, or
    /// ([`VerbError::Canceled`]) the queue pair was reset or destroyed. The request may or may not have been executed. Or
    /// this thread must not wait, because it runs a handler.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

/// The future of a submitted request's completion: await it, or [`wait`](Self::wait) for it.
///
/// Dropping it does not cancel the request: the completion is discarded when it arrives, and its buffers return to their
/// pools.
#[must_use = "the request is carried out, but nobody learns how it ended"]
pub struct Submitted {
    state: State,
}

enum State {
    // The queue pair lives until its requests have ended.
    Posted {
        cq: Arc<CqObject>,
        ticket: Ticket,
        _qp: Qp,
    },
    Refused(PostError),
    Over,
}

impl Qp {
    /// Posts one request and returns the future of its completion, which contains the request's `wr_id`.
    ///
    /// The request is always signaled. After the first call, `wr_id`s with the top bit set are reserved for the library on
    /// the completion queue of this queue pair; apart from that, other requests can be posted and their completions polled
    /// as before.
    ///
    /// ```no_run
    /// # async fn example(qp: &verbs_api::Qp, region: &verbs_api::Mr, peer: verbs_api::RemoteAddress)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::wr;
    /// let written = qp.submit(wr::Write::new(region.sge(0, 64)?, peer));
    /// let read = qp.submit(wr::Read::new(region.sge(64, 64)?, peer));
    /// written.await?;
    /// println!("{} bytes were read", read.await?.byte_len);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The future returns them: [`SubmitError`]. A request that was refused is dropped, and its buffers return to their
    /// pools.
    pub fn submit<'a>(&self, request: impl Into<WorkRequest<'a>>) -> Submitted {
        let mut request = request.into();
        self.submit_to(&self.queues().send, request.common().wr_id, |ticket| {
            let common = request.common_mut();
            common.wr_id = ticket.wr_id();
            common.flags |= SendFlags::SIGNALED;
            self.post_in_place(&mut request)
        })
    }

    /// Posts a portable operation and returns the future of its one completion, which contains the operation's `wr_id`.
    ///
    /// Otherwise it is like [`submit`](Self::submit).
    ///
    /// ```no_run
    /// # async fn example(qp: &verbs_api::Qp, access: &verbs_api::portable::RemoteAccess)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// qp.submit_portable(access.register()).await?; // from here on the key is good
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The future returns them: [`SubmitError`].
    pub fn submit_portable(&self, operation: impl Portable) -> Submitted {
        let lowered = match self.lower(&operation) {
            Ok(lowered) => lowered,
            Err(error) => {
                let state = State::Refused(error);
                return Submitted { state };
            }
        };
        let wr_id = lowered.first.common().wr_id;
        self.submit_to(&self.queues().send, wr_id, |ticket| {
            self.post_lowered(lowered.with_wr_id(ticket.wr_id()))
        })
    }

    /// Posts one receive and returns the future of its completion, which contains the request's `wr_id`. A buffer of a
    /// [`BufferPool`](crate::BufferPool) converts into a request, and is returned with the completion.
    ///
    /// Otherwise it is like [`submit`](Self::submit). Receives of a shared receive queue have no such future, because each
    /// completes on the completion queue of the queue pair that takes it.
    ///
    /// ```no_run
    /// # async fn example(qp: &verbs_api::Qp, pool: &verbs_api::BufferPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let message = qp.receive(pool.take().ok_or("every buffer is taken")?).await?;
    /// println!("{:?}", message.buffer());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The future returns them: [`SubmitError`].
    pub fn receive<'a>(&self, request: impl Into<ReceiveRequest<'a>>) -> Submitted {
        let mut request = request.into();
        self.submit_to(&self.queues().recv, request.wr_id, |ticket| {
            request.wr_id = ticket.wr_id();
            self.post_receive_in_place(&mut request)
        })
    }

    fn submit_to(
        &self,
        queue: &Weak<CqObject>,
        wr_id: u64,
        post: impl FnOnce(Ticket) -> Result<(), PostError>,
    ) -> Submitted {
        let state = match queue.upgrade() {
            Some(cq) => self.submit_routed(cq, wr_id, post),
            // The queue pair is gone, and its completion queue too.
            None => State::Refused(self.object().node.dead_reason().into()),
        };
        Submitted { state }
    }

    fn submit_routed(
        &self,
        cq: Arc<CqObject>,
        wr_id: u64,
        post: impl FnOnce(Ticket) -> Result<(), PostError>,
    ) -> State {
        let router = cq.extra.router_or_new();
        let ticket = router.open(self.id(), wr_id);
        if let Err(error) = post(ticket) {
            router.withdraw(ticket);
            return State::Refused(error);
        }
        State::Posted {
            cq,
            ticket,
            _qp: self.clone(),
        }
    }
}

impl Submitted {
    /// Blocks this thread until the request has completed.
    ///
    /// # Errors
    /// The error of the request; [`VerbError::WouldDeadlock`] in a handler.
    pub fn wait(self) -> Result<Completion, SubmitError> {
        block_on(self)
    }

    /// Blocks this thread like [`wait`](Self::wait), but for `time` at most; `None` if the request has not completed by
    /// then. The request proceeds, and can be waited for again.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_for(&mut self, time: Duration) -> Result<Option<Completion>, SubmitError> {
        block_on_for(self, time)
    }
}

impl Future for Submitted {
    type Output = Result<Completion, SubmitError>;

    /// # Panics
    /// The future is polled again after it has returned its result.
    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let outcome = match &self.state {
            State::Posted { cq, ticket, .. } => {
                let router = cq.extra.router_or_new();
                match router.poll(cq, *ticket, cx.waker()) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(outcome) => outcome.map_err(SubmitError::from),
                }
            }
            State::Refused(error) => Err((*error).into()),
            State::Over => panic!("polled after it was ready"),
        };
        self.state = State::Over;
        Poll::Ready(outcome.and_then(|completion| Ok(completion.success()?)))
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        if let State::Posted { cq, ticket, .. } = &self.state {
            cq.extra.router_or_new().drop_future(cq, *ticket);
        }
    }
}

impl fmt::Debug for Submitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            State::Posted { cq, .. } => write!(f, "Submitted({})", cq.node.holder()),
            State::Refused(error) => f.debug_tuple("Submitted").field(error).finish(),
            State::Over => f.write_str("Submitted"),
        }
    }
}

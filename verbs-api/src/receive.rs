//! Posting receives, to a queue pair or to a shared queue.

use std::{fmt, mem, slice};

use crate::error::ErrorKind;
use crate::memory::Buffer;
use crate::post::{PostError, PostReason};
use crate::wr::{Data, ReceiveRequest};

/// A receive that was not posted: here it is back, with its buffers.
pub struct RefusedReceive<'a> {
    /// The request.
    pub request: ReceiveRequest<'a>,
    /// Why.
    pub reason: PostReason,
}

impl RefusedReceive<'_> {
    /// The kind of the refusal.
    pub const fn kind(&self) -> ErrorKind {
        self.reason.kind()
    }
}

impl fmt::Debug for RefusedReceive<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RefusedReceive").field(&self.reason).finish()
    }
}

impl fmt::Display for RefusedReceive<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the receive was refused: {}", self.reason)
    }
}

impl std::error::Error for RefusedReceive<'_> {}

impl From<Buffer> for ReceiveRequest<'_> {
    fn from(buffer: Buffer) -> Self {
        Self::new(0, buffer)
    }
}

type Outcome = Result<(), (usize, PostReason)>;

fn check(request: &ReceiveRequest<'_>, max_sge: u32) -> Result<(), PostReason> {
    if matches!(request.data, Data::Inline(_)) {
        return Err(PostReason::InlineNotAllowed);
    }
    let given = request.data.num_sge();
    if given > max_sge as usize {
        Err(PostReason::TooManySges {
            max: max_sge,
            given,
        })
    } else {
        Ok(())
    }
}

#[inline]
#[allow(clippy::result_large_err)] // A request that was not posted goes back to the caller by value.
pub(crate) fn post_one_receive<'a>(
    mut request: ReceiveRequest<'a>,
    live: Result<(), PostReason>,
    max_sge: u32,
    post: impl FnOnce(&[ReceiveRequest<'_>]) -> Outcome,
) -> Result<(), RefusedReceive<'a>> {
    if let Err(reason) = live.and_then(|()| check(&request, max_sge)) {
        return Err(RefusedReceive { request, reason });
    }
    let lends = request.data.holds_buffers();
    if lends {
        request.data.lend();
    }
    let Err((_, reason)) = post(slice::from_ref(&request)) else {
        if !lends {
            // Of entries alone nothing is left, and nobody need look which they were.
            mem::forget(request);
        }
        return Ok(());
    };
    if lends {
        request.data.take_back();
    }
    Err(RefusedReceive { request, reason })
}

#[inline]
pub(crate) fn post_receives(
    requests: &mut Vec<ReceiveRequest<'_>>,
    live: Result<(), PostReason>,
    max_sge: u32,
    post: impl FnOnce(&[ReceiveRequest<'_>]) -> Outcome,
) -> Result<(), PostError> {
    live.map_err(|reason| PostError { index: 0, reason })?;
    let mut valid = 0;
    let mut refusal = None;
    for request in requests.iter_mut() {
        if let Err(reason) = check(request, max_sge) {
            refusal = Some(PostError {
                index: valid,
                reason,
            });
            break;
        }
        if request.data.holds_buffers() {
            request.data.lend();
        }
        valid += 1;
    }
    if valid > 0
        && let Err((posted, reason)) = post(&requests[..valid])
    {
        requests[posted..valid]
            .iter_mut()
            .for_each(|request| request.data.take_back());
        valid = posted;
        refusal = Some(PostError {
            index: posted,
            reason,
        });
    }
    requests.drain(..valid);
    refusal.map_or(Ok(()), Err)
}

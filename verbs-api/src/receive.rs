//! Posting receives, to a queue pair or to a shared queue.

use std::{mem, slice};

use crate::mem::Buffer;
use crate::post::{PostError, PostReason};
use crate::wr::{Data, ReceiveRequest};

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

/// Posts a receive and drops the request afterwards.
#[inline]
pub(crate) fn post_owned<'a>(
    mut request: ReceiveRequest<'a>,
    post_in_place: impl FnOnce(&mut ReceiveRequest<'a>) -> Result<(), PostError>,
) -> Result<(), PostError> {
    let holds_buffers = request.data.holds_buffers();
    let posted = post_in_place(&mut request);
    if !holds_buffers {
        // Entries own nothing: forgetting them saves the drop glue's match on the kind of data.
        mem::forget(request);
    }
    posted
}

#[inline]
pub(crate) fn post_in_place(
    request: &mut ReceiveRequest<'_>,
    live: Result<(), PostReason>,
    max_sge: u32,
    post: impl FnOnce(&[ReceiveRequest<'_>]) -> Outcome,
) -> Result<(), PostError> {
    live?;
    check(request, max_sge)?;
    if !request.data.holds_buffers() {
        return post(slice::from_ref(request)).map_err(|(_, reason)| reason.into());
    }
    request.data.lend();
    let posted = post(slice::from_ref(request));
    request.data.end_loan(posted.is_ok());
    posted.map_err(|(_, reason)| reason.into())
}

#[inline]
pub(crate) fn post_receives(
    requests: &mut Vec<ReceiveRequest<'_>>,
    live: Result<(), PostReason>,
    max_sge: u32,
    post: impl FnOnce(&[ReceiveRequest<'_>]) -> Outcome,
) -> Result<(), PostError> {
    live?;
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

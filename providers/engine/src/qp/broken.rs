//! Posting as a device does that breaks a [rule](crate::rules). Builds without debug assertions have no such code.

use verbs_api::wr::PostReason;

use super::{Qp, Requester};
use crate::device::Cx;
use crate::device::driver::Driver;
use crate::request::{Op, Request, Source};
use crate::rules::{self, Rule};

impl<D: Driver> Qp<D> {
    /// Posts a request that the rule concerns which the calling thread breaks. Any other request is posted as usual: the result
    /// is `None`.
    pub(super) fn post_broken(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
        cx: &mut Cx<'_, D>,
    ) -> Option<Result<(), PostReason>> {
        match (rules::broken()?, request.op) {
            (Rule::InlineCopied, Op::Write(..)) => {
                let later = read_later(request)?;
                Some(self.post_ready(requester, &later, cx))
            }
            // The read takes a while, so that an invalidate can overtake it.
            (Rule::InvalidateFence, Op::Read(..)) => {
                requester.push(request);
                self.wake_at(requester, cx.now());
                Some(Ok(()))
            }
            (Rule::InvalidateFence, Op::LocalInvalidate(_)) => {
                let room = self.take_room(requester, request);
                if room.is_ok() {
                    self.execute(requester, request, cx);
                }
                Some(room)
            }
            _ => None,
        }
    }
}

// Returns a write whose inline bytes are read after the program has overwritten them.
fn read_later<'r>(request: &Request<'r>) -> Option<Request<'r>> {
    static LATER: [u8; 1024] = [0xff; 1024];
    let Source::Inline(bytes) = request.source else {
        return None;
    };
    Some(Request {
        source: Source::Inline(&LATER[..bytes.len().min(LATER.len())]),
        ..*request
    })
}

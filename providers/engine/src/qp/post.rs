//! Posting requests: which are refused, which are executed at once, and which wait in the queue.

use std::sync::atomic::Ordering;

use verbs_api::provider::PostOps;
use verbs_api::qp::QpState;
use verbs_api::wr::{PostReason, ReceiveRequest, SendFlags, WorkRequest};

use super::complete::flushed;
use super::{Qp, Requester};
use crate::device::Cx;
use crate::device::driver::{Driver, Executed};
use crate::pin::pin;
use crate::request::Request;
use crate::rules;
use crate::slots::{Held, Slots};
use crate::sync::prefetch;

impl<D: Driver> Qp<D> {
    #[inline(always)] // Each caller passes a constant for `is_whole`, so posting one request does not test it.
    pub(super) fn post(
        &self,
        requests: &[WorkRequest<'_>],
        is_whole: bool,
    ) -> Result<(), (usize, PostReason)> {
        // The pin is a barrier: without this, nothing after it would be fetched before it.
        prefetch(std::ptr::from_ref(self).cast());
        self.requester.prefetch();
        // `Cx::run` would cost every request half a nanosecond for its closure.
        let pin = pin();
        let mut cx = Cx::new(&self.device, &pin);
        let result = {
            let mut requester = self.requester();
            if let Some(peer) = &requester.direct {
                pin.look_ahead(&peer.responder);
            }
            let result = match is_whole {
                true => self.check_whole(&mut requester, requests),
                false => Ok(()),
            };
            let result = result.and_then(|()| self.post_locked(&mut requester, requests, &mut cx));
            if D::waits(&requester) {
                self.advance(&mut requester, &mut cx);
            }
            result
        };
        let effects = Some(cx.effects).filter(|effects| !effects.is_empty());
        drop(pin);
        if let Some(effects) = effects {
            effects.run();
        }
        if !self.is_direct {
            self.device.network().send_off();
        }
        result
    }

    /// Checks that the queue pair takes all of these requests now. A request that will complete at once counts as one that
    /// holds its slot, so that a refusal does not depend on how fast the device is.
    #[cold]
    fn check_whole(
        &self,
        requester: &mut Requester<D>,
        requests: &[WorkRequest<'_>],
    ) -> Result<(), (usize, PostReason)> {
        if self.is_closed() {
            return Err((0, PostReason::InvalidHandle));
        }
        match self.state() {
            QpState::Rts | QpState::Sqd => {}
            QpState::Sqe | QpState::Err => return Ok(()),
            state @ (QpState::Reset | QpState::Init | QpState::Rtr) => {
                return Err((0, PostReason::InvalidState(state)));
            }
        }
        if let Some(slots) = requester.slots() {
            slots.free(self.send_cq.polled());
        }
        let mut held = requester.held();
        for (index, request) in requests.iter().map(Request::of).enumerate() {
            let checked = (self.device.driver().check_post(self, &request))
                .and_then(|()| self.check_room(held, request.flags));
            checked.map_err(|reason| (index, reason))?;
            let is_reserved = request.flags.contains(SendFlags::RESERVED);
            held.add(is_reserved);
        }
        Ok(())
    }

    #[inline]
    fn post_locked(
        &self,
        requester: &mut Requester<D>,
        requests: &[WorkRequest<'_>],
        cx: &mut Cx<'_, D>,
    ) -> Result<(), (usize, PostReason)> {
        let mut index = 0;
        while index < requests.len() {
            if self.is_direct
                && !self.is_watched()
                && !rules::is_any_broken()
                && requester.queue.is_empty()
                && self.state.load(Ordering::Acquire) == QpState::Rts as u8
            {
                index += D::express(self, requester, &requests[index..], cx);
            }
            let Some(posted) = requests.get(index) else {
                break;
            };
            self.post_one(requester, &Request::of(posted), cx)
                .map_err(|reason| (index, reason))?;
            index += 1;
        }
        Ok(())
    }

    #[inline(never)]
    fn post_one(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
        cx: &mut Cx<'_, D>,
    ) -> Result<(), PostReason> {
        if self.is_closed() {
            return Err(PostReason::InvalidHandle);
        }
        match self.state() {
            QpState::Rts => {
                self.device.driver().check_post(self, request)?;
                #[cfg(debug_assertions)]
                if let Some(posted) = self.post_broken(requester, request, cx) {
                    return posted;
                }
                self.post_ready(requester, request, cx)
            }
            QpState::Sqd => {
                self.device.driver().check_post(self, request)?;
                self.take_room(requester, request)?;
                requester.push(request);
                Ok(())
            }
            QpState::Sqe | QpState::Err => {
                self.flush_requester(requester, cx);
                if let Some(slots) = requester.slots() {
                    slots.take(request.flags.contains(SendFlags::RESERVED));
                }
                self.complete(requester, request, flushed(), 0, cx);
                Ok(())
            }
            state @ (QpState::Reset | QpState::Init | QpState::Rtr) => {
                Err(PostReason::InvalidState(state))
            }
        }
    }

    // Posts a checked request of a queue pair in RTS.
    #[inline]
    pub(super) fn post_ready(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
        cx: &mut Cx<'_, D>,
    ) -> Result<(), PostReason> {
        self.take_room(requester, request)?;
        if requester.is_next(request) {
            self.execute(requester, request, cx);
        } else {
            requester.push(request);
        }
        Ok(())
    }

    #[inline]
    pub(super) fn execute(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
        cx: &mut Cx<'_, D>,
    ) {
        match D::execute(self, requester, request, cx) {
            Executed::Done(status, bytes) => self.complete(requester, request, status, bytes, cx),
            Executed::Keep => requester.push(request),
            Executed::Sent { first, count } => requester.push_sent(request, first, count),
        }
    }

    #[inline]
    pub(super) fn take_room(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
    ) -> Result<(), PostReason> {
        if let Some(slots) = requester.slots() {
            self.find_room(slots, request.flags)?;
            slots.take(request.flags.contains(SendFlags::RESERVED));
            return Ok(());
        }
        let needed = slots_needed(request.flags);
        let for_ordinary = self.cold.cap.max_send_wr - self.cold.reserved_wr;
        match requester.queue.len() as u32 + needed <= for_ordinary {
            true => Ok(()),
            // A request that has a reserved slot may find one.
            false => self.check_room(requester.held(), request.flags),
        }
    }

    /// Checks that there is a slot for one more request with these flags. If there seems to be none, first frees the slots of
    /// completions that the program has polled.
    pub(crate) fn find_room(&self, slots: &mut Slots, flags: SendFlags) -> Result<(), PostReason> {
        self.check_room(slots.held(), flags).or_else(|_| {
            slots.free(self.send_cq.polled());
            self.check_room(slots.held(), flags)
        })
    }

    // Checks that there is a slot for one more request.
    fn check_room(&self, held: Held, flags: SendFlags) -> Result<(), PostReason> {
        let Held { ordinary, reserved } = held;
        let needed = slots_needed(flags);
        let max = self.cold.cap.max_send_wr;
        if ordinary + reserved + needed > max {
            return Err(PostReason::QueueFull { max });
        }
        let is_reserved = flags.contains(SendFlags::RESERVED);
        let max = max - self.cold.reserved_wr;
        if !is_reserved && ordinary + needed > max {
            return Err(PostReason::QueueFull { max });
        }
        Ok(())
    }
}

impl<D: Driver> PostOps for Qp<D> {
    fn post_send(&self, requests: &[WorkRequest<'_>]) -> Result<(), (usize, PostReason)> {
        self.post(requests, false)
    }

    fn post_send_whole(&self, requests: &[WorkRequest<'_>]) -> Result<(), (usize, PostReason)> {
        self.post(requests, true)
    }

    fn post_recv(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)> {
        self.post_receives(requests)
    }
}

// Returns how many slots must be free for a request: its own, and that of a second half that is posted next.
#[inline]
fn slots_needed(flags: SendFlags) -> u32 {
    1 + u32::from(flags.contains(SendFlags::FIRST_HALF))
}

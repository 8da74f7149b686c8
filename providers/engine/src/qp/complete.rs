//! Completing requests: their completions, the buffers and slots that they return, and flushing after a failure.

use verbs_api::WcStatus;
use verbs_api::completion::CountedOperations;
use verbs_api::completion::WcOpcode;
use verbs_api::ids::Qpn;
use verbs_api::qp::QpType;
use verbs_api::wr::SendFlags;

use super::{Phase, Qp, Requester, Wqe};
use crate::cq::{Done, Plain};
use crate::device::Cx;
use crate::device::driver::Driver;
use crate::effects::Effects;
use crate::loans;
use crate::log_event;
use crate::request::{Op, Request};
use crate::rules::{self, Rule};
use crate::trace::TracedOperation;

impl<D: Driver> Qp<D> {
    /// Returns whether a successful request with these flags has a completion.
    #[inline]
    pub fn is_signaled(&self, flags: SendFlags) -> bool {
        if flags.contains(SendFlags::FIRST_HALF) {
            return false;
        }
        self.sq_sig_all || flags.contains(SendFlags::SIGNALED)
    }

    /// Adds the completion of a successful request that retires no buffers, and returns its position in the completion queue.
    #[inline]
    pub(crate) fn push_plain(
        &self,
        wr_id: u64,
        opcode: WcOpcode,
        byte_len: u32,
        cx: &mut Cx<'_, D>,
    ) -> u64 {
        let plain = Plain::new(self.qpn, opcode, false);
        self.send_cq
            .push_plain(wr_id, plain, byte_len, &mut cx.effects)
    }

    /// Completes a request that is in no queue: adds its completion if it has one, and handles a failure.
    #[inline]
    pub fn complete(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
        status: WcStatus,
        bytes: u32,
        cx: &mut Cx<'_, D>,
    ) {
        if self.is_watched() {
            self.tell_sent(request, status);
        }
        if status.is_success() {
            requester.count(&request.op);
            requester.first_half_failed = false;
            if !self.is_signaled(request.flags) {
                requester.free_slot(request.flags, None);
                requester.retire(request.loan);
                return;
            }
            return self.push_send_completion(requester, request, status, bytes, cx);
        }
        self.complete_failed(requester, request, status, cx);
    }

    #[cold]
    fn complete_failed(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
        status: WcStatus,
        cx: &mut Cx<'_, D>,
    ) {
        let flushed = status == WcStatus::WrFlushErr;
        if !flushed {
            log_event!(
                WARN,
                "a request fails",
                qp = Qpn::new(self.qpn),
                wr_id = request.wr_id,
                status = status
            );
            self.enter_error(self.qp_type != QpType::Rc);
        }
        let second_half = request.flags.contains(SendFlags::SECOND_HALF);
        if second_half && flushed && std::mem::take(&mut requester.first_half_failed) {
            requester.free_slot(request.flags, None);
            requester.retire(request.loan);
        } else {
            requester.first_half_failed = request.flags.contains(SendFlags::FIRST_HALF);
            self.push_send_completion(requester, request, status, 0, cx);
        }
        if !flushed {
            D::before_flush(self, requester, status, cx);
            self.flush_requester(requester, cx);
            self.flush_later(&mut cx.effects);
        }
    }

    #[inline]
    fn push_send_completion(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
        status: WcStatus,
        bytes: u32,
        cx: &mut Cx<'_, D>,
    ) {
        let loan = std::mem::take(&mut requester.loans);
        let vendor_err = match (status.is_success(), &mut requester.rare) {
            (false, Some(rare)) => std::mem::take(&mut rare.vendor_err),
            _ => 0,
        };
        let done = Done {
            wr_id: request.wr_id,
            status,
            opcode: request.op.wc_opcode(),
            byte_len: bytes,
            qpn: self.qpn,
            // The request's own buffers come first, then those of the requests that it retires.
            loan: loans::join(request.loan, loan),
            vendor_err,
            ..Done::default()
        };
        let at = self.send_cq.push(&done, &mut cx.effects);
        requester.free_slot(request.flags, Some(at));
    }

    /// Completes the oldest request of the queue.
    pub fn complete_front(
        &self,
        requester: &mut Requester<D>,
        status: WcStatus,
        bytes: u32,
        cx: &mut Cx<'_, D>,
    ) {
        if let Some(wqe) = requester.queue.pop_front() {
            self.complete(requester, &wqe.kept.request(), status, bytes, cx);
        }
    }

    /// Completes the oldest requests as far as they have ended.
    pub fn complete_done(&self, requester: &mut Requester<D>, cx: &mut Cx<'_, D>) {
        while let Some(&Wqe {
            phase: Phase::Done(status),
            received,
            ..
        }) = requester.queue.front()
        {
            self.complete_front(requester, status, received as u32, cx);
        }
    }

    /// Flushes the remaining requests of the send queue.
    pub(super) fn flush_requester(&self, requester: &mut Requester<D>, cx: &mut Cx<'_, D>) {
        while let Some(wqe) = requester.queue.pop_front() {
            // A request that had ended before the error keeps its own result.
            let (status, bytes) = match wqe.phase {
                Phase::Done(status) if status.is_success() => (status, wqe.received as u32),
                _ => (flushed(), 0),
            };
            self.complete(requester, &wqe.kept.request(), status, bytes, cx);
        }
    }

    pub(super) fn flush_later(&self, effects: &mut Effects) {
        if let Some(me) = self.shared() {
            effects.flush(me.into_owner());
        }
    }

    #[cold]
    fn tell_sent(&self, request: &Request<'_>, status: WcStatus) {
        if self.cold.is_traced && !request.op.is_local() {
            self.trace(request, status);
        }
        if let Some(extensions) = &self.extensions {
            extensions.sent(status);
        }
        // A portable operation of two requests counts once.
        let is_half = request.flags.contains(SendFlags::FIRST_HALF) && status.is_success();
        if let (Some(operation), false) = (counted(&request.op), is_half) {
            self.add_to_counters(operation, status, request.length);
        }
    }

    /// Adds a completion to the counter of this operation, if there is one.
    pub(super) fn add_to_counters(
        &self,
        operation: CountedOperations,
        status: WcStatus,
        bytes: u64,
    ) {
        let attached = self.cold.counts.lock();
        let found = attached
            .iter()
            .find(|one| one.operations().contains(operation));
        if let Some(found) = found {
            let is_success = status.is_success() || rules::is_broken(Rule::CountedApart);
            found.counts().completed(is_success, bytes);
        }
    }

    // A flushed request was not executed.
    #[cold]
    pub(super) fn trace(&self, request: &Request<'_>, status: WcStatus) {
        if let Some(trace) = self.device.tracer.get()
            && status != WcStatus::WrFlushErr
        {
            trace(TracedOperation::of(self.qpn, request, status));
        }
    }
}

/// Returns the operation as which completion counters count a request; `None` if they do not.
const fn counted(op: &Op) -> Option<CountedOperations> {
    match op {
        Op::Send(_) => Some(CountedOperations::SEND),
        Op::Write(..) | Op::AtomicWrite(_) => Some(CountedOperations::RDMA_WRITE),
        Op::Read(..) => Some(CountedOperations::RDMA_READ),
        _ => None,
    }
}

// Returns the status of requests after a failed one.
#[inline]
pub(super) fn flushed() -> WcStatus {
    if rules::is_broken(Rule::FlushBehindError) {
        WcStatus::Success
    } else {
        WcStatus::WrFlushErr
    }
}

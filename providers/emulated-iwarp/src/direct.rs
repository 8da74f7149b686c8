//! A direct network: the poster's thread carries a request out in the peer's responder.
//!
//! The reference to the peer is found when the two queue pairs connect, and kept by the requester. Each request checks,
//! under the peer's responder lock, that the peer is still connected. The path neither allocates nor reads a clock.

use polyverbs_engine::driver::Executed;
use polyverbs_engine::fault::Fault;
use polyverbs_engine::operation::{self, StandardOperation};
use polyverbs_engine::payload::{Payload, Spans, scatter_at};
use polyverbs_engine::request::{Op, Request, SendExtra};
use verbs_api::qp::QpState;
use verbs_api::{
    RemoteAddress, WcStatus, event::EventType, extension::ExtensionOperation, wr::SendFlags,
};

use crate::header::{AtomicOp, Body, Message, Opcode, Tagged, atomic_request};
use crate::operations::{Target, atomic_of};
use crate::requester::{
    fail_later, invalidate_sink, is_open, read_request, result_spans, send_header, sink_spans,
};
use crate::responder::takes;
use crate::terminate::{Breach, Terminate, TerminateCode, request_status};
use crate::{Cx, Qp, QpRef, Receiving, Sending, extension};

/// Why the peer has not carried out a request.
enum Failure {
    /// The poster's own device is at fault. The request completes with this status.
    Local(WcStatus),
    /// The peer is no longer connected to this queue pair.
    Lost,
    /// The peer has refused the request and ended the connection.
    Terminated(Box<Terminate>),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Local(fault.local_status())
    }
}

/// Carries out a request in the peer's responder, on this thread. It is kept in the queue if the peer is not connected or
/// a port of the two is not active.
#[inline]
pub(crate) fn execute(
    qp: &Qp,
    half: &mut Sending,
    request: &Request<'_>,
    cx: &mut Cx<'_>,
) -> Executed {
    let (Some(peer), Some(named)) = (&half.direct, &half.driver.peer) else {
        return Executed::Keep;
    };
    if !is_open(qp, half) {
        return Executed::Keep;
    }
    if request.op.is_read_or_atomic() && half.driver.ord == 0 {
        return Executed::Done(WcStatus::LocQpOpErr, 0);
    }
    let epoch = named.end.epoch;
    let direct = Direct {
        qp,
        peer,
        epoch,
        request,
    };
    let carried_out = match request.op {
        Op::Write(remote, imm) => direct.write(remote, imm, cx),
        Op::Send(extra) => direct.send(extra, cx),
        Op::Read(remote, _) => direct.read(remote, cx),
        Op::Extension(operation) => direct.extension(operation, cx),
        op => match atomic_of(&op) {
            Some((remote, op)) => direct.atomic(remote, op, cx),
            None => Err(Failure::Local(WcStatus::LocQpOpErr)),
        },
    };
    match carried_out {
        Ok(bytes) => Executed::Done(WcStatus::Success, bytes),
        Err(failure) => failed(qp, half, request, failure, cx),
    }
}

/// Carries out the queued requests, which have waited for the peer or for a port, in order, until one must wait again.
pub(crate) fn pump(qp: &Qp, half: &mut Sending, cx: &mut Cx<'_>) {
    while qp.state() == QpState::Rts {
        let Some(wqe) = half.queue.pop_front() else {
            return;
        };
        let request = wqe.kept.request();
        let executed = if request.op.is_local() {
            Executed::Done(qp.local_operation(half, &request, cx), 0)
        } else {
            execute(qp, half, &request, cx)
        };
        match executed {
            Executed::Done(status, bytes) => qp.complete(half, &request, status, bytes, cx),
            Executed::Keep | Executed::Sent { .. } => return half.queue.push_front(wqe),
        }
    }
}

/// A request, and the peer that carries it out if its connection is still the one of this epoch.
struct Direct<'a, 'r> {
    qp: &'a Qp,
    peer: &'a QpRef,
    epoch: u32,
    request: &'a Request<'r>,
}

impl Direct<'_, '_> {
    /// Locks the peer's responder and calls `carry_out` there, if the peer is still connected. A refusal by the peer ends
    /// the connection with a Terminate about the message that the request would have been on the wire, which `about` makes.
    #[inline]
    fn at_peer<'p, T>(
        &self,
        cx: &mut Cx<'p>,
        carry_out: impl FnOnce(&mut Target<'_, 'p>) -> Result<T, Breach>,
        about: impl FnOnce(Breach) -> Message,
    ) -> Result<T, Failure> {
        let (qp, half) = (&**self.peer, &mut *self.peer.responder());
        if !takes(qp, half, self.epoch) {
            return Err(Failure::Lost);
        }
        qp.note_arrival(half, cx);
        let mut target = Target { qp, half, cx };
        carry_out(&mut target).map_err(|breach| {
            let terminate = target.fail(breach, Some((&about(breach), 0)));
            Failure::Terminated(Box::new(terminate))
        })
    }

    #[inline]
    fn write(
        &self,
        remote: RemoteAddress,
        imm: Option<[u8; 4]>,
        cx: &mut Cx<'_>,
    ) -> Result<u32, Failure> {
        let mut spans = Spans::new();
        let payload = self.qp.gather_request(self.request, cx, &mut spans)?;
        let (stag, to) = (remote.rkey.value(), remote.addr);
        let solicited = self.request.flags.contains(SendFlags::SOLICITED);
        let carry_out = |target: &mut Target<'_, '_>| {
            target.write(stag, to, &payload)?;
            let immediate = |imm| target.immediate(imm, self.request.length, solicited);
            imm.map_or(Ok(()), immediate)
        };
        self.at_peer(cx, carry_out, |breach| match breach {
            Breach::Protocol(TerminateCode::DDP_NO_BUFFER) => {
                untagged(Opcode::immediate(solicited), Body::Immediate)
            }
            _ => Message::Tagged(Tagged::new(Opcode::WRITE, stag, to, true)),
        })?;
        Ok(0)
    }

    #[inline]
    fn send(&self, extra: SendExtra, cx: &mut Cx<'_>) -> Result<u32, Failure> {
        let mut spans = Spans::new();
        let payload = self.qp.gather_request(self.request, cx, &mut spans)?;
        let segment = send_header(self.request, extra, 0, 0, true);
        let about = |_| Message::Untagged(segment, Body::Data);
        self.at_peer(cx, |target| target.send(&segment, &payload), about)?;
        Ok(0)
    }

    #[inline]
    fn read(&self, remote: RemoteAddress, cx: &mut Cx<'_>) -> Result<u32, Failure> {
        let targets = sink_spans(self.qp, self.request, cx)?;
        let (stag, to) = (remote.rkey.value(), remote.addr);
        let carry_out = |target: &mut Target<'_, '_>| {
            within_budget(target.half)?;
            let source = target.read(stag, to, self.request.length)?;
            scatter_at(&targets, 0, &Payload::of_spans(&source));
            Ok(())
        };
        self.at_peer(cx, carry_out, |_| {
            untagged(Opcode::READ_REQUEST, read_request(self.request, remote))
        })?;
        match invalidate_sink(self.qp, &self.request.op) {
            WcStatus::Success => Ok(self.request.length as u32),
            status => Err(Failure::Local(status)),
        }
    }

    #[inline]
    fn atomic(&self, remote: RemoteAddress, op: AtomicOp, cx: &mut Cx<'_>) -> Result<u32, Failure> {
        let targets = result_spans(self.qp, self.request, cx)?;
        let carry_out = |target: &mut Target<'_, '_>| {
            within_budget(target.half)?;
            target.atomic(op, remote.rkey.value(), remote.addr)
        };
        let original = self.at_peer(cx, carry_out, |_| {
            let body = Body::AtomicRequest(atomic_request(0, remote, op));
            untagged(Opcode::ATOMIC_REQUEST, body)
        })?;
        scatter_at(&targets, 0, &Payload::Bytes(&original.to_ne_bytes()));
        Ok(8)
    }

    #[cold]
    fn extension(
        &self,
        operation: &'static ExtensionOperation,
        cx: &mut Cx<'_>,
    ) -> Result<u32, Failure> {
        let (emulation, standard) = extension::of(self.qp, self.request, operation)?;
        if let Some(StandardOperation::Atomic(remote, op)) = standard {
            return self.atomic(remote, op, cx);
        }
        let sink = self.qp.gather_answer(self.request, operation, cx)?;
        let bytes = self.qp.gather_message(self.request, operation, cx)?;
        let header = extension::header(operation);
        let carry_out = |target: &mut Target<'_, '_>| {
            within_budget(target.half)?;
            target.extension(header, &bytes)
        };
        let about = |_| untagged(Opcode::EXTENSION, Body::Extension(header));
        let answer = self.at_peer(cx, carry_out, about)?;
        Ok(operation::place(emulation, answer, &sink))
    }
}

// Checks that the peer takes reads and atomics. Requests run one at a time, so every limit but 0 suffices.
#[inline]
fn within_budget(half: &Receiving) -> Result<(), Breach> {
    match half.driver.ird {
        // RFC 7306 section 8 prescribes this code.
        0 => Err(Breach::Protocol(TerminateCode::RDMAP_STREAM)),
        _ => Ok(()),
    }
}

// Returns the message that a request would have been on the wire. A direct network counts no messages, so its number is 0.
fn untagged(opcode: Opcode, body: Body) -> Message {
    Message::untagged(0, opcode, body)
}

// Returns the result of a request that was not carried out. A send or write counts as complete when the stream has its
// bytes, even if the peer refuses them; the connection ends afterwards (RFC 5040 section 5.1).
#[cold]
fn failed(
    qp: &Qp,
    half: &mut Sending,
    request: &Request<'_>,
    failure: Failure,
    cx: &mut Cx<'_>,
) -> Executed {
    match failure {
        Failure::Local(status) => Executed::Done(status, 0),
        Failure::Lost => {
            fail_later(qp, cx);
            Executed::Done(WcStatus::WrFlushErr, 0)
        }
        Failure::Terminated(terminate) => {
            let status = request_status(terminate.code());
            half.driver.terminated = Some(terminate);
            if request.op.is_read_or_atomic() {
                return Executed::Done(status.unwrap_or(WcStatus::RemOpErr), 0);
            }
            qp.event(EventType::QpFatal, &mut cx.effects);
            fail_later(qp, cx);
            Executed::Done(WcStatus::Success, 0)
        }
    }
}

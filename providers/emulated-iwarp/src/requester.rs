//! The sending half: it turns requests into messages, and answers complete them.
//!
//! A send or a write is complete when the stream has its bytes (RFC 5040 section 5.1): the completion says that the buffer
//! is free, and nothing about the peer. A read or an atomic is complete when its answer has arrived. Completions keep the
//! order of posting: a request that is complete early waits in the queue.
//!
//! The sink of a read is a tagged buffer that the request names on the wire. It must grant remote write, which is checked
//! before anything is sent (RFC 5040 section 5.2.1).

use std::collections::VecDeque;
use std::time::Duration;

use polyverbs_engine::driver::Executed;
use polyverbs_engine::fault::Fault;
use polyverbs_engine::link::TrySend;
use polyverbs_engine::operation::StandardOperation;
use polyverbs_engine::payload::{Payload, Spans, scatter_at};
use polyverbs_engine::qp::{Phase, Wqe};
use polyverbs_engine::request::{Op, Request, SendExtra, Source};
use polyverbs_engine::rules::{self, Rule};
use polyverbs_wire::iwarp::{Reject, SegmentHeader, terminate};
use verbs_api::qp::QpState;
use verbs_api::{
    Access, RemoteAddress, Sge, WcStatus, event::EventType, extension::ExtensionOperation,
    wr::SendFlags,
};

use crate::header::{
    AtomicOp, Body, Message, Opcode, ReadRequest, Tagged, Untagged, atomic_request, queue,
};
use crate::operations::{atomic_of, place_tagged, tagged_spans};
use crate::peer::{Peer, is_ready, offer, offer_rest, offer_segments};
use crate::terminate::{Breach, Terminate, TerminateCode, request_status, terminate_about};
use crate::{Cx, Qp, Sending, extension};

/// How often a queue pair with waiting requests checks whether its port is active again.
const PORT_POLL: Duration = Duration::from_millis(1);

/// The transport's state of a requester. The fields that each request uses come first.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Requester {
    /// The peer, as soon as the program has named it.
    pub(crate) peer: Option<Peer>,
    /// The epoch, a number that identifies this queue pair's present or last connection in the process; 0 before the first
    /// one.
    pub(crate) epoch: u32,
    /// How many reads and atomics may be outstanding at a time (ORD).
    pub(crate) ord: u8,
    /// The Terminate to send to the peer when the connection ends. Without one the connection is reset.
    pub(crate) pending_terminate: Option<Box<Terminate>>,
    /// The Terminate by which the peer ended the present or last connection.
    pub(crate) terminated: Option<Box<Terminate>>,
    /// Whether the queue pair has asked for its TCP stream, which it does once for each connection.
    pub(crate) has_claimed: bool,
    /// Whether a connection manager made the connection and reports its end to the program.
    pub(crate) is_managed: bool,
    /// Whether the peer has closed the connection, which the program has not ended yet.
    pub(crate) peer_closed: bool,
    /// Whether the answer to the zero-length read that began the stream is still outstanding.
    pub(crate) awaits_ready: bool,
    // Outstanding reads and atomics; used over a link only.
    outstanding: u32,
    // Messages sent on the queues of sends and of requests; used over a link only.
    sent: [u32; 2],
    // Atomic responses received; used over a link only.
    responses: u32,
}

impl Requester {
    // Returns the message sequence number of the next message of a queue.
    const fn next_msn(&self, qn: u32) -> u32 {
        self.sent[qn as usize].wrapping_add(1)
    }

    /// Counts a message of this queue, a part of which was sent.
    pub(crate) const fn count_message(&mut self, qn: u32) {
        self.sent[qn as usize] = self.next_msn(qn);
    }
}

/// How much of a request has been sent.
#[derive(Debug, Default)]
struct SendProgress {
    /// The number of bytes of the request's data that were sent.
    sent: usize,
    /// Whether all of the request's data was sent, but not its immediate data.
    is_second: bool,
    /// Whether any part of the request was sent.
    has_begun: bool,
    /// The sequence number of the request's message.
    msn: u32,
    /// Whether the request's data is sent in one segment or not at all.
    is_uncut: bool,
}

impl SendProgress {
    // Sends data of the request, as much as the stream has room for. Returns whether all of it was sent.
    fn offer(
        &mut self,
        qp: &Qp,
        peer: &Peer,
        data: &Payload<'_>,
        segment: impl Fn(usize, bool) -> Message,
        cx: &mut Cx<'_>,
    ) -> bool {
        match self.is_uncut {
            true => offer_rest(qp, peer, segment(0, true), data.clone(), cx) == TrySend::Sent,
            false => offer_segments(qp, peer, data, &mut self.sent, segment, cx),
        }
    }
}

/// Sends a message over the link without queueing its request, if no earlier request is queued, and one segment holds the
/// message, and the stream has room.
pub(crate) fn send_at_once(
    qp: &Qp,
    half: &mut Sending,
    request: &Request<'_>,
    cx: &mut Cx<'_>,
) -> Executed {
    let is_free = half.queue.is_empty() && !half.driver.peer_closed && qp.device.is_port_active();
    let peer = half.driver.peer.filter(Peer::is_connected);
    let Some(peer) = peer.filter(|_| is_free) else {
        return Executed::Keep;
    };
    let mut outgoing = Outgoing {
        qp,
        half,
        peer: &peer,
        request,
        progress: &mut SendProgress {
            is_uncut: true,
            ..SendProgress::default()
        },
    };
    let started = match request.op {
        Op::Send(extra) => outgoing.send(extra, cx),
        Op::Write(remote, None) => outgoing.write(remote, None, cx),
        _ => return Executed::Keep,
    };
    match started {
        Ok(Some(_)) => Executed::Done(WcStatus::Success, 0),
        Ok(None) => Executed::Keep,
        Err(fault) => Executed::Done(fault.local_status(), 0),
    }
}

/// Returns whether frames reach the peer's device: the port is active and, on a direct network, which has no link that would hold
/// them back, the peer's port too.
#[inline]
pub(crate) fn is_open(qp: &Qp, half: &Sending) -> bool {
    let peer = half.direct.as_ref();
    qp.device.is_port_active() && peer.is_none_or(|peer| peer.device.is_port_active())
}

/// Returns whether waiting requests may be sent now. After the peer's close they never may, and the queue pair goes to the
/// error state.
pub(crate) fn may_go_on(qp: &Qp, half: &mut Sending, cx: &mut Cx<'_>) -> bool {
    if qp.state() != QpState::Rts {
        return false;
    }
    if !is_open(qp, half) {
        // Checks the ports again later, as TCP would send again.
        if !half.queue.is_empty() {
            let at = cx.now().after(PORT_POLL);
            qp.wake_at(half, at);
        }
        return false;
    }
    if half.driver.peer_closed && !half.queue.is_empty() {
        fail_later(qp, cx);
    }
    !half.driver.peer_closed
}

/// Sends the queued requests that can be sent over the link now, and completes those that have ended.
pub(crate) fn pump(qp: &Qp, half: &mut Sending, cx: &mut Cx<'_>) {
    let Some(peer) = half.driver.peer.filter(Peer::is_connected) else {
        return;
    };
    // The queue is moved out for the time of the loop, because starting a request needs the rest of the half.
    let mut queue = std::mem::take(&mut half.queue);
    start_waiting(qp, half, &peer, &mut queue, cx);
    half.queue = queue;
    qp.complete_done(half, cx);
}

fn start_waiting(
    qp: &Qp,
    half: &mut Sending,
    peer: &Peer,
    queue: &mut VecDeque<Wqe>,
    cx: &mut Cx<'_>,
) {
    for wqe in queue {
        match wqe.phase {
            Phase::Waiting | Phase::Started => {}
            // No request after a failed one starts; the failed one waits for its turn to complete.
            Phase::Done(status) if !status.is_success() => return,
            _ => continue,
        }
        let mut progress = SendProgress {
            sent: wqe.sent as usize,
            is_second: wqe.count != 0,
            has_begun: wqe.phase == Phase::Started,
            msn: wqe.first,
            is_uncut: false,
        };
        let mut outgoing = Outgoing {
            qp,
            half,
            peer,
            request: &wqe.kept.request(),
            progress: &mut progress,
        };
        let Some((phase, msn)) = outgoing.start(cx) else {
            if progress.has_begun {
                wqe.phase = Phase::Started;
                wqe.sent = progress.sent as u64;
                wqe.count = progress.is_second.into();
                wqe.first = progress.msn;
            }
            return;
        };
        (wqe.phase, wqe.first) = (phase, msn);
        if matches!(phase, Phase::Done(status) if !status.is_success()) {
            return;
        }
    }
}

/// The new phase of a request and the number of its request message; `None` inside if the request has to wait for room.
type Started = Result<Option<(Phase, u32)>, Fault>;

const SENT: Phase = Phase::Done(WcStatus::Success);

/// A request that is being sent.
struct Outgoing<'a, 'r> {
    qp: &'a Qp,
    half: &'a mut Sending,
    peer: &'a Peer,
    request: &'a Request<'r>,
    progress: &'a mut SendProgress,
}

impl Outgoing<'_, '_> {
    // Starts or continues the request. Returns its phase and the number of its request message; `None` if it has to wait.
    fn start(&mut self, cx: &mut Cx<'_>) -> Option<(Phase, u32)> {
        let (request, tx) = (self.request, &self.half.driver);
        // A fence waits for all earlier reads and atomics; later ones have not started.
        let is_fenced = request.flags.contains(SendFlags::FENCE) && !self.progress.has_begun;
        if is_fenced && tx.outstanding != 0 {
            return None;
        }
        if request.op.is_local() {
            let status = self.qp.local_operation(self.half, request, cx);
            return Some((Phase::Done(status), 0));
        }
        if request.op.is_read_or_atomic() {
            if tx.ord == 0 {
                return Some((Phase::Done(WcStatus::LocQpOpErr), 0));
            }
            if tx.outstanding >= u32::from(tx.ord) {
                return None;
            }
        }
        let started = match request.op {
            Op::Send(extra) => self.send(extra, cx),
            Op::Write(remote, imm) => self.write(remote, imm, cx),
            Op::Read(remote, _) => self.read(remote, cx),
            Op::Extension(operation) => self.extension(operation, cx),
            op => match atomic_of(&op) {
                Some((remote, op)) => self.atomic(remote, op, cx),
                None => Err(Fault::Operation),
            },
        };
        started.unwrap_or_else(|fault| Some((Phase::Done(fault.local_status()), 0)))
    }

    fn send(&mut self, extra: SendExtra, cx: &mut Cx<'_>) -> Started {
        let mut spans = Spans::new();
        let payload = self.qp.gather_request(self.request, cx, &mut spans)?;
        let progress = &mut *self.progress;
        if !progress.has_begun {
            progress.msn = self.half.driver.next_msn(queue::SEND);
        }
        let (request, msn) = (self.request, progress.msn);
        let segment = |offset: usize, last| {
            let header = send_header(request, extra, msn, offset as u32, last);
            Message::Untagged(header, Body::Data)
        };
        let whole = progress.offer(self.qp, self.peer, &payload, segment, cx);
        if !progress.has_begun && (whole || progress.sent > 0) {
            progress.has_begun = true;
            self.half.driver.count_message(queue::SEND);
        }
        Ok(whole.then_some((SENT, 0)))
    }

    // A write with immediate data is a write, followed by a message of its own (RFC 7306 section 6).
    fn write(&mut self, remote: RemoteAddress, imm: Option<[u8; 4]>, cx: &mut Cx<'_>) -> Started {
        let mut spans = Spans::new();
        let payload = self.qp.gather_request(self.request, cx, &mut spans)?;
        let progress = &mut *self.progress;
        if !progress.is_second {
            let segment = |offset: usize, last| {
                let to = remote.addr.wrapping_add(offset as u64);
                Message::Tagged(Tagged::new(Opcode::WRITE, remote.rkey.value(), to, last))
            };
            let whole = progress.offer(self.qp, self.peer, &payload, segment, cx);
            progress.has_begun |= whole || progress.sent > 0;
            progress.is_second = whole;
            if !whole {
                return Ok(None);
            }
        }
        let Some([a, b, c, d]) = imm else {
            return Ok(Some((SENT, 0)));
        };
        let opcode = Opcode::immediate(self.request.flags.contains(SendFlags::SOLICITED));
        let msn = self.half.driver.next_msn(queue::SEND);
        let message = Message::untagged(msn, opcode, Body::Immediate);
        let bytes = Payload::Bytes(&[a, b, c, d, 0, 0, 0, 0]);
        if !offer(self.qp, self.peer, message, bytes, cx) {
            return Ok(None);
        }
        self.half.driver.count_message(queue::SEND);
        Ok(Some((SENT, 0)))
    }

    fn read(&mut self, remote: RemoteAddress, cx: &mut Cx<'_>) -> Started {
        sink_spans(self.qp, self.request, cx)?;
        let body = read_request(self.request, remote);
        Ok(self.send_request(Opcode::READ_REQUEST, |_| body, &[], cx))
    }

    fn atomic(&mut self, remote: RemoteAddress, op: AtomicOp, cx: &mut Cx<'_>) -> Started {
        result_spans(self.qp, self.request, cx)?;
        let body = |request_id| Body::AtomicRequest(atomic_request(request_id, remote, op));
        Ok(self.send_request(Opcode::ATOMIC_REQUEST, body, &[], cx))
    }

    #[cold]
    fn extension(&mut self, operation: &'static ExtensionOperation, cx: &mut Cx<'_>) -> Started {
        let (qp, request) = (self.qp, self.request);
        let (_, standard) = extension::of(qp, request, operation)?;
        if let Some(StandardOperation::Atomic(remote, op)) = standard {
            return self.atomic(remote, op, cx);
        }
        qp.gather_answer(request, operation, cx)?;
        let bytes = qp.gather_message(request, operation, cx)?;
        let body = Body::Extension(extension::header(operation));
        Ok(self.send_request(Opcode::EXTENSION, |_| body, &bytes, cx))
    }

    fn send_request(
        &mut self,
        opcode: Opcode,
        body: impl FnOnce(u32) -> Body,
        bytes: &[u8],
        cx: &mut Cx<'_>,
    ) -> Option<(Phase, u32)> {
        let tx = &mut self.half.driver;
        let msn = tx.next_msn(queue::REQUEST);
        let message = Message::untagged(msn, opcode, body(msn));
        if !offer(self.qp, self.peer, message, Payload::Bytes(bytes), cx) {
            return None;
        }
        tx.count_message(queue::REQUEST);
        tx.outstanding += 1;
        Some((Phase::Sent, msn))
    }
}

/// Returns the DDP header of a segment of a send.
pub(crate) fn send_header(
    request: &Request<'_>,
    extra: SendExtra,
    msn: u32,
    offset: u32,
    last: bool,
) -> Untagged {
    let key = match extra {
        SendExtra::Invalidate(key) => Some(key),
        _ => None,
    };
    let solicited = request.flags.contains(SendFlags::SOLICITED);
    let opcode = Opcode::send(solicited, key.is_some());
    Untagged::new(opcode, queue::SEND, msn, offset, last).invalidating(key.unwrap_or_default())
}

/// Returns the RDMA Read Request of a read.
pub(crate) fn read_request(request: &Request<'_>, remote: RemoteAddress) -> Body {
    let sink = sink(request);
    Body::ReadRequest(ReadRequest {
        sink_stag: sink.lkey().value(),
        sink_to: sink.addr(),
        length: request.length as u32,
        source_stag: remote.rkey.value(),
        source_to: remote.addr,
    })
}

/// Returns the sink of a read: its only scatter/gather entry, or an empty one if the read has none.
pub(crate) fn sink(request: &Request<'_>) -> Sge {
    match request.source {
        Source::Sges([sge, ..]) => *sge,
        _ => Sge::default(),
    }
}

/// Returns the memory of a read's sink, which must be a tagged buffer that a peer may write, as on the wire.
#[inline]
pub(crate) fn sink_spans<'p>(
    qp: &Qp,
    request: &Request<'_>,
    cx: &Cx<'p>,
) -> Result<Spans<'p>, Fault> {
    if rules::is_broken(Rule::OpenReadSink) {
        return result_spans(qp, request, cx);
    }
    let sink = sink(request);
    let buffer = (sink.lkey().value(), sink.addr());
    tagged_spans(qp, buffer, request.length, Access::REMOTE_WRITE, cx.pin)
}

/// Returns the memory for an atomic's result. The answer is untagged, so local write suffices (RFC 7306 section 5.3).
#[inline]
pub(crate) fn result_spans<'p>(
    qp: &Qp,
    request: &Request<'_>,
    cx: &Cx<'p>,
) -> Result<Spans<'p>, Fault> {
    let mut spans = Spans::new();
    qp.gather_sink(request, cx, &mut spans)?;
    Ok(spans)
}

/// Invalidates the key of a read-with-invalidate whose bytes have arrived. Returns the status of the read.
pub(crate) fn invalidate_sink(qp: &Qp, op: &Op) -> WcStatus {
    let Op::Read(_, Some(key)) = *op else {
        return WcStatus::Success;
    };
    if rules::is_broken(Rule::ReadInvalidates) {
        return WcStatus::Success;
    }
    let invalidated = qp
        .device
        .memory_management()
        .map(|management| management.invalidate_local(key.value(), qp.pd, qp.qpn));
    match invalidated {
        Some(Ok(())) => WcStatus::Success,
        _ => WcStatus::GeneralErr,
    }
}

// ---- answers

/// Handles a message for the requester: bytes of a read, an atomic response, a Terminate, or a message that claims to be
/// one of these.
pub(crate) fn handle_answer(
    qp: &Qp,
    epoch: u32,
    message: &Message,
    payload: &Payload<'_>,
    cx: &mut Cx<'_>,
) {
    let half = &mut *qp.requester();
    if half.driver.epoch != epoch || !is_ready(qp.state()) {
        return;
    }
    // The answer is for the oldest outstanding request.
    let at = (half.queue.iter()).position(|wqe| wqe.phase == Phase::Sent);
    let mut answered = Answered { qp, half, at, cx };
    let status = match message {
        Message::Tagged(segment) if segment.last && payload.is_empty() && answered.is_awaited() => {
            return;
        }
        Message::Tagged(segment) => answered.read(segment, payload),
        Message::Untagged(segment, body) if segment.qn != body.queue() => Err(Breach::OPCODE),
        Message::Untagged(_, Body::Terminate) => match terminate::decode(&payload.to_vec()) {
            Some((terminate, _)) => return answered.terminated(terminate),
            None => Err(Breach::Protocol(Reject::Length.code())),
        },
        Message::Untagged(segment, body) => answered.response(segment, *body, payload),
        _ => Err(Breach::OPCODE),
    };
    match status {
        Ok(Some(status)) => answered.finish(status),
        Ok(None) => {}
        Err(breach) => answered.fail(breach, (message, payload.len())),
    }
}

/// A queue pair with its sending half locked, and the index of its oldest request without an answer.
struct Answered<'a, 'p> {
    qp: &'a Qp,
    half: &'a mut Sending,
    at: Option<usize>,
    cx: &'a mut Cx<'p>,
}

impl Answered<'_, '_> {
    // Returns whether this is the answer to the zero-length read that began the stream.
    fn is_awaited(&mut self) -> bool {
        std::mem::take(&mut self.half.driver.awaits_ready)
    }

    // Places bytes of a read. Returns the status with the last of them. Responses arrive in the order of the requests, and
    // each segment continues where the one before it ended (RFC 5040 section 5.5).
    fn read(
        &mut self,
        segment: &Tagged,
        payload: &Payload<'_>,
    ) -> Result<Option<WcStatus>, Breach> {
        let wqe = &mut self.half.queue[self.at.ok_or(Breach::OPCODE)?];
        let request = wqe.kept.request();
        if !matches!(request.op, Op::Read(..)) {
            return Err(Breach::OPCODE);
        }
        let sink = sink(&request);
        if segment.stag != sink.lkey().value() {
            return Err(Breach::Protocol(TerminateCode::DDP_INVALID_STAG));
        }
        let end = wqe.received + payload.len() as u64;
        let follows = segment.to == sink.addr().wrapping_add(wqe.received);
        if !follows || end > request.length || segment.last != (end == request.length) {
            return Err(Breach::Protocol(TerminateCode::DDP_BOUNDS));
        }
        place_tagged(self.qp, segment.stag, segment.to, payload, self.cx.pin)?;
        wqe.received = end;
        Ok(segment.last.then(|| invalidate_sink(self.qp, &wqe.kept.op)))
    }

    // Handles a message on the queue of atomic responses.
    fn response(
        &mut self,
        segment: &Untagged,
        body: Body,
        payload: &Payload<'_>,
    ) -> Result<Option<WcStatus>, Breach> {
        let (qp, responses) = (self.qp, &mut self.half.driver.responses);
        if segment.msn != responses.wrapping_add(1) {
            return Err(Breach::Protocol(TerminateCode::DDP_MSN));
        }
        *responses = segment.msn;
        let wqe = &mut self.half.queue[self.at.ok_or(Breach::OPCODE)?];
        let request = wqe.kept.request();
        let bytes = match body {
            Body::AtomicResponse(response)
                if extension::is_atomic(qp, &request) && wqe.first == response.request_id =>
            {
                let spans = result_spans(qp, &request, self.cx).map_err(Breach::Receive)?;
                scatter_at(&spans, 0, &Payload::Bytes(&response.original.to_ne_bytes()));
                8
            }
            Body::Extension(header) => {
                extension::place(qp, &request, header, payload.to_vec().into(), self.cx)?
            }
            _ => return Err(Breach::OPCODE),
        };
        wqe.received = bytes.into();
        Ok(Some(WcStatus::Success))
    }

    // Completes the oldest request and lets requests that waited for it proceed.
    fn finish(&mut self, status: WcStatus) {
        if let Some(at) = self.at {
            self.half.queue[at].phase = Phase::Done(status);
            self.half.driver.outstanding -= 1;
            self.qp.complete_done(self.half, self.cx);
            self.qp.advance(self.half, self.cx);
        }
    }

    // Handles an answer that broke a rule: the request that it claimed to be for fails, and the peer gets a Terminate.
    #[cold]
    fn fail(&mut self, breach: Breach, about: (&Message, usize)) {
        let terminate = terminate_about(breach.code(), Some(about));
        self.half.driver.pending_terminate = Some(Box::new(terminate));
        let Some(at) = self.at else {
            fail_later(self.qp, self.cx);
            return self.qp.event(breach.event(), &mut self.cx.effects);
        };
        self.qp.enter_error(false);
        let status = match breach {
            Breach::Tagged(fault) | Breach::Receive(fault) => fault.local_status(),
            _ => WcStatus::BadRespErr,
        };
        self.half.queue[at].phase = Phase::Done(status);
        self.qp.complete_done(self.half, self.cx);
    }

    // Handles the peer's Terminate. The request that it is about gets its status, if it is still outstanding; sends and
    // writes have completed long before. A Terminate is not answered (RFC 5040 section 4.8).
    #[cold]
    fn terminated(&mut self, terminate: Terminate) {
        let queue = &mut self.half.queue;
        let named = match (terminate.ddp, terminate.rdmap) {
            (Some(SegmentHeader::Untagged(segment)), Some(_)) => queue
                .iter()
                .position(|wqe| wqe.phase == Phase::Sent && wqe.first == segment.msn),
            _ => None,
        };
        let blamed = named.or(self.at).zip(request_status(terminate.code()));
        self.half.driver.terminated = Some(Box::new(terminate));
        let Some((at, status)) = blamed else {
            fail_later(self.qp, self.cx);
            return self.qp.event(EventType::QpFatal, &mut self.cx.effects);
        };
        self.qp.enter_error(false);
        // Earlier outstanding requests get no answer either.
        for wqe in queue.range_mut(..at).filter(|wqe| wqe.phase == Phase::Sent) {
            wqe.phase = Phase::Done(WcStatus::WrFlushErr);
        }
        queue[at].phase = Phase::Done(status);
        self.qp.complete_done(self.half, self.cx);
    }
}

/// Fails a connection: the queue pair enters the error state, and is flushed as soon as no lock is held.
pub(crate) fn fail_later(qp: &Qp, cx: &mut Cx<'_>) {
    qp.enter_error(false);
    if let Some(me) = qp.shared() {
        cx.effects.flush(me.into_owner());
    }
}

/// Prepares the Terminate for a request that has failed with `status`, if this side is at fault: it reports that to the
/// peer (RFC 5040 section 7.1).
pub(crate) fn note_failure(half: &mut Sending, status: WcStatus) {
    let remote = matches!(
        status,
        WcStatus::WrFlushErr | WcStatus::RemAccessErr | WcStatus::RemInvReqErr | WcStatus::RemOpErr
    );
    if !remote && half.driver.pending_terminate.is_none() {
        let terminate = Terminate::new(TerminateCode::RDMAP_LOCAL_CATASTROPHIC);
        half.driver.pending_terminate = Some(Box::new(terminate));
    }
}

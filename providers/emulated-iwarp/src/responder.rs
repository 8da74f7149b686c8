//! The receiving half: the peer's messages become operations on the engine.
//!
//! The operations themselves are in [`crate::operations`]. Over a link ([`handle`]) sequence numbers and offsets are
//! checked, and reads and atomics wait for their turn in one queue, served in the order of their requests when what arrived
//! with them has been placed, or later: a write that was sent behind a read may be seen by it unless it was fenced (RFC 5040
//! section 5.5).

use std::collections::VecDeque;

use polyverbs_engine::payload::Payload;
use polyverbs_engine::time::Time;
use verbs_api::{Access, WcStatus};

use crate::header::{
    AtomicRequest, AtomicResponse, Body, ExtensionHeader, ExtensionMessage, Message, Opcode,
    ReadRequest, Ready, Tagged, Untagged, operation, queue,
};
use crate::operations::{
    Part, SendExtra, operate, place_write, read_source, take_immediate, take_send,
};
use crate::peer::{Peer, emit, is_ready, offer, offer_segments, send_message, terminate_message};
use crate::terminate::{self, Breach, Terminate};
use crate::{Cx, Qp, QpRef, Receiving, extension};

/// What a responder keeps.
#[derive(Debug, Default)]
pub struct Responder {
    /// This queue pair's epoch; 0 before the first connection.
    pub(crate) epoch: u32,
    /// The other end.
    pub(crate) peer: Option<Peer>,
    /// What the peer may do through this queue pair.
    pub(crate) access: Access,
    /// Reads and atomics served at one time.
    pub(crate) ird: u8,
    /// What was said to the peer at the end.
    pub(crate) sent: Option<Box<Terminate<'static>>>,
    // What only a link needs.
    inbound: Option<Box<Inbound>>,
}

impl Responder {
    // The sequence number of the next message of the queue of atomic responses.
    fn next_response(&mut self) -> u32 {
        let inbound = self.inbound.get_or_insert_default();
        inbound.responses = inbound.responses.wrapping_add(1);
        inbound.responses
    }
}

/// How far the peer's messages have come.
#[derive(Debug, Default)]
struct Inbound {
    // Messages that are complete: sends, requests.
    complete: [u32; 2],
    // Bytes of the send that is under way.
    offset: u32,
    // Bytes of the write that is under way or was last.
    written: u64,
    writing: bool,
    // Reads and atomics that wait for their turn.
    pending: VecDeque<Pending>,
    // Atomic responses sent.
    responses: u32,
}

/// A read or an atomic that waits for its turn.
#[derive(Debug)]
struct Pending {
    due: Time,
    segment: Untagged,
    request: Body,
    // Bytes of the answer to a read that have left.
    sent: usize,
    // The answer to anything else, which waits for room: a peer that does not read its answers must not fill memory.
    answer: Option<Message>,
}

/// Whether frames and calls of this epoch are for the queue pair as it is now.
#[inline]
pub(crate) fn takes(qp: &Qp, half: &Receiving, epoch: u32) -> bool {
    half.driver.epoch == epoch && is_ready(qp.state())
}

/// The peer broke a rule: error state, and the Terminate to send (RFC 5040 section 7).
#[cold]
pub(crate) fn fail(
    qp: &Qp,
    half: &mut Receiving,
    breach: Breach,
    about: Option<(&Message, usize)>,
    cx: &mut Cx<'_>,
) -> Terminate<'static> {
    let about = about.filter(|_| !breach.is_own());
    let terminate = terminate::terminate(breach.code(), about);
    half.driver.sent = Some(Box::new(terminate));
    let (status, event) = (breach.receive_status(), breach.event());
    if half.current.is_some() && status == WcStatus::WrFlushErr {
        qp.event(event, &mut cx.effects);
    }
    qp.fail_responder(half, status, event, cx);
    terminate
}

// ---- over a link

/// A segment arrived that is for the receiving half.
pub(crate) fn handle(
    qp: &Qp,
    epoch: u32,
    message: &Message,
    payload: &Payload<'_>,
    cx: &mut Cx<'_>,
) {
    let mut half = qp.responder();
    if !takes(qp, &half, epoch) {
        half.counters.dropped += 1;
        return;
    }
    // The indication is the device's, and tells the program nothing.
    if !matches!(message, Message::Ready(_)) {
        qp.note_arrival(&mut half, cx);
    }
    let handled = match message {
        Message::Tagged(segment) => write_segment(qp, &mut half, *segment, payload, cx),
        Message::Untagged(segment, body) => {
            untagged_segment(qp, &mut half, segment, body, payload, cx)
        }
        Message::Ready(ready) => {
            take_ready(qp, &mut half, *ready, cx);
            Ok(())
        }
        _ => Ok(()),
    };
    if let Err(breach) = handled {
        terminate(qp, &mut half, breach, Some((message, payload.len())), cx);
    }
}

// The indication is a message that no program sent: it counts as the first of its queue, and takes no receive.
fn take_ready(qp: &Qp, half: &mut Receiving, ready: Ready, cx: &mut Cx<'_>) {
    let complete = &mut half.driver.inbound.get_or_insert_default().complete;
    match ready {
        Ready::Write => {}
        Ready::Send => complete[queue::SEND as usize] = 1,
        Ready::Read(request) => {
            complete[queue::REQUEST as usize] = 1;
            if let Some(peer) = half.driver.peer {
                let (stag, to) = (request.sink_stag, request.sink_to);
                let segment = Tagged::new(Opcode::READ_RESPONSE, stag, to, true);
                emit(qp, &peer, Message::Tagged(segment), Payload::Empty, cx);
            }
        }
    }
}

/// What arrived is no segment, or has a wrong checksum.
pub(crate) fn handle_broken(qp: &Qp, epoch: u32, breach: Breach, cx: &mut Cx<'_>) {
    let mut half = qp.responder();
    if takes(qp, &half, epoch) {
        terminate(qp, &mut half, breach, None, cx);
    }
}

#[cold]
fn terminate(
    qp: &Qp,
    half: &mut Receiving,
    breach: Breach,
    about: Option<(&Message, usize)>,
    cx: &mut Cx<'_>,
) {
    let terminate = fail(qp, half, breach, about, cx);
    if let Some(peer) = half.driver.peer {
        send_message(qp, &peer, terminate_message(terminate), cx);
    }
}

fn write_segment(
    qp: &Qp,
    half: &mut Receiving,
    segment: Tagged,
    payload: &Payload<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), Breach> {
    debug_assert_eq!(
        segment.opcode,
        Opcode::WRITE,
        "responses are the requester's"
    );
    place_write(qp, half, segment.stag, segment.to, payload, cx.pin)?;
    let inbound = half.driver.inbound.get_or_insert_default();
    let before = if inbound.writing { inbound.written } else { 0 };
    inbound.written = before + payload.len() as u64;
    inbound.writing = !segment.last;
    Ok(())
}

fn untagged_segment(
    qp: &Qp,
    half: &mut Receiving,
    segment: &Untagged,
    body: &Body,
    payload: &Payload<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), Breach> {
    check_order(half, segment, body)?;
    match body {
        Body::Send => {
            let extra = SendExtra {
                solicited: segment.solicits(),
                invalidate: segment.invalidates(),
            };
            let part = Part {
                offset: segment.mo,
                last: segment.last,
            };
            take_send(qp, half, part, extra, payload, cx)?;
        }
        Body::Immediate => {
            if payload.len() != 8 || !segment.last {
                return Err(Breach::ImmediateLength);
            }
            let [a, b, c, d, ..] = payload.word().to_ne_bytes();
            let written = half.driver.inbound.get_or_insert_default().written;
            let solicited = segment.solicits();
            take_immediate(qp, half, [a, b, c, d], written, solicited, cx)?;
        }
        Body::ReadRequest(_) | Body::AtomicRequest(_) | Body::Extension(_) => {
            enqueue(qp, half, segment, body, cx)?;
        }
        Body::AtomicResponse(_) | Body::Terminate(_) => return Err(Breach::Opcode),
    }
    note_segment(half, segment, payload.len());
    Ok(())
}

// Queue, sequence number and offset, in the order in which DDP and RDMAP look at them (RFC 5041 section 7.2).
fn check_order(half: &mut Receiving, segment: &Untagged, body: &Body) -> Result<(), Breach> {
    let inbound = half.driver.inbound.get_or_insert_default();
    let complete = inbound
        .complete
        .get(segment.qn as usize)
        .ok_or(Breach::QueueNumber)?;
    if segment.msn != complete.wrapping_add(1) {
        return Err(Breach::MessageSequence);
    }
    let offset = if segment.qn == queue::SEND {
        inbound.offset
    } else {
        0
    };
    if segment.mo != offset {
        return Err(Breach::MessageOffset);
    }
    let begun_as_send = offset != 0 && !matches!(body, Body::Send);
    if body.queue() != segment.qn || begun_as_send {
        return Err(Breach::Opcode);
    }
    Ok(())
}

fn note_segment(half: &mut Receiving, segment: &Untagged, octets: usize) {
    let inbound = half.driver.inbound.get_or_insert_default();
    if segment.qn == queue::SEND {
        inbound.offset = if segment.last {
            0
        } else {
            segment.mo.wrapping_add(octets as u32)
        };
        inbound.written = 0;
    }
    if segment.last {
        let complete = &mut inbound.complete[segment.qn as usize];
        *complete = complete.wrapping_add(1);
    }
}

// Reads and atomics share one budget and one order (RFC 7306 section 5).
fn enqueue(
    qp: &Qp,
    half: &mut Receiving,
    segment: &Untagged,
    request: &Body,
    cx: &mut Cx<'_>,
) -> Result<(), Breach> {
    debug_assert_eq!(segment.qn, queue::REQUEST);
    let ird = usize::from(half.driver.ird);
    let inbound = half.driver.inbound.get_or_insert_default();
    if inbound.pending.len() >= ird {
        return Err(Breach::Budget);
    }
    let now = cx.now();
    let latest = inbound.pending.back().map_or(now, |pending| pending.due);
    let due = latest.max(now.after(qp.device.driver().service.draw(qp.qpn, segment.msn)));
    inbound.pending.push_back(Pending {
        due,
        segment: *segment,
        request: request.clone(),
        sent: 0,
        answer: None,
    });
    let serve = {
        let qp = qp.downgrade();
        Box::new(move |now| {
            if let Some(qp) = qp.upgrade() {
                serve(&qp, now);
            }
        })
    };
    let network = qp.device.network();
    if due == now {
        network.serve_later(serve)
    } else {
        network.timers().add(due, serve)
    }
    Ok(())
}

// Serves the reads and atomics whose turn has come, as far as there is room for their answers.
pub(crate) fn serve(qp: &QpRef, now: Time) {
    Cx::run(&qp.device, Some(now), |cx| {
        let mut half = qp.responder();
        while let Some(mut pending) = next_due(qp, &mut half, now) {
            match answer(qp, &mut half, &mut pending, cx) {
                Ok(true) => {}
                Ok(false) => {
                    if let Some(inbound) = &mut half.driver.inbound {
                        inbound.pending.push_front(pending);
                    }
                    break;
                }
                Err(breach) => {
                    let about = unanswered(pending);
                    terminate(qp, &mut half, breach, Some((&about, 0)), cx);
                }
            }
        }
    });
}

fn next_due(qp: &Qp, half: &mut Receiving, now: Time) -> Option<Pending> {
    let inbound = half
        .driver
        .inbound
        .as_mut()
        .filter(|_| is_ready(qp.state()))?;
    if inbound.pending.front()?.due > now {
        return None;
    }
    inbound.pending.pop_front()
}

// What is left of a request: of a read, behind what has been answered (RFC 5040 section 4.8).
fn unanswered(pending: Pending) -> Message {
    let mut request = pending.request;
    if let Body::ReadRequest(read) = &mut request {
        read.sink_to = read.sink_to.wrapping_add(pending.sent as u64);
        read.source_to = read.source_to.wrapping_add(pending.sent as u64);
        read.length -= pending.sent as u32;
    }
    Message::Untagged(pending.segment, request)
}

// Whether it was answered; else there is no room for all of it.
fn answer(
    qp: &Qp,
    half: &mut Receiving,
    pending: &mut Pending,
    cx: &mut Cx<'_>,
) -> Result<bool, Breach> {
    let Some(peer) = half.driver.peer else {
        return Ok(true);
    };
    let answer = match (pending.answer.take(), &pending.request) {
        (Some(answer), _) => answer,
        (None, Body::ReadRequest(read)) => {
            return answer_read(qp, half, &peer, read, &mut pending.sent, cx);
        }
        (None, Body::AtomicRequest(atomic)) => answer_atomic(qp, half, atomic, cx)?,
        (None, Body::Extension(request)) => answer_extension(qp, half, request, cx)?,
        _ => return Err(Breach::Opcode),
    };
    let is_sent = offer(qp, &peer, answer.clone(), Payload::Empty, cx);
    pending.answer = (!is_sent).then_some(answer);
    Ok(is_sent)
}

fn answer_read(
    qp: &Qp,
    half: &Receiving,
    peer: &Peer,
    read: &ReadRequest,
    sent: &mut usize,
    cx: &mut Cx<'_>,
) -> Result<bool, Breach> {
    let spans = read_source(
        qp,
        half,
        read.source_stag,
        read.source_to,
        u64::from(read.length),
        cx.pin,
    )?;
    let whole = Payload::of_spans(&spans);
    let segment = |offset: usize, last| {
        let to = read.sink_to.wrapping_add(offset as u64);
        Message::Tagged(Tagged::new(Opcode::READ_RESPONSE, read.sink_stag, to, last))
    };
    Ok(offer_segments(qp, peer, &whole, sent, segment, cx))
}

fn answer_atomic(
    qp: &Qp,
    half: &mut Receiving,
    atomic: &AtomicRequest,
    cx: &Cx<'_>,
) -> Result<Message, Breach> {
    let op = operation(atomic).ok_or(Breach::Opcode)?;
    let original = operate(qp, half, op, atomic.stag, atomic.to, cx.pin)?;
    let msn = half.driver.next_response();
    let response = AtomicResponse {
        request_id: atomic.request_id,
        original,
    };
    let body = Body::AtomicResponse(response);
    Ok(Message::untagged(msn, Opcode::ATOMIC_RESPONSE, body))
}

fn answer_extension(
    qp: &Qp,
    half: &mut Receiving,
    request: &ExtensionMessage,
    cx: &Cx<'_>,
) -> Result<Message, Breach> {
    let octets = extension::carry_out(qp, half, request, cx.pin)?;
    let msn = half.driver.next_response();
    let header = ExtensionHeader {
        is_response: true,
        ..request.header
    };
    let body = Body::Extension(Box::new(ExtensionMessage { header, octets }));
    Ok(Message::untagged(msn, Opcode::EXTENSION, body))
}

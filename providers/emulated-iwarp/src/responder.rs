//! The receiving half: it turns the peer's messages into operations on the engine.
//!
//! The operations themselves are in [`crate::operations`]. Over a link ([`handle`]) sequence numbers and offsets are
//! checked. Reads and atomics wait in one queue and are served in the order of their requests, when the segments that
//! arrived with them have been placed or later: a read may see a write that was sent after it, unless that write was fenced
//! (RFC 5040 section 5.5).

use std::collections::VecDeque;

use polyverbs_engine::operation::Octets;
use polyverbs_engine::payload::Payload;
use polyverbs_engine::time::Time;
use verbs_api::{Access, WcStatus};

use crate::header::{
    AtomicResponse, Body, ExtensionHeader, Message, Opcode, ReadRequest, Ready, Tagged, Untagged,
    operation, queue,
};
use crate::operations::Target;
use crate::peer::{Peer, emit, is_ready, offer, offer_segments, send_terminate};
use crate::terminate::{Breach, Terminate, TerminateCode, terminate_about};
use crate::{Cx, Qp, QpRef, Receiving};

/// The transport's state of a responder.
#[derive(Debug, Default)]
pub struct Responder {
    /// The epoch, a number that identifies this queue pair's present or last connection in the process; 0 before the first
    /// one.
    pub(crate) epoch: u32,
    /// The peer, as soon as the program has named it.
    pub(crate) peer: Option<Peer>,
    /// The rights that the queue pair grants to its peer.
    pub(crate) access: Access,
    /// How many reads and atomics of the peer may wait to be served (IRD).
    pub(crate) ird: u8,
    // The state that only a link needs.
    inbound: Option<Box<Inbound>>,
}

impl Responder {
    fn inbound(&mut self) -> &mut Inbound {
        self.inbound.get_or_insert_default()
    }

    // The sequence number of the next message on the queue of atomic responses.
    fn next_response(&mut self) -> u32 {
        let responses = &mut self.inbound().responses;
        *responses = responses.wrapping_add(1);
        *responses
    }
}

/// The progress of the peer's messages that come over a link.
#[derive(Debug, Default)]
struct Inbound {
    // Complete messages on the queues of sends and of requests.
    complete: [u32; 2],
    // Bytes of the unfinished send.
    offset: u32,
    // Bytes of the unfinished or last write.
    written: u64,
    writing: bool,
    // Reads and atomics that wait for their turn.
    pending: VecDeque<Pending>,
    // Atomic responses sent.
    responses: u32,
}

/// A read or an atomic of the peer that waits to be served.
#[derive(Debug)]
struct Pending {
    due: Time,
    segment: Untagged,
    request: Body,
    // The bytes after the request of an extension.
    bytes: Octets,
    // Bytes of a read's answer that were sent.
    sent: usize,
    // The answer to another request than a read. It waits for room, so that a peer that does not read its answers cannot
    // fill memory.
    answer: Option<(Message, Octets)>,
}

/// Returns whether the queue pair accepts messages now: it is in RTR, RTS or SQD, and its connection is the one of this
/// epoch.
#[inline]
pub(crate) fn takes(qp: &Qp, half: &Receiving, epoch: u32) -> bool {
    half.driver.epoch == epoch && is_ready(qp.state())
}

/// Handles a segment or a ready-to-receive indication that has arrived for the responder.
pub(crate) fn handle(
    qp: &Qp,
    epoch: u32,
    message: &Message,
    payload: &Payload<'_>,
    cx: &mut Cx<'_>,
) {
    let half = &mut *qp.responder();
    if !takes(qp, half, epoch) {
        half.counters.dropped += 1;
        return;
    }
    // The indication is between devices and does not count as communication for the program.
    if !matches!(message, Message::Ready(_)) {
        qp.note_arrival(half, cx);
    }
    let mut target = Target { qp, half, cx };
    let handled = match message {
        Message::Tagged(segment) => target.write_segment(segment, payload),
        Message::Untagged(segment, body) => target.untagged_segment(segment, body, payload),
        Message::Ready(ready) => {
            target.take_ready(*ready);
            Ok(())
        }
        _ => Ok(()),
    };
    if let Err(breach) = handled {
        target.terminate(breach, Some((message, payload.len())));
    }
}

/// Handles bytes of the stream that are no segment, or a segment with a wrong checksum: the connection ends with a
/// Terminate.
pub(crate) fn handle_broken(qp: &Qp, epoch: u32, breach: Breach, cx: &mut Cx<'_>) {
    let half = &mut *qp.responder();
    if takes(qp, half, epoch) {
        Target { qp, half, cx }.terminate(breach, None);
    }
}

/// Serves the reads and atomics that are due, in order, as far as the stream has room for their answers.
pub(crate) fn serve(qp: &QpRef, now: Time) {
    Cx::run(&qp.device, Some(now), |cx| {
        let half = &mut *qp.responder();
        let mut target = Target { qp, half, cx };
        while let Some(mut pending) = target.next_due(now) {
            match target.answer(&mut pending) {
                Ok(true) => {}
                Ok(false) => {
                    target.half.driver.inbound().pending.push_front(pending);
                    break;
                }
                Err(breach) => {
                    let about = (&unanswered(&pending), pending.bytes.len());
                    target.terminate(breach, Some(about));
                }
            }
        }
    });
}

// Returns the unanswered part of a request; of a read, the part after the bytes that were answered (RFC 5040 section 4.8).
fn unanswered(pending: &Pending) -> Message {
    let mut request = pending.request;
    if let Body::ReadRequest(read) = &mut request {
        read.sink_to = read.sink_to.wrapping_add(pending.sent as u64);
        read.source_to = read.source_to.wrapping_add(pending.sent as u64);
        read.length -= pending.sent as u32;
    }
    Message::Untagged(pending.segment, request)
}

impl Target<'_, '_> {
    /// Puts the queue pair into the error state because the peer's message breaks a rule or cannot be carried out. Returns
    /// the Terminate to send (RFC 5040 section 7); `about` is the segment at fault and the number of its payload bytes.
    #[cold]
    pub(crate) fn fail(&mut self, breach: Breach, about: Option<(&Message, usize)>) -> Terminate {
        let about = about.filter(|_| !breach.is_own());
        let terminate = terminate_about(breach.code(), about);
        let (status, event) = (breach.receive_status(), breach.event());
        if self.half.current.is_some() && status == WcStatus::WrFlushErr {
            self.qp.event(event, &mut self.cx.effects);
        }
        self.qp.fail_responder(self.half, status, event, self.cx);
        terminate
    }

    #[cold]
    fn terminate(&mut self, breach: Breach, about: Option<(&Message, usize)>) {
        let terminate = self.fail(breach, about);
        if let Some(peer) = self.half.driver.peer {
            send_terminate(self.qp, &peer, &terminate, self.cx);
        }
    }

    // The indication is a message that no program sent: it counts as the first of its queue and takes no receive.
    fn take_ready(&mut self, ready: Ready) {
        let complete = &mut self.half.driver.inbound().complete;
        match ready {
            Ready::Write => {}
            Ready::Send => complete[queue::SEND as usize] = 1,
            Ready::Read(request) => {
                complete[queue::REQUEST as usize] = 1;
                if let Some(peer) = self.half.driver.peer {
                    let (stag, to) = (request.sink_stag, request.sink_to);
                    let segment = Tagged::new(Opcode::READ_RESPONSE, stag, to, true);
                    let message = Message::Tagged(segment);
                    emit(self.qp, &peer, message, Payload::Empty, self.cx);
                }
            }
        }
    }

    fn write_segment(&mut self, segment: &Tagged, payload: &Payload<'_>) -> Result<(), Breach> {
        debug_assert_eq!(
            segment.opcode,
            Opcode::WRITE,
            "responses are the requester's"
        );
        self.write(segment.stag, segment.to, payload)?;
        let inbound = self.half.driver.inbound();
        let before = if inbound.writing { inbound.written } else { 0 };
        inbound.written = before + payload.len() as u64;
        inbound.writing = !segment.last;
        Ok(())
    }

    fn untagged_segment(
        &mut self,
        segment: &Untagged,
        body: &Body,
        payload: &Payload<'_>,
    ) -> Result<(), Breach> {
        self.check_order(segment, body)?;
        match body {
            Body::Data => self.send(segment, payload)?,
            Body::Immediate => {
                if payload.len() != 8 || !segment.last {
                    // RFC 7306 has no code for this: it is the nearest that blames the stream.
                    return Err(Breach::Protocol(TerminateCode::RDMAP_STREAM));
                }
                let [a, b, c, d, ..] = payload.word().to_ne_bytes();
                let written = self.half.driver.inbound().written;
                self.immediate([a, b, c, d], written, segment.solicits())?;
            }
            Body::ReadRequest(_) | Body::AtomicRequest(_) | Body::Extension(_) => {
                self.enqueue(segment, *body, payload)?;
            }
            Body::AtomicResponse(_) | Body::Terminate => return Err(Breach::OPCODE),
        }
        let inbound = self.half.driver.inbound();
        if segment.qn == queue::SEND {
            inbound.offset = match segment.last {
                true => 0,
                false => segment.mo.wrapping_add(payload.len() as u32),
            };
            inbound.written = 0;
        }
        if segment.last {
            let complete = &mut inbound.complete[segment.qn as usize];
            *complete = complete.wrapping_add(1);
        }
        Ok(())
    }

    // Checks queue, sequence number and offset, in the order in which DDP and RDMAP check them (RFC 5041 section 7.2).
    fn check_order(&mut self, segment: &Untagged, body: &Body) -> Result<(), Breach> {
        let inbound = self.half.driver.inbound();
        let complete = inbound.complete.get(segment.qn as usize);
        let complete = complete.ok_or(Breach::Protocol(TerminateCode::DDP_QUEUE))?;
        if segment.msn != complete.wrapping_add(1) {
            return Err(Breach::Protocol(TerminateCode::DDP_MSN));
        }
        let offset = match segment.qn {
            queue::SEND => inbound.offset,
            _ => 0,
        };
        if segment.mo != offset {
            return Err(Breach::Protocol(TerminateCode::DDP_OFFSET));
        }
        let begun_as_send = offset != 0 && !matches!(body, Body::Data);
        if body.queue() != segment.qn || begun_as_send {
            return Err(Breach::OPCODE);
        }
        Ok(())
    }

    // Queues a read or an atomic. Both share one limit and one order (RFC 7306 section 5).
    fn enqueue(
        &mut self,
        segment: &Untagged,
        request: Body,
        payload: &Payload<'_>,
    ) -> Result<(), Breach> {
        debug_assert_eq!(segment.qn, queue::REQUEST);
        let (qp, ird) = (self.qp, usize::from(self.half.driver.ird));
        let pending = &mut self.half.driver.inbound().pending;
        if pending.len() >= ird {
            // RFC 7306 section 8 makes this a catastrophic error of the stream.
            return Err(Breach::Protocol(TerminateCode::RDMAP_STREAM));
        }
        let now = self.cx.now();
        let latest = pending.back().map_or(now, |pending| pending.due);
        let due = latest.max(now.after(qp.device.driver().service.draw(qp.qpn, segment.msn)));
        pending.push_back(Pending {
            due,
            segment: *segment,
            request,
            bytes: payload.to_vec().into(),
            sent: 0,
            answer: None,
        });
        let weak = qp.downgrade();
        let serve = Box::new(move |now| {
            if let Some(qp) = weak.upgrade() {
                serve(&qp, now);
            }
        });
        let network = qp.device.network();
        match due == now {
            true => network.serve_later(serve),
            false => network.timers().add(due, serve),
        }
        Ok(())
    }

    fn next_due(&mut self, now: Time) -> Option<Pending> {
        let pending = &mut self.half.driver.inbound().pending;
        let is_due = is_ready(self.qp.state()) && pending.front()?.due <= now;
        is_due.then(|| pending.pop_front()).flatten()
    }

    // Answers a request. Returns `false` if the stream has no room for the whole answer.
    fn answer(&mut self, pending: &mut Pending) -> Result<bool, Breach> {
        let Some(peer) = self.half.driver.peer else {
            return Ok(true);
        };
        let (answer, bytes) = match (pending.answer.take(), pending.request) {
            (Some(answer), _) => answer,
            (None, Body::ReadRequest(read)) => {
                return self.answer_read(&peer, &read, &mut pending.sent);
            }
            (None, Body::AtomicRequest(atomic)) => {
                let op = operation(&atomic).ok_or(Breach::OPCODE)?;
                let body = Body::AtomicResponse(AtomicResponse {
                    request_id: atomic.request_id,
                    original: self.atomic(op, atomic.stag, atomic.to)?,
                });
                (self.response(Opcode::ATOMIC_RESPONSE, body), Octets::new())
            }
            (None, Body::Extension(request)) => {
                let bytes = self.extension(request, &pending.bytes)?;
                let body = Body::Extension(ExtensionHeader {
                    is_response: true,
                    ..request
                });
                (self.response(Opcode::EXTENSION, body), bytes)
            }
            _ => return Err(Breach::OPCODE),
        };
        let is_sent = offer(self.qp, &peer, answer, Payload::Bytes(&bytes), self.cx);
        pending.answer = (!is_sent).then_some((answer, bytes));
        Ok(is_sent)
    }

    fn response(&mut self, opcode: Opcode, body: Body) -> Message {
        Message::untagged(self.half.driver.next_response(), opcode, body)
    }

    fn answer_read(
        &mut self,
        peer: &Peer,
        read: &ReadRequest,
        sent: &mut usize,
    ) -> Result<bool, Breach> {
        let spans = self.read(read.source_stag, read.source_to, read.length.into())?;
        let whole = Payload::of_spans(&spans);
        let segment = |offset: usize, last| {
            let to = read.sink_to.wrapping_add(offset as u64);
            Message::Tagged(Tagged::new(Opcode::READ_RESPONSE, read.sink_stag, to, last))
        };
        Ok(offer_segments(
            self.qp, peer, &whole, sent, segment, self.cx,
        ))
    }
}

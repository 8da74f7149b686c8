//! Requests that a target of one process receives for a shared receive queue of another process at the same address.
//!
//! The process that has the target checks the order of packets. It sends a request that names a queue of another process to
//! that process, and keeps the later packets of the target until the *outcome* has come back. The process that has the queue
//! executes the request on a *stand-in*: a queue pair with the number of the target that no frame finds.
//!
//! Messages between the two may be lost, as packets may: the initiator then repeats its request, and the request is sent
//! again with the number that it had. The stand-in answers a number that it knows with the outcome that it has kept, so
//! that nothing is executed twice.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use polyverbs_engine::emulation::{DomainId, Target};
use polyverbs_engine::link::Note;
use polyverbs_engine::operation::Octets;
use polyverbs_engine::payload::{Payload, Spans};
use verbs_api::event::EventType;
use verbs_api::ids::Psn;
use verbs_api::provider::{Mutex, random};
use verbs_api::qp::QpState;
use verbs_api::{Access, WcStatus};

use crate::answer::{self, Answer, Refusal};
use crate::header::{Body, Header, Nak, packets};
use crate::responder::{self, Incoming};
use crate::{Cx, Device, Qp, QpRef, Receiving};

mod message;

use message::{Code, Outcome, PIECE, Request};

/// The state of a target some of whose requests are executed by other processes.
#[derive(Debug)]
pub(crate) struct Relay {
    /// Distinguishes this connection of the target from earlier ones.
    generation: u64,
    /// The number of the next request that is executed once. It advances when that request is done.
    number: u64,
    /// The number of the last message that asks for an outcome, which the outcome repeats.
    step: u32,
    waiting: Option<Waiting>,
    /// The packets that have arrived while a request waits, in order.
    later: VecDeque<(Header, Vec<u8>)>,
    /// The bytes of their payloads.
    later_bytes: usize,
    /// The PSN after those of `later`, or, without any, of the waiting request.
    next: Psn,
    /// For each process that has got a request, the number of one of its queues.
    owners: BTreeSet<u32>,
}

/// The request that waits for its outcome.
#[derive(Debug)]
struct Waiting {
    header: Header,
    payload: Vec<u8>,
    /// Whether the initiator repeats a read that was answered before.
    repeats: bool,
    /// The bytes of a read that have arrived and were sent to the initiator.
    read: u32,
}

/// Whether the initiator repeats a read that was answered before.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Repeats {
    No,
    Yes,
}

impl Relay {
    fn new() -> Self {
        Self {
            generation: random(),
            number: 1,
            step: 0,
            waiting: None,
            later: VecDeque::new(),
            later_bytes: 0,
            next: Psn::default(),
            owners: BTreeSet::new(),
        }
    }

    fn forget_later(&mut self) {
        self.later.clear();
        self.later_bytes = 0;
    }
}

/// Returns the domain in which another process executes the request of this packet; `None` if this process executes it.
pub(crate) fn elsewhere(qp: &Qp, header: &Header) -> Option<DomainId> {
    let (number, (first, end)) = (header.xrc?, qp.device.numbers());
    let domain = qp.extensions()?.domain()?;
    let is_own = (first..end).contains(&number);
    let is_shared = (qp.device.network().link()).is_some_and(|link| link.is_shared());
    (!is_own && is_shared).then_some(domain)
}

/// Handles a packet that has arrived while a request waits for its outcome; returns `false` if none waits.
pub(crate) fn keep(qp: &Qp, half: &mut Receiving, header: &Header, payload: &Payload<'_>) -> bool {
    let mtu_shift = half.driver.mtu_shift;
    let Some(relay) = half.driver.rest.relay.as_mut() else {
        return false;
    };
    let Some(waiting) = &relay.waiting else {
        return false;
    };
    let end = psn_after(&waiting.header, waiting.payload.len(), mtu_shift);
    let is_from_begin = header.psn.distance_from(waiting.header.psn) >= 0;
    // The initiator repeats the request, or the rest of a read.
    if is_from_begin && header.psn.distance_from(end) < 0 {
        half.counters.duplicates += 1;
        ask(qp, half);
        return true;
    }
    let is_next = header.psn == relay.next;
    if !is_next || relay.later.len() >= MOST_LATER || relay.later_bytes >= MOST_LATER_BYTES {
        // The initiator repeats the packet.
        half.counters.dropped += 1;
        return true;
    }
    relay.next = psn_after(header, payload.len(), mtu_shift);
    relay.later_bytes += payload.len();
    relay.later.push_back((*header, payload.to_vec()));
    true
}

/// The PSN of the request after this packet, whose payload has so many bytes.
fn psn_after(header: &Header, payload: usize, mtu_shift: u8) -> Psn {
    let length = match header.body {
        Body::ReadRequest(_, length) => length.into(),
        Body::Send(..) | Body::Write(..) => payload as u64,
        _ => 0,
    };
    header.psn.plus(packets(length, mtu_shift))
}

/// Sends a request to the process that executes it. Its answer is sent when the outcome has come back.
pub(crate) fn begin<'p>(
    qp: &Qp,
    half: &mut Receiving,
    header: &Header,
    payload: &Payload<'_>,
    repeats: Repeats,
) -> Answer<'p> {
    let repeats = matches!(repeats, Repeats::Yes);
    let next = match repeats {
        true => half.driver.expected,
        false => psn_after(header, payload.len(), half.driver.mtu_shift),
    };
    let rest = &mut half.driver.rest;
    let relay = rest.relay.get_or_insert_with(|| Box::new(Relay::new()));
    if relay.later.is_empty() {
        relay.next = next;
    }
    relay.step = relay.step.wrapping_add(1);
    relay.waiting = Some(Waiting {
        header: *header,
        payload: payload.to_vec(),
        repeats,
        read: 0,
    });
    ask(qp, half);
    Answer::Later
}

// Sends the waiting request, or the next piece of a waiting read.
fn ask(qp: &Qp, half: &mut Receiving) {
    let domain = qp.extensions().and_then(|all| all.domain());
    let (Some(link), Some(domain)) = (qp.device.network().link(), domain) else {
        return;
    };
    let (access, mtu_shift, peer_qpn) = (
        half.driver.access,
        half.driver.mtu_shift,
        half.driver.rest.peer_qpn,
    );
    let Some(relay) = half.driver.rest.relay.as_mut() else {
        return;
    };
    let Some(Waiting {
        header,
        payload,
        read,
        ..
    }) = &relay.waiting
    else {
        return;
    };
    let srqn = header.xrc.unwrap_or(0);
    let (body, left) = match header.body {
        Body::ReadRequest(remote, length) => {
            let left = length.saturating_sub(*read);
            let piece = left.min(PIECE);
            (Body::ReadRequest(remote.plus((*read).into()), piece), left)
        }
        body => (body, 0),
    };
    let request = Request {
        qpn: qp.qpn,
        peer_qpn,
        srqn,
        generation: relay.generation,
        number: relay.number,
        step: relay.step,
        access: access.bits(),
        left,
        domain,
        mtu_shift,
    };
    let header = Header { body, ..*header };
    relay.owners.retain(|one| !is_together(*one, srqn));
    relay.owners.insert(srqn);
    if let Some(message) = request.encode(&header, payload) {
        link.send_message(srqn, message);
    }
}

// Returns whether two numbers belong to one process: they have the same upper six bits.
const fn is_together(one: u32, other: u32) -> bool {
    one >> 18 == other >> 18
}

/// Ends the stand-ins of a target that is reset, destroyed or in error.
pub(crate) fn end(qp: &Qp, half: &mut Receiving) {
    if let (Some(relay), Some(link)) = (half.driver.rest.relay.take(), qp.device.network().link()) {
        for owner in relay.owners {
            link.send_message(owner, message::end(qp.qpn, relay.generation));
        }
    }
}

/// Handles a note of another process at the device's address.
pub(crate) fn handle_note(device: &Device, note: Note<'_>, cx: &mut Cx<'_>) {
    match note {
        Note::Gone { first, end } => handle_gone(device, first..end, cx),
        Note::Message(bytes) => match message::read(bytes) {
            Some(message::Message::Request(request, header, payload)) => {
                serve(device, &request, &header, payload, cx);
            }
            Some(message::Message::Outcome(outcome, bytes)) => finish(device, &outcome, bytes, cx),
            Some(message::Message::End(qpn, generation)) => {
                end_stand_ins(device, |number, one| {
                    number == qpn && one.generation == generation
                });
            }
            None => {}
        },
    }
}

fn end_stand_ins(device: &Device, which: impl Fn(u32, &StandIn) -> bool) {
    for target in device.domains().all() {
        drop(target.end_stand_ins(&which));
    }
}

fn handle_gone(device: &Device, numbers: std::ops::Range<u32>, cx: &mut Cx<'_>) {
    end_stand_ins(device, |qpn, _| numbers.contains(&qpn));
    for qp in device.all_qps() {
        if !qp.carries_srqn {
            continue;
        }
        let half = qp.responder();
        let waiting = half.driver.rest.relay.as_ref().and_then(|relay| {
            let waiting = relay.waiting.as_ref()?;
            let is_gone = numbers.contains(&waiting.header.xrc?);
            is_gone.then_some((relay.generation, relay.step))
        });
        drop(half);
        if let Some((generation, step)) = waiting {
            // The queue has gone with its process, so the request names none.
            let outcome = Outcome {
                qpn: qp.qpn,
                generation,
                step,
                code: Code::Nak(Nak::INVALID_REQUEST),
                fails: message::Fails::WithEvent,
            };
            finish(device, &outcome, &[], cx);
        }
    }
}

// ---- the process that has the target

// Handles the outcome of the waiting request: answers the initiator, and continues with the packets that were kept.
fn finish(device: &Device, outcome: &Outcome, bytes: &[u8], cx: &mut Cx<'_>) {
    let is_target = |qp: &&Qp| qp.carries_srqn && qp.is_target();
    let Some(qp) = device.pinned_qp(outcome.qpn, cx.pin).filter(is_target) else {
        return;
    };
    let half = &mut *qp.responder();
    let is_ready = matches!(qp.state(), QpState::Rtr | QpState::Rts | QpState::Sqd);
    let Some(relay) = half.driver.rest.relay.as_mut().filter(|_| is_ready) else {
        return;
    };
    if (relay.generation, relay.step) != (outcome.generation, outcome.step) {
        return;
    }
    let Some(mut waiting) = relay.waiting.take() else {
        return;
    };
    let header = waiting.header;
    let mut answer = match outcome.code {
        Code::Rnr => {
            relay.forget_later();
            half.driver.nak_sent = true;
            Answer::Rnr(half.driver.rest.min_rnr_timer, header.psn)
        }
        Code::Nak(nak) => {
            relay.forget_later();
            Answer::Nak(nak, header.psn)
        }
        Code::Fatal => Answer::None,
        Code::Done => done(qp, half, &waiting, 0, Octets::new()),
        Code::Value(original) => {
            done(qp, half, &waiting, original, Octets::new());
            Answer::Atomic(original)
        }
        Code::Bytes => match header.body {
            Body::ReadRequest(_, length) => {
                let at = waiting.read;
                let piece = (length - at).min(PIECE);
                if bytes.len() != piece as usize {
                    relay.waiting = Some(waiting);
                    return;
                }
                answer::read_piece(qp, half, &header, &Payload::Bytes(bytes), (at, length), cx);
                waiting.read += piece;
                if waiting.read < length {
                    if let Some(relay) = half.driver.rest.relay.as_mut() {
                        relay.step = relay.step.wrapping_add(1);
                        relay.waiting = Some(waiting);
                    }
                    return ask(qp, half);
                }
                done(qp, half, &waiting, 0, Octets::new());
                Answer::None
            }
            Body::Flush(..) => {
                done(qp, half, &waiting, 0, Octets::new());
                Answer::Read(Spans::new())
            }
            _ => {
                let answer = Octets::from_slice(bytes);
                done(qp, half, &waiting, 0, answer.clone());
                Answer::Extension(answer)
            }
        },
    };
    let event = match (outcome.code, outcome.fails) {
        (_, message::Fails::No) => None,
        (_, message::Fails::Silently) => Some(None),
        (Code::Fatal, _) => Some(Some(EventType::QpFatal)),
        (Code::Nak(Nak::REMOTE_ACCESS), _) => Some(Some(EventType::QpAccessErr)),
        _ => Some(Some(EventType::QpReqErr)),
    };
    if waiting.repeats && matches!(answer, Answer::Ack(_)) {
        answer = Answer::None;
    }
    answer::send(qp, half, &header, answer, cx);
    if let Some(event) = event {
        half.driver.inbound_ends();
        qp.fail_elsewhere(event, cx);
        return end(qp, half);
    }
    go_on(qp, half, cx);
}

// Notes that the waiting request was carried out, and returns its acknowledge.
fn done<'p>(
    qp: &Qp,
    half: &mut Receiving,
    waiting: &Waiting,
    original: u64,
    answer: Octets,
) -> Answer<'p> {
    if waiting.repeats {
        return Answer::None;
    }
    if let Some(relay) = half.driver.rest.relay.as_mut() {
        relay.number += 1;
    }
    let header = &waiting.header;
    if !matches!(
        header.body,
        Body::Send(..) | Body::Write(..) | Body::AtomicWrite(_)
    ) {
        responder::note(half, header, original, answer);
    }
    responder::arrived_elsewhere(qp, half, header, waiting.payload.len())
}

// Handles the packets that were kept, until one of them waits for an outcome.
fn go_on(qp: &Qp, half: &mut Receiving, cx: &mut Cx<'_>) {
    loop {
        let Some(relay) = half.driver.rest.relay.as_mut() else {
            return;
        };
        if relay.waiting.is_some() {
            return;
        }
        let Some((header, payload)) = relay.later.pop_front() else {
            return;
        };
        relay.later_bytes -= payload.len();
        let payload = Payload::Bytes(&payload);
        let response = responder::respond(qp, half, &header, &payload, None, cx);
        answer::send(qp, half, &header, response, cx);
    }
}

// ---- the process that has the queue

/// A stand-in for a target of another process, at one shared receive queue.
struct StandIn {
    qp: QpRef,
    generation: u64,
    /// The number of the last request that was executed, and its outcome.
    last: Mutex<(u64, Option<Executed>)>,
}

/// How an executed request has ended, whether that ends the connection, and the bytes that the request returns.
type Executed = (Code, message::Fails, Vec<u8>);

impl Drop for StandIn {
    // The receive of a message of which only a part has arrived is completed.
    fn drop(&mut self) {
        Cx::run(&self.qp.device, None, |cx| {
            let half = &mut *self.qp.responder();
            let (status, event) = (WcStatus::WrFlushErr, EventType::QpReqErr);
            self.qp.fail_responder(half, status, event, cx);
        });
    }
}

// Returns the stand-in of the target that has sent this request.
fn stand_in(device: &Device, target: &Target, request: &Request) -> Option<Arc<StandIn>> {
    loop {
        let found = target.stand_in(request.qpn, || {
            Some(Arc::new(StandIn {
                qp: device.stand_in(request.qpn, target)?,
                generation: request.generation,
                last: Mutex::default(),
            }))
        })?;
        if found.generation == request.generation {
            return Some(found);
        }
        // The target was reset since, or is one of another process.
        let is_old =
            |qpn, one: &StandIn| qpn == request.qpn && one.generation != request.generation;
        drop(target.end_stand_ins(is_old));
    }
}

// Executes a request, and sends its outcome to the process that has received it.
fn serve(device: &Device, request: &Request, header: &Header, payload: &[u8], cx: &mut Cx<'_>) {
    let target = device.domains().target(&request.domain, request.srqn);
    let made = target.and_then(|target| Some((stand_in(device, &target, request)?, target)));
    let (code, fails, bytes) = match made {
        // The domain has no such queue.
        None => (
            Code::Nak(Nak::INVALID_REQUEST),
            message::Fails::WithEvent,
            Vec::new(),
        ),
        Some((stand_in, target)) => {
            let last = &mut *stand_in.last.lock();
            match last {
                (number, Some(kept)) if *number == request.number => kept.clone(),
                _ => {
                    let executed = execute(&stand_in.qp, &target, request, header, payload, cx);
                    // A read is executed again, and so is a request that found no receive.
                    let is_kept = !matches!(executed.0, Code::Rnr)
                        && !matches!(header.body, Body::ReadRequest(..));
                    if is_kept {
                        *last = (request.number, Some(executed.clone()));
                    }
                    executed
                }
            }
        }
    };
    let outcome = Outcome {
        qpn: request.qpn,
        generation: request.generation,
        step: request.step,
        code,
        fails,
    };
    if let Some(link) = device.network().link() {
        link.send_message(request.qpn, outcome.encode(&bytes));
    }
}

fn execute(
    qp: &Qp,
    target: &Arc<Target>,
    request: &Request,
    header: &Header,
    payload: &[u8],
    cx: &mut Cx<'_>,
) -> Executed {
    use message::Fails;
    let failed = || (Code::Fatal, Fails::WithEvent, Vec::new());
    let half = &mut *qp.responder();
    let Some(extensions) = qp.extensions().filter(|_| qp.state() == QpState::Rtr) else {
        return failed();
    };
    extensions.take_receives_from(Some(Arc::clone(target)));
    half.driver.access = Access::from_bits_truncate(request.access);
    half.driver.mtu_shift = request.mtu_shift;
    half.driver.expected = header.psn;
    half.driver.rest.peer_qpn = request.peer_qpn;
    half.driver.rest.max_dest_rd_atomic = 1;
    let payload = Payload::Bytes(payload);
    let incoming = Incoming::at_once(qp, header, &payload);
    let executed = incoming.execute(half, request.left, cx);
    let outcome = match executed {
        Err(refusal) => {
            let fails = match half.current {
                Some(_) => Fails::Silently,
                None => Fails::WithEvent,
            };
            let event = EventType::QpReqErr;
            let Refusal { nak, receive } = refusal;
            qp.fail_responder(half, receive, event, cx);
            (Code::Nak(nak), fails, Vec::new())
        }
        Ok(Answer::Rnr(..)) if qp.state() == QpState::Err => failed(),
        Ok(Answer::Rnr(..)) => (Code::Rnr, Fails::No, Vec::new()),
        Ok(answer) => {
            let fails = match qp.state() {
                QpState::Err => Fails::Silently,
                _ => Fails::No,
            };
            let (code, bytes) = match answer {
                Answer::Atomic(original) => (Code::Value(original), Vec::new()),
                Answer::Read(spans) => (Code::Bytes, Payload::of_spans(&spans).to_vec()),
                Answer::Extension(bytes) => (Code::Bytes, bytes.to_vec()),
                _ => (Code::Done, Vec::new()),
            };
            (code, fails, bytes)
        }
    };
    // Otherwise the stand-in, which the target has, would keep the target alive.
    extensions.take_receives_from(None);
    outcome
}

/// The most packets that wait for the outcome of an earlier one; later ones are repeated by the initiator.
const MOST_LATER: usize = 4096;
/// The most bytes of their payloads.
const MOST_LATER_BYTES: usize = 4 << 20;

#[cfg(all(test, feature = "sockets"))]
mod tests;

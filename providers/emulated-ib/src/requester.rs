//! The sending half: requests become frames, and answers complete them.
//!
//! On a direct network (`attempt`) the peer answers on this thread, and a request that succeeds never enters the queue.
//! Over a link a message of one frame leaves before it is in the queue (`send_at_once`); all other requests are sent from
//! the queue frame by frame (`pump`). Answers arrive later ([`handle_answer`]), and lost frames are retransmitted: after a
//! sequence error, a timeout, or a hole in read responses (IBTA 9.9.2). A responder reports a gap once, so it does not
//! report a second loss of the same frame. If the peer has recently reported a gap, the requester does not wait for the
//! timeout: it retransmits the oldest frame after twice the time that answers usually take, and then after twice as long
//! each time. These retransmissions use up no retry, and do not delay the timeout. Frames that the system refuses to send
//! are retransmitted at once, which does use up retries ([`handle_refusal`]).

use std::io;
use std::time::Duration;

use polyverbs_engine::driver::Executed;
use polyverbs_engine::fault::Fault;
use polyverbs_engine::link::Exchange;
use polyverbs_engine::log_event;
use polyverbs_engine::payload::{Payload, Spans, scatter_at};
use polyverbs_engine::qp::{Phase, Wqe};
use polyverbs_engine::request::{Op, Request, SendExtra, Source};
use polyverbs_engine::rules::{self, Rule};
use polyverbs_engine::time::{Time, ack_timeout, rnr_delay};
use verbs_api::qp::{QpState, QpType};
use verbs_api::{
    Access, RemoteAddress, Sge, WcStatus,
    extension::ExtensionOperation,
    ids::{LinkAddress, Psn, Qpn},
    wr::SendFlags,
};

use crate::answer::{self, Answer};
use crate::frame::{self, full_frame, max_joined};
use crate::header::{
    Aeth, Body, Header, IpFields, Nak, Position, SyndromeKind, joined_packets_fit, packets,
};
use crate::pacing::{self, SendWindow};
use crate::responder::respond;
use crate::{Cx, Qp, QpRef, Sending, extension};

/// The value of `rnr_retry` with which a requester retries without end.
const RNR_FOREVER: u8 = 7;

/// On a lossy path a frame is retransmitted no earlier than after the acknowledge timeout divided by this number.
const SHORTER: u32 = 64;

/// The transport's state of a requester: the fields that each request uses, and the rest.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Requester {
    /// The epoch of the peer's responder when it last took a request of this queue pair directly; 0 if it must not get the
    /// next one by the express path.
    pub peer_epoch: u64,
    /// The packet sequence number of the next packet that was never sent.
    pub next_psn: Psn,
    /// log2 of the path MTU in bytes.
    pub mtu_shift: u8,
    /// State that is used only by requests that wait or go over a link.
    pub rest: Box<RequesterRest>,
}

/// The state of a requester that is used only by requests that wait or go over a link.
#[derive(Debug, Default)]
pub struct RequesterRest {
    /// The number of the peer's queue pair.
    pub peer_qpn: u32,
    /// The link address of the peer's port; `None` before the program has set the path.
    pub peer_address: Option<LinkAddress>,
    /// The traffic class and hop limit of frames to the peer.
    pub ip: IpFields,
    /// How many reads and atomics may be outstanding at a time.
    pub max_rd_atomic: u8,
    /// The code of the acknowledge timeout, which is 4.096 µs x 2^code; 0 for none.
    pub timeout: u8,
    /// How often a request is retried after a timeout or a sequence error, before it fails.
    pub retry_cnt: u8,
    /// How often a request is retried after RNR NAKs, before it fails; 7 for no limit.
    pub rnr_retry: u8,
    /// This queue pair's own Q_Key, which a datagram carries if its request says so.
    pub qkey: u32,
    /// How many of the `retry_cnt` retries are left.
    pub retries_left: u8,
    /// How many of the `rnr_retry` retries are left.
    pub rnr_left: u8,
    // The requester waits until this time, because the peer had no receive.
    rnr_until: Option<Time>,
    // If no answer arrives before this time, the oldest frame without an answer is retransmitted.
    ack_until: Option<Time>,
    // When the requester began to wait for that answer, however often it has sent the frame since.
    waits_since: Option<Time>,
    // The longest time that a recent answer took.
    slowest: Duration,
    // The longest time that a recent answer to frames without a retransmission took; `None` before the first answer.
    usual: Option<Duration>,
    // A timer retransmitted the frames whose answer is outstanding.
    was_repeated: bool,
    // The error number with which the system has refused to send since the last answer.
    refused: Option<i32>,
    // Everything before this PSN was retransmitted since the last timeout.
    repeated: Psn,
    // For a path through shared memory: the records that must be read before a frame without an answer counts as lost.
    unread: Option<Unread>,
    // On a lossy path: when the oldest frame is retransmitted before the timeout, and how long that wait is.
    repeat_at: Option<(Time, Duration)>,
    // For a link: the index of the first request of the queue that was not sent completely.
    cursor: usize,
    // For a link: everything before this PSN has been acknowledged.
    unacked: Psn,
    // For a link: everything before this PSN has been sent at least once.
    sent: Psn,
    // For a link: the PSN of the missing answer that was requested again because a later one arrived.
    asked_again: Option<Psn>,
    // For a link: the number of messages that were begun.
    messages: u32,
    // For a link: the number of the last message for which the peer has a receive; `None` without a limit.
    limit: Option<u32>,
    // The peer once set no limit: its credits are ignored from then on.
    unlimited: bool,
    // For a link: the limit of frames under way.
    window: SendWindow,
}

/// The records in shared memory that must be read before a frame without an answer counts as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unread {
    /// The peer's process must read this process's records up to this position, and send all answers to them.
    ByPeer(u32),
    /// This process must read the peer's records up to this position, because the answer may be among them.
    Here(u32),
}

impl Unread {
    // Returns the records that must still be read before a frame without an answer counts as lost; `None` if all were read.
    fn next(waits: Option<Self>, now: Exchange) -> Option<Self> {
        let is_before = |position: u32, mark: u32| (position.wrapping_sub(mark) as i32) < 0;
        let waits = waits.unwrap_or(Self::ByPeer(now.sent));
        match waits {
            Self::ByPeer(mark) if is_before(now.sent_answered, mark) => Some(waits),
            Self::Here(mark) if !is_before(now.arrived_read, mark) => None,
            Self::Here(_) => Some(waits),
            Self::ByPeer(_) => {
                let has_unread = is_before(now.arrived_read, now.arrived);
                has_unread.then_some(Self::Here(now.arrived))
            }
        }
    }
}

impl Requester {
    /// Prepares the requester to send from the packet sequence number `sq_psn` on. `own` is the address of its device.
    pub fn begin(&mut self, sq_psn: Psn, own: LinkAddress) {
        self.next_psn = sq_psn;
        let rest = &mut *self.rest;
        rest.window = SendWindow::new(self.mtu_shift, rest.peer_address == Some(own));
        (rest.unacked, rest.sent) = (sq_psn, sq_psn);
        (rest.messages, rest.limit, rest.unlimited) = (0, None, false);
        rest.restore_retries();
        (rest.waits_since, rest.slowest) = (None, Duration::ZERO);
        (rest.usual, rest.was_repeated, rest.repeat_at) = (None, false, None);
        (rest.repeated, rest.unread, rest.refused) = (sq_psn, None, None);
    }
}

impl RequesterRest {
    // Returns how long the requester waits for an answer: at least as long as the code says, and at most four times that
    // (IBTA 9.7.6.1.3). A software device may wait for a processor at either end, and retries are for lost frames. So the
    // wait is the longest one for a peer whose answers have not been measured; otherwise it is twice as long as recent
    // answers took, and doubles with each retry.
    fn patience(&self) -> Option<Duration> {
        let least = ack_timeout(self.timeout)?;
        let most = least * 4;
        if self.usual.is_none() {
            return Some(most);
        }
        let retries = self.retry_cnt.saturating_sub(self.retries_left);
        let doubled = least * (1 << retries.min(2));
        Some((self.slowest * 2).clamp(doubled, most))
    }

    // Returns how long the requester waits for an answer before it retransmits the frame, on a lossy path whose peer has
    // answered before.
    fn short_patience(&self) -> Option<Duration> {
        let least = ack_timeout(self.timeout)? / SHORTER;
        let usual = self.usual.filter(|usual| !usual.is_zero());
        let usual = usual.filter(|_| self.window.loses())?;
        Some(least.max(usual * 2))
    }

    fn restore_retries(&mut self) {
        (self.retries_left, self.rnr_left) = (self.retry_cnt, self.rnr_retry);
    }

    // Counts one more message if `begun` is true.
    fn count_messages(&mut self, begun: bool) {
        self.messages = self.messages.wrapping_add(begun.into());
    }

    // Notes that an answer has arrived.
    fn note_answer(&mut self, now: Time) {
        (self.ack_until, self.repeat_at, self.unread) = (None, None, None);
        self.refused = None;
        let was_repeated = std::mem::take(&mut self.was_repeated);
        if let Some(since) = self.waits_since.take() {
            let took = Duration::from_nanos(now.0.saturating_sub(since.0));
            let longest = |lately: Duration| took.max(lately - lately / 8);
            self.slowest = longest(self.slowest);
            // The answer does not say which copy of the frame it is for.
            if !was_repeated {
                self.usual = Some(longest(self.usual.unwrap_or_default()));
            }
        }
    }
}

/// Tries to carry out a request that no earlier request delays: on a direct network by a call of the peer, over a link by
/// sending what one frame holds.
#[inline]
pub fn execute(qp: &Qp, half: &mut Sending, request: &Request<'_>, cx: &mut Cx<'_>) -> Executed {
    if request.op.is_local() {
        return Executed::Done(qp.local_operation(half, request, cx), 0);
    }
    if cx.device.network().link().is_some() {
        return send_at_once(qp, half, request, cx);
    }
    match attempt(qp, half, request, cx) {
        Attempt::Done(status, bytes) => Executed::Done(status, bytes),
        Attempt::Rnr(code) => begin_rnr_wait(qp, half, code, cx),
        Attempt::NoPeer => {
            begin_ack_wait(qp, half, cx);
            Executed::Keep
        }
    }
}

// Sends a message over a link before it is in the queue, if it is one frame and may leave now. All other requests go
// through the queue.
fn send_at_once(qp: &Qp, half: &mut Sending, request: &Request<'_>, cx: &mut Cx<'_>) -> Executed {
    let is_message = matches!(request.op, Op::Send(_) | Op::Write(..));
    let shift = half.driver.mtu_shift;
    let is_one = |frame| request.length <= frame as u64;
    let psn = half.driver.next_psn;
    let rest = &*half.driver.rest;
    let may_leave = qp.qp_type == QpType::Rc
        && is_message
        && full_frame(qp, shift, rest.peer_address, rest.peer_qpn).is_none_or(is_one)
        && !request.flags.contains(SendFlags::FENCE)
        && rest.rnr_until.is_none()
        && under_way(half, psn) < rest.window.size()
        && !frame::is_crowded(qp, rest.peer_address, rest.peer_qpn)
        && (!takes_receive(&request.op) || has_credit(half, half.queue.len()));
    if !may_leave {
        return Executed::Keep;
    }
    let mut spans = Spans::new();
    let Ok(payload) = qp.gather_request(request, cx, &mut spans) else {
        // Earlier requests are still answered; this one fails when its turn comes.
        return Executed::Keep;
    };
    let header = header_of(qp, half, request, psn, Position::Only);
    emit(qp, half, header, payload, cx);
    let count = packets(request.length, shift);
    let next = psn.plus(count);
    half.driver.next_psn = next;
    let rest = &mut *half.driver.rest;
    rest.count_messages(true);
    rest.sent = next;
    rest.cursor = half.queue.len() + 1;
    begin_ack_wait(qp, half, cx);
    Executed::Sent {
        first: psn.value(),
        count,
    }
}

/// Returns whether the send queue has a request that was not sent completely.
#[inline]
pub fn waits(half: &Sending) -> bool {
    // The queue is checked first, because `rest` is on another cache line, which is not fetched yet if a program uses its
    // queue pairs in turn.
    !half.queue.is_empty() && half.driver.rest.cursor < half.queue.len()
}

// The result of passing a request to the peer directly.
enum Attempt {
    Done(WcStatus, u32),
    Rnr(u8),
    NoPeer,
}

#[inline]
fn attempt(qp: &Qp, half: &mut Sending, request: &Request<'_>, cx: &mut Cx<'_>) -> Attempt {
    if qp.qp_type == QpType::Ud {
        return match crate::datagram::send(qp, half, request, cx) {
            Ok(()) => Attempt::Done(WcStatus::Success, 0),
            Err(status) => Attempt::Done(status, 0),
        };
    }
    // The route is taken out and put back, so that no reference count changes.
    let Some(peer) = half.direct.take().or_else(|| find_peer(qp, half)) else {
        return no_peer(qp, half, request, cx);
    };
    let attempt = match request.op {
        Op::Extension(operation) => exchange_extension(qp, half, request, operation, &peer, cx),
        _ => exchange(qp, half, request, &peer, cx),
    };
    if !matches!(attempt, Attempt::NoPeer) {
        half.direct = Some(peer);
    }
    attempt
}

// Handles a request to a peer that cannot be found, which an unreliable sender does not notice.
#[cold]
fn no_peer(qp: &Qp, half: &mut Sending, request: &Request<'_>, cx: &mut Cx<'_>) -> Attempt {
    if qp.qp_type == QpType::Rc {
        return Attempt::NoPeer;
    }
    let mut spans = Spans::new();
    take_numbers(half, request.length);
    match qp.gather_request(request, cx, &mut spans) {
        Ok(_) => Attempt::Done(WcStatus::Success, 0),
        Err(fault) => Attempt::Done(fault.local_status(), 0),
    }
}

#[cold]
fn find_peer(qp: &Qp, half: &Sending) -> Option<QpRef> {
    if !qp.device.is_port_active() {
        return None;
    }
    let device = qp.device.network().device(half.driver.rest.peer_address?)?;
    device
        .qp(half.driver.rest.peer_qpn)
        .filter(|peer| peer.qp_type == qp.qp_type && peer.carries_srqn == qp.carries_srqn)
        .filter(|peer| !qp.carries_srqn || peer.is_target())
}

#[inline]
fn exchange(
    qp: &Qp,
    half: &mut Sending,
    request: &Request<'_>,
    peer: &Qp,
    cx: &mut Cx<'_>,
) -> Attempt {
    let mut spans = Spans::new();
    let reads = request.op.is_read_or_atomic();
    let prepared = if reads {
        sink(qp, request, cx, &mut spans).map(|()| Payload::Empty)
    } else {
        qp.gather_request(request, cx, &mut spans)
    };
    let payload = match prepared {
        Ok(payload) => payload,
        Err(status) => return Attempt::Done(status.local_status(), 0),
    };
    let (answer, peer_mtu_shift) = hand_over(qp, half, request, peer, &payload, cx);
    if !reads && qp.qp_type == QpType::Uc {
        take_numbers(half, request.length);
        return Attempt::Done(WcStatus::Success, 0);
    }
    let bytes = match &answer {
        Answer::Ack(_) => 0,
        Answer::Read(found) => {
            let found = Payload::of_spans(found);
            let mtu_shifts = [half.driver.mtu_shift, peer_mtu_shift];
            if !joined_packets_fit(Position::Only, found.len(), mtu_shifts) {
                return Attempt::Done(WcStatus::BadRespErr, 0);
            }
            scatter_at(&spans, 0, &found);
            found.len() as u32
        }
        Answer::Atomic(original) => place_original(*original, &spans),
        Answer::Nak(nak, _) => return Attempt::Done(status_of(*nak), 0),
        Answer::Rnr(..) if is_given_up(&request.op) => {
            return Attempt::Done(WcStatus::RnrRetryExcErr, 0);
        }
        Answer::Rnr(code, _) => return Attempt::Rnr(*code),
        Answer::None | Answer::Later | Answer::Extension(_) => return Attempt::NoPeer,
    };
    let taken = if matches!(request.op, Op::Flush { .. }) {
        0
    } else {
        request.length
    };
    take_turn(half, taken);
    Attempt::Done(WcStatus::Success, bytes)
}

#[cold]
fn exchange_extension(
    qp: &Qp,
    half: &mut Sending,
    request: &Request<'_>,
    operation: &'static ExtensionOperation,
    peer: &Qp,
    cx: &mut Cx<'_>,
) -> Attempt {
    let (message, sink) = match extension::prepare(qp, request, operation, cx) {
        Ok(prepared) => prepared,
        Err(status) => return Attempt::Done(status, 0),
    };
    let payload = Payload::Bytes(&message);
    let answer = match hand_over(qp, half, request, peer, &payload, cx).0 {
        Answer::Extension(answer) => answer,
        Answer::Nak(nak, _) => return Attempt::Done(status_of(nak), 0),
        _ => return Attempt::NoPeer,
    };
    take_turn(half, 0);
    match extension::place(qp, operation, answer, &sink) {
        Ok(bytes) => Attempt::Done(WcStatus::Success, bytes),
        Err(status) => Attempt::Done(status, 0),
    }
}

// Returns whether a request that finds no receive fails without a retry, because a test breaks that rule.
#[inline]
fn is_given_up(op: &Op) -> bool {
    rules::is_broken(Rule::RnrRetry) && matches!(op, Op::Send(SendExtra::Nothing))
}

// Passes a request to a peer on the direct network, if it is still connected. Returns the peer's answer, and log2 of its
// path MTU.
#[inline]
fn hand_over<'p>(
    qp: &Qp,
    half: &mut Sending,
    request: &Request<'_>,
    peer: &Qp,
    payload: &Payload<'_>,
    cx: &mut Cx<'p>,
) -> (Answer<'p>, u8) {
    let header = header_of(qp, half, request, half.driver.next_psn, Position::Only);
    let mut responder = peer.responder();
    let peer_mtu_shift = responder.driver.mtu_shift;
    let connected = responder.driver.rest.peer_qpn == qp.qpn
        && responder.driver.rest.peer_address == Some(qp.device.address())
        && qp.device.is_port_active()
        && peer.device.is_port_active();
    if !connected {
        return (Answer::None, peer_mtu_shift);
    }
    let answer = respond(peer, &mut responder, &header, payload, Some(qp), cx);
    let takes_express = responder.takes_express() && peer_mtu_shift == half.driver.mtu_shift;
    half.driver.peer_epoch = match takes_express {
        true => responder.driver.epoch,
        false => 0,
    };
    (answer, peer_mtu_shift)
}

// Takes the packet sequence numbers of a request of `bytes` bytes.
#[inline]
fn take_numbers(half: &mut Sending, bytes: u64) {
    let taken = packets(bytes, half.driver.mtu_shift);
    half.driver.next_psn = half.driver.next_psn.plus(taken);
}

// Notes that a request of `bytes` bytes was answered.
#[inline]
fn take_turn(half: &mut Sending, bytes: u64) {
    take_numbers(half, bytes);
    half.driver.rest.restore_retries();
}

fn sink<'p>(
    qp: &Qp,
    request: &Request<'_>,
    cx: &Cx<'p>,
    spans: &mut Spans<'p>,
) -> Result<(), Fault> {
    if rules::is_broken(Rule::LocalReadSink)
        && let (Op::Read(..), Source::Sges(list)) = (request.op, request.source)
    {
        check_open(list, cx)?;
    }
    qp.gather_sink(request, cx, spans)
}

// Checks that peers may write the memory of each entry.
#[cold]
fn check_open(list: &[Sge], cx: &Cx<'_>) -> Result<(), Fault> {
    let is_open = |sge: &Sge| {
        let fields = cx.keys().fields(sge.lkey().value());
        fields.is_some_and(|fields| fields.access.contains(Access::REMOTE_WRITE))
    };
    if list.iter().all(is_open) {
        Ok(())
    } else {
        Err(Fault::Access)
    }
}

#[inline]
fn place_original(original: u64, sink: &Spans<'_>) -> u32 {
    match sink.first().and_then(|span| span.store_u64(original)) {
        Some(()) => {}
        None => scatter_at(sink, 0, &Payload::Bytes(&original.to_ne_bytes())),
    }
    8
}

// Returns the status of a request that the peer refused.
const fn status_of(nak: Nak) -> WcStatus {
    match nak {
        Nak::SEQUENCE_ERROR => WcStatus::RetryExcErr,
        Nak::INVALID_REQUEST => WcStatus::RemInvReqErr,
        Nak::REMOTE_ACCESS => WcStatus::RemAccessErr,
        Nak::REMOTE_OPERATION => WcStatus::RemOpErr,
        Nak::INVALID_RD_REQUEST => WcStatus::RemInvRdReqErr,
        _ => WcStatus::BadRespErr,
    }
}

#[inline]
fn header_of(
    qp: &Qp,
    half: &Sending,
    request: &Request<'_>,
    psn: Psn,
    position: Position,
) -> Header {
    let length = request.length as u32;
    let body = match request.op {
        Op::Send(extra) => Body::Send(position, extra),
        Op::Write(remote, imm) => Body::Write(position, remote, length, imm),
        Op::Read(remote, _) => Body::ReadRequest(remote, length),
        Op::CompareSwap(remote, compare, swap) => Body::CompareSwap(remote, compare, swap),
        Op::FetchAdd(remote, add) => Body::FetchAdd(remote, add),
        Op::AtomicWrite(remote) => Body::AtomicWrite(remote),
        Op::Flush {
            remote,
            length,
            placement,
            whole_region,
        } => Body::Flush(remote, length, placement, whole_region),
        Op::Extension(operation) => {
            Body::ExtensionRequest(operation.extension_id(), operation.number())
        }
        Op::FastRegister { .. } | Op::LocalInvalidate(_) | Op::Bind { .. } => {
            Body::Write(position, RemoteAddress::default(), 0, None)
        }
    };
    Header {
        ack_req: position.ends(),
        awaited: position.ends() && qp.is_signaled(request.flags),
        solicited: position.ends() && request.flags.contains(SendFlags::SOLICITED),
        xrc: qp.carries_srqn.then_some(request.attribute),
        ip: half.driver.rest.ip,
        joined: frame::is_uncut(qp),
        mtu_shift: half.driver.mtu_shift,
        ..Header::new(qp.qp_type, qp.qpn, half.driver.rest.peer_qpn, psn, body)
    }
}

// ---- waiting

// Begins to wait for a receive. Returns a completion at once if no retry is left.
fn begin_rnr_wait(qp: &Qp, half: &mut Sending, code: u8, cx: &mut Cx<'_>) -> Executed {
    if !take_rnr_retry(half) {
        return Executed::Done(WcStatus::RnrRetryExcErr, 0);
    }
    wait_for_receive(qp, half, code, cx);
    Executed::Keep
}

fn wait_for_receive(qp: &Qp, half: &mut Sending, code: u8, cx: &mut Cx<'_>) {
    // The peer has answered, so the acknowledge timeout ends.
    half.driver.rest.note_answer(cx.soon());
    half.driver.rest.retries_left = half.driver.rest.retry_cnt;
    let until = cx.now().after(rnr_delay(code));
    half.driver.rest.rnr_until = Some(until);
    log_event!(
        DEBUG,
        "a request waits because the peer has no receive",
        qp = Qpn::new(qp.qpn),
        delay = format_args!("{:?}", rnr_delay(code)),
        rnr_retries_left = half.driver.rest.rnr_left,
    );
    qp.wake_at(half, until);
}

fn take_rnr_retry(half: &mut Sending) -> bool {
    half.rare().counters.rnr_naks += 1;
    if half.driver.rest.rnr_retry == RNR_FOREVER {
        return true;
    }
    if half.driver.rest.rnr_left == 0 {
        return false;
    }
    half.driver.rest.rnr_left -= 1;
    true
}

fn begin_ack_wait(qp: &Qp, half: &mut Sending, cx: &mut Cx<'_>) {
    if half.driver.rest.ack_until.is_some() {
        return;
    }
    let patience = match qp.device.network().link() {
        Some(_) => half.driver.rest.patience(),
        // On a direct network no answer is late.
        None => ack_timeout(half.driver.rest.timeout),
    };
    if let Some(patience) = patience {
        let now = cx.soon();
        let until = now.after(patience);
        half.driver.rest.ack_until = Some(until);
        half.driver.rest.waits_since.get_or_insert(now);
        qp.wake_at(half, until);
        if let Some(wait) = half.driver.rest.short_patience() {
            repeat_after(qp, half, now, wait);
        }
    }
}

fn repeat_after(qp: &Qp, half: &mut Sending, now: Time, wait: Duration) {
    let at = now.after(wait);
    half.driver.rest.repeat_at = Some((at, wait));
    qp.wake_at(half, at);
}

/// Handles an expired timer of this requester: ends its wait for a receive, retransmits the oldest frame without an answer,
/// or sends further frames.
pub fn handle_timeout(qp: &Qp, half: &mut Sending, now: Time, cx: &mut Cx<'_>) {
    if half.driver.rest.rnr_until.is_some_and(|until| until <= now) {
        half.driver.rest.rnr_until = None;
    }
    if half.driver.rest.rnr_until.is_none() {
        let has_begun = |wqe: &Wqe| wqe.phase != Phase::Waiting;
        let is_begun = half.queue.front().is_some_and(has_begun);
        let rest = &mut *half.driver.rest;
        if rest.ack_until.is_some_and(|until| until <= now) {
            (rest.ack_until, rest.repeat_at) = (None, None);
            if is_begun && !is_late(qp, half) && !retry(qp, half, "acknowledge timeout", cx) {
                return;
            }
        } else if let Some((_, wait)) = rest.repeat_at.take_if(|(at, _)| *at <= now)
            && is_begun
        {
            slow_down(half);
            retransmit(qp, half, "no answer in twice the usual time");
            repeat_after(qp, half, now, wait * 2);
        }
        go_on(qp, half, true, cx);
    }
    let rest = &half.driver.rest;
    let repeat_at = rest.repeat_at.map(|(at, _)| at);
    let due = [rest.rnr_until, rest.ack_until, repeat_at];
    if let Some(first) = due.into_iter().flatten().min() {
        qp.wake_at(half, first);
    }
}

// Returns whether the answer is late because the peer's process or this one has not had a processor, or because frames wait for
// room: frames in shared memory are not lost while the peer's process exists.
fn is_late(qp: &Qp, half: &mut Sending) -> bool {
    let rest = &mut *half.driver.rest;
    let link = qp.device.network().link().zip(rest.peer_address);
    let found = link.and_then(|(link, to)| link.exchange(to, rest.peer_qpn));
    rest.unread = found.and_then(|now| Unread::next(rest.unread, now));
    let is_here = found.is_some();
    rest.unread.is_some() || is_here && frame::is_crowded(qp, rest.peer_address, rest.peer_qpn)
}

// Goes back to the oldest unacknowledged frame because a timer has expired.
fn retransmit(qp: &Qp, half: &mut Sending, cause: &'static str) {
    half.driver.rest.was_repeated = true;
    half.driver.rest.repeated = half.driver.rest.unacked;
    half.driver.rest.asked_again = None;
    go_back_to_lost(qp, half, cause);
}

/// Handles the system's refusal to send frames of this requester. It retransmits them at once, because a firewall may
/// refuse one frame and not the next. If there is no route to a peer that has answered before, the requester waits for the
/// timeout, because routes come back.
#[cold]
pub fn handle_refusal(qp: &Qp, half: &mut Sending, errno: i32, cx: &mut Cx<'_>) {
    let has_begun = |wqe: &Wqe| matches!(wqe.phase, Phase::Started | Phase::Sent);
    let rest = &mut *half.driver.rest;
    if rest.rnr_until.is_some() || !half.queue.front().is_some_and(has_begun) {
        return;
    }
    rest.refused = Some(errno);
    if is_about_routes(errno) && rest.usual.is_some() {
        return;
    }
    (rest.ack_until, rest.repeat_at) = (None, None);
    if retry(qp, half, "the system refuses to send", cx) {
        qp.advance(half, cx);
    }
}

// Returns whether an error number means that there is no route to the destination for now.
fn is_about_routes(errno: i32) -> bool {
    use io::ErrorKind::{AddrNotAvailable, HostUnreachable, NetworkDown, NetworkUnreachable};
    matches!(
        io::Error::from_raw_os_error(errno).kind(),
        NetworkUnreachable | HostUnreachable | NetworkDown | AddrNotAvailable
    )
}

// Goes back to the oldest frame without an answer. Returns `false` if no retry was left and the queue pair has failed.
fn retry(qp: &Qp, half: &mut Sending, cause: &'static str, cx: &mut Cx<'_>) -> bool {
    if half.driver.rest.retries_left == 0 {
        if let Some(errno) = half.driver.rest.refused {
            half.rare().vendor_err = errno as u32;
        }
        fail_front(qp, half, WcStatus::RetryExcErr, cx);
        return false;
    }
    half.driver.rest.retries_left -= u8::from(!rules::is_broken(Rule::RetriesEnd));
    if cx.device.network().link().is_some() {
        half.driver.rest.window.timed_out();
        retransmit(qp, half, cause);
    }
    true
}

fn fail_front(qp: &Qp, half: &mut Sending, status: WcStatus, cx: &mut Cx<'_>) {
    (half.driver.rest.ack_until, half.driver.rest.repeat_at) = (None, None);
    half.driver.rest.rnr_until = None;
    half.driver.rest.cursor = 0;
    qp.complete_front(half, status, 0, cx);
}

// ---- the queue

/// Continues with the send queue: sends as many of its requests as the link and the peer allow.
pub fn pump(qp: &Qp, half: &mut Sending, cx: &mut Cx<'_>) {
    go_on(qp, half, false, cx);
}

fn go_on(qp: &Qp, half: &mut Sending, due: bool, cx: &mut Cx<'_>) {
    if cx.device.network().link().is_some() {
        transmit(qp, half, cx);
    } else {
        drain(qp, half, due, cx);
    }
}

// Direct network: executes request after request, until one has to wait.
fn drain(qp: &Qp, half: &mut Sending, due: bool, cx: &mut Cx<'_>) {
    let waits = half.driver.rest.rnr_until.is_some() || half.driver.rest.ack_until.is_some();
    if !due && waits && !peer_may_be_ready(half) {
        return;
    }
    while let Some(front) = half.queue.front_mut() {
        if qp.state() == QpState::Sqd && front.phase == Phase::Waiting {
            return;
        }
        front.phase = Phase::Started;
        let Some(Wqe { kept, .. }) = half.queue.pop_front() else {
            return;
        };
        let request = kept.request();
        let executed = execute(qp, half, &request, cx);
        if let Executed::Done(status, bytes) = executed {
            half.driver.rest.rnr_until = None;
            (half.driver.rest.ack_until, half.driver.rest.waits_since) = (None, None);
            qp.complete(half, &request, status, bytes, cx);
        } else {
            half.queue.push_front(Wqe {
                kept,
                phase: Phase::Started,
                first: 0,
                count: 0,
                sent: 0,
                received: 0,
            });
            return;
        }
    }
}

// A peer in this process is tried again as soon as it has posted a receive or become ready.
fn peer_may_be_ready(half: &Sending) -> bool {
    match &half.direct {
        Some(peer) => peer.has_receive(),
        None => true,
    }
}

// Link: sends frame after frame, as far as the window allows.
fn transmit(qp: &Qp, half: &mut Sending, cx: &mut Cx<'_>) {
    while half.driver.rest.rnr_until.is_none() {
        let index = half.driver.rest.cursor;
        let Some(wqe) = half.queue.get(index) else {
            break;
        };
        match wqe.phase {
            Phase::Waiting if !may_start(qp, half, index) => break,
            Phase::Started if !may_go_on(qp, half, index) => break,
            Phase::Waiting | Phase::Started => {}
            Phase::Done(status) if !status.is_success() => break,
            Phase::Sent | Phase::Done(_) => {
                half.driver.rest.cursor += 1;
                continue;
            }
        }
        let is_paced = qp.qp_type == QpType::Rc;
        // It begins even if it has to wait for room, so that its retries end if the peer's process has gone.
        start(qp.qp_type, half, index);
        let full = is_paced && (waits_for_room(qp, half, cx) || is_full(qp, half, index));
        if full || !step(qp, half, index, cx) {
            break;
        }
    }
    complete_in_order(qp, half, cx);
    let outstanding = half
        .queue
        .front()
        .is_some_and(|wqe| matches!(wqe.phase, Phase::Started | Phase::Sent));
    if outstanding && half.driver.rest.rnr_until.is_none() {
        begin_ack_wait(qp, half, cx);
    }
}

// Returns whether no frame may leave because others wait for room in shared memory. The queue pair is then woken later.
fn waits_for_room(qp: &Qp, half: &mut Sending, cx: &mut Cx<'_>) -> bool {
    let rest = &half.driver.rest;
    let is_crowded = frame::is_crowded(qp, rest.peer_address, rest.peer_qpn);
    if is_crowded {
        qp.wake_at(half, cx.soon().after(pacing::CROWDED_FOR));
    }
    is_crowded
}

fn may_start(qp: &Qp, half: &Sending, index: usize) -> bool {
    if qp.state() == QpState::Sqd {
        return false;
    }
    let kept = &half.queue[index].kept;
    // This counts along the whole queue, so only the conditions that need it call it.
    let open = || outstanding_reads(qp, half);
    if kept.flags.contains(SendFlags::FENCE) && open() > 0 {
        return false;
    }
    if takes_receive(&kept.op) && !has_credit(half, index) {
        return false;
    }
    !kept.op.is_read_or_atomic() || open() < usize::from(half.driver.rest.max_rd_atomic.max(1))
}

// A read is requested piece by piece, and each piece counts.
fn may_go_on(qp: &Qp, half: &Sending, index: usize) -> bool {
    let wqe = &half.queue[index];
    if !matches!(wqe.kept.op, Op::Read(..)) {
        return true;
    }
    let asked_before = usize::from(!wqe.sent.is_multiple_of(piece(qp, half)));
    let most = usize::from(half.driver.rest.max_rd_atomic.max(1));
    outstanding_reads(qp, half) < most + asked_before
}

// Returns how many bytes of a read are requested together.
fn piece(qp: &Qp, half: &Sending) -> u64 {
    let shift = half.driver.mtu_shift;
    match qp.device.network().link() {
        Some(link) if link.max_frame().is_some() => {
            u64::from(pacing::piece(link.room(), shift)) << shift
        }
        // A message of any length is one frame.
        _ => 1 << 32,
    }
}

// Returns the end of the piece of a read that contains the byte `from`.
fn end_of_piece(qp: &Qp, half: &Sending, from: u64, whole: u64) -> u64 {
    let piece = piece(qp, half);
    whole.min((from / piece + 1) * piece)
}

// Returns how many frames before this one have no answer yet.
fn under_way(half: &Sending, psn: Psn) -> u32 {
    psn.distance_from(half.driver.rest.unacked).max(0) as u32
}

// Returns whether the next frame does not fit into the window. If nothing is under way, every frame fits.
fn is_full(qp: &Qp, half: &Sending, index: usize) -> bool {
    let wqe = &half.queue[index];
    let frames = match wqe.kept.op {
        Op::Read(..) => {
            let end = end_of_piece(qp, half, wqe.sent, wqe.kept.length);
            packets(end - wqe.sent, half.driver.mtu_shift)
        }
        _ => 1,
    };
    let under_way = under_way(half, psn_at(wqe, wqe.sent, half.driver.mtu_shift));
    under_way > 0 && under_way + frames > half.driver.rest.window.size()
}

const fn takes_receive(op: &Op) -> bool {
    matches!(op, Op::Send(_) | Op::Write(_, Some(_)))
}

// One message beyond the limit may go when nothing else is under way: its acknowledge brings new credits (IBTA 9.7.7.2.5).
fn has_credit(half: &Sending, index: usize) -> bool {
    let next = Psn::new(half.driver.rest.messages.wrapping_add(1));
    let within = |limit| next.distance_from(Psn::new(limit)) <= 0;
    index == 0 || half.driver.rest.limit.is_none_or(within)
}

// A responder that once set no limit sets none for good (IBTA 9.7.7.2).
fn note_credits(half: &mut Sending, aeth: Aeth) {
    half.driver.rest.unlimited |= aeth.limit().is_none();
    half.driver.rest.limit = if half.driver.rest.unlimited {
        None
    } else {
        aeth.limit()
    };
}

// Returns how many atomics and pieces of reads are outstanding.
fn outstanding_reads(qp: &Qp, half: &Sending) -> usize {
    let piece = piece(qp, half);
    let begun = half
        .queue
        .iter()
        .filter(|wqe| matches!(wqe.phase, Phase::Started | Phase::Sent));
    let pieces = |wqe: &Wqe| match (wqe.phase, wqe.kept.op) {
        (Phase::Started, Op::Read(..)) => {
            (wqe.sent.div_ceil(piece) - wqe.received / piece) as usize
        }
        (_, Op::Read(..)) => {
            let left = wqe.kept.length - wqe.received / piece * piece;
            left.div_ceil(piece).max(1) as usize
        }
        (_, op) => usize::from(op.is_read_or_atomic()),
    };
    begun.map(pieces).sum()
}

// Gives a request its packet sequence numbers.
fn start(qp_type: QpType, half: &mut Sending, index: usize) {
    let (next, shift) = (half.driver.next_psn, half.driver.mtu_shift);
    let wqe = &mut half.queue[index];
    if wqe.phase == Phase::Waiting {
        wqe.phase = Phase::Started;
        wqe.first = next.value();
        // Datagrams are numbered when they leave.
        let unnumbered = wqe.kept.op.is_local() || qp_type == QpType::Ud;
        wqe.count = if unnumbered {
            0
        } else {
            packets(message_length(wqe), shift)
        };
        half.driver.next_psn = next.plus(wqe.count);
        half.driver.rest.count_messages(wqe.count > 0);
    }
}

fn message_length(wqe: &Wqe) -> u64 {
    match wqe.kept.op {
        Op::Flush { .. } | Op::CompareSwap(..) | Op::FetchAdd(..) | Op::Extension(_) => 0,
        _ => wqe.kept.length,
    }
}

// Returns the PSN of the frame that begins at this byte of a request.
fn psn_at(wqe: &Wqe, offset: u64, mtu_shift: u8) -> Psn {
    Psn::new(wqe.first).plus((offset >> mtu_shift) as u32)
}

// Returns the PSN after those of a request.
fn psn_behind(wqe: &Wqe) -> Psn {
    Psn::new(wqe.first).plus(wqe.count)
}

// Sends one frame of the request at the cursor, or carries out a local operation. Returns `false` to stop.
fn step(qp: &Qp, half: &mut Sending, index: usize, cx: &mut Cx<'_>) -> bool {
    // The request is taken out for the moment, so that both can be borrowed.
    let mut wqe = std::mem::take(&mut half.queue[index]);
    let outcome = step_taken(qp, half, &mut wqe, cx);
    let sent = wqe.phase != Phase::Started;
    half.queue[index] = wqe;
    if let Err(status) = outcome {
        // Earlier requests are still answered; this one fails when its turn comes.
        half.queue[index].phase = Phase::Done(status);
        return false;
    }
    if sent {
        half.driver.rest.cursor = index + 1;
        if qp.qp_type != QpType::Rc || half.queue[index].kept.op.is_local() {
            half.queue[index].phase = Phase::Done(WcStatus::Success);
            complete_in_order(qp, half, cx);
        }
    }
    true
}

// Completes the requests that have ended, and moves the cursor with the queue.
fn complete_in_order(qp: &Qp, half: &mut Sending, cx: &mut Cx<'_>) {
    let before = half.queue.len();
    qp.complete_done(half, cx);
    let gone = before - half.queue.len().min(before);
    half.driver.rest.cursor = half.driver.rest.cursor.saturating_sub(gone);
}

// Counts a frame with this PSN as a retransmission if it was sent before.
fn note_sent_again(half: &mut Sending, psn: Psn) {
    if half.driver.rest.sent.distance_from(psn) > 0 {
        half.rare().counters.retransmissions += 1;
    }
}

fn step_taken(qp: &Qp, half: &mut Sending, wqe: &mut Wqe, cx: &mut Cx<'_>) -> Result<(), WcStatus> {
    let request = wqe.kept.request();
    if request.op.is_local() {
        let status = qp.local_operation(half, &request, cx);
        wqe.phase = Phase::Sent;
        return if status.is_success() {
            Ok(())
        } else {
            Err(status)
        };
    }
    if qp.qp_type == QpType::Ud {
        crate::datagram::send(qp, half, &request, cx)?;
        wqe.phase = Phase::Sent;
        return Ok(());
    }
    let psn = psn_at(wqe, wqe.sent, half.driver.mtu_shift);
    note_sent_again(half, psn);
    let mut spans = Spans::new();
    if let Op::Extension(operation) = request.op {
        let (message, _) = extension::prepare(qp, &request, operation, cx)?;
        let header = header_of(qp, half, &request, psn, Position::Only);
        emit(qp, half, header, Payload::Bytes(&message), cx);
        wqe.phase = Phase::Sent;
    } else if request.op.is_read_or_atomic() {
        sink(qp, &request, cx, &mut spans).map_err(|fault| fault.local_status())?;
        let mut header = header_of(qp, half, &request, psn, Position::Only);
        if let Body::ReadRequest(remote, length) = &mut header.body {
            // Bytes that have arrived are not requested again (IBTA 9.7.5.1.9).
            let end = end_of_piece(qp, half, wqe.sent, request.length);
            *remote = remote.plus(wqe.sent);
            *length = (end - wqe.sent) as u32;
            let is_another = wqe.sent > 0 && psn.distance_from(half.driver.rest.sent) >= 0;
            half.driver.rest.count_messages(is_another);
            wqe.sent = end;
        } else {
            wqe.sent = request.length;
        }
        emit(qp, half, header, Payload::Empty, cx);
        if wqe.sent >= request.length {
            wqe.phase = Phase::Sent;
        }
    } else {
        let whole = qp.gather_request(&request, cx, &mut spans);
        let whole = whole.map_err(|fault| fault.local_status())?;
        let shift = half.driver.mtu_shift;
        let rest = &half.driver.rest;
        let frame = full_frame(qp, shift, rest.peer_address, rest.peer_qpn);
        let frame = frame.map_or(u64::MAX, |frame| frame as u64);
        // All of the payload was checked above, so this sends as many frames as the window has room for.
        let mut psn = psn;
        loop {
            let length = (request.length - wqe.sent).min(frame);
            let count = packets(length, shift);
            let position = Position::of(wqe.sent, length, request.length);
            let mut header = header_of(qp, half, &request, psn, position);
            let under_way = under_way(half, psn);
            let window = &half.driver.rest.window;
            let wants_ack = window.wants_ack(psn, count, under_way);
            header.ack_req |= wants_ack;
            header.awaited |= wants_ack;
            let is_full = under_way + count >= window.size();
            let part = whole.part(wqe.sent as usize, length as usize);
            emit(qp, half, header, part, cx);
            wqe.sent += length;
            if position.ends() {
                wqe.phase = Phase::Sent;
                break;
            }
            if qp.qp_type == QpType::Rc && is_full {
                break;
            }
            psn = psn_at(wqe, wqe.sent, shift);
            note_sent_again(half, psn);
        }
    }
    let reached = if wqe.phase == Phase::Sent {
        psn_behind(wqe)
    } else {
        psn_at(wqe, wqe.sent, half.driver.mtu_shift)
    };
    half.driver.rest.repeated = reached;
    if reached.distance_from(half.driver.rest.sent) > 0 {
        half.driver.rest.sent = reached;
    }
    Ok(())
}

fn emit(qp: &Qp, half: &Sending, mut header: Header, payload: Payload<'_>, cx: &mut Cx<'_>) {
    let rest = &half.driver.rest;
    if qp.device.network().is_awaited()
        && !qp.carries_srqn
        && max_joined(qp, rest.peer_address, rest.peer_qpn).is_some()
    {
        header.acknowledges = answer::take_owed(qp);
    }
    frame::send(qp, rest.peer_address, header, payload, cx);
}

// ---- answers

/// Makes the send window smaller, because packets of this requester, or answers to it, met congestion.
pub fn slow_down(half: &mut Sending) {
    let sent = half.driver.rest.sent;
    half.driver.rest.window.congested(sent);
}

// Notes a loss, which a NAK of the peer or a hole in its read responses shows.
fn note_loss(half: &mut Sending) {
    let sent = half.driver.rest.sent;
    half.driver.rest.window.lost(sent);
}

/// Handles an answer that the link has delivered: an acknowledge, a NAK, or the data of a read, an atomic or an extension's
/// operation.
pub fn handle_answer(
    qp: &Qp,
    half: &mut Sending,
    header: &Header,
    payload: &Payload<'_>,
    cx: &mut Cx<'_>,
) {
    if !matches!(qp.state(), QpState::Rts | QpState::Sqd) {
        return;
    }
    // Only outstanding frames can be answered.
    if header.psn.distance_from(half.driver.rest.sent) >= 0
        || header.psn.distance_from(half.driver.rest.unacked) < 0
    {
        return;
    }
    // The AETH of a refusal has a code in place of the credits.
    if header.body.has_aeth() && header.aeth.syndrome.is_ack() {
        note_credits(half, header.aeth);
    }
    match header.body {
        Body::Acknowledge => match header.aeth.syndrome.kind() {
            SyndromeKind::Ack(_) => acknowledge(qp, half, header.psn.plus(1), cx),
            SyndromeKind::RnrNak(code) => not_ready(qp, half, header.psn, code, cx),
            SyndromeKind::Nak(nak) => refused(qp, half, header.psn, nak, cx),
            SyndromeKind::Reserved => {}
        },
        Body::ReadResponse(position) => read_response(qp, half, header, position, payload, cx),
        Body::AtomicAcknowledge(original) => atomic_response(qp, half, header.psn, original, cx),
        Body::ExtensionResponse(..) => extension_response(qp, half, header, payload, cx),
        _ => {}
    }
    qp.advance(half, cx);
}

// Everything before `psn` has arrived. This does not complete a read or atomic without its answer, because the answer was
// lost (IBTA 9.7.5.2.4).
fn acknowledge(qp: &Qp, half: &mut Sending, psn: Psn, cx: &mut Cx<'_>) {
    let shift = half.driver.mtu_shift;
    let mut lost_answer = None;
    for wqe in half.queue.iter_mut() {
        if !matches!(wqe.phase, Phase::Started | Phase::Sent) || wqe.count == 0 {
            continue;
        }
        if wqe.kept.op.is_read_or_atomic() {
            let answered = psn_at(wqe, wqe.received, shift);
            lost_answer = (psn.distance_from(answered) > 0).then_some(answered);
            break;
        }
        if psn_behind(wqe).distance_from(psn) > 0 {
            break;
        }
        wqe.phase = Phase::Done(WcStatus::Success);
    }
    progress_to(half, lost_answer.unwrap_or(psn), cx);
    complete_in_order(qp, half, cx);
    if lost_answer.is_some() {
        ask_again(qp, half);
    }
}

// A later answer has arrived, so the oldest missing one was lost. This requests it again, once.
fn ask_again(qp: &Qp, half: &mut Sending) {
    let missing = half.driver.rest.unacked;
    if half.driver.rest.asked_again.replace(missing) != Some(missing) {
        note_loss(half);
        go_back_to_lost(qp, half, "an answer is missing");
    }
}

fn progress_to(half: &mut Sending, psn: Psn, cx: &mut Cx<'_>) {
    let frames = psn.distance_from(half.driver.rest.unacked);
    if frames > 0 {
        let under_way = under_way(half, half.driver.rest.sent);
        let rest = &mut *half.driver.rest;
        if psn.distance_from(rest.repeated) > 0 && rest.window.was_late() {
            go_forward(half);
        }
        let rest = &mut *half.driver.rest;
        rest.window.answered(frames as u32, under_way, psn);
        rest.unacked = psn;
        rest.restore_retries();
        rest.note_answer(cx.soon());
        rest.asked_again = None;
    }
}

// Goes back to the oldest frame without an answer, which counts as lost.
fn go_back_to_lost(qp: &Qp, half: &mut Sending, cause: &'static str) {
    let rest = &half.driver.rest;
    log_event!(
        DEBUG,
        "a queue pair retransmits",
        qp = Qpn::new(qp.qpn),
        psn = rest.unacked.value(),
        cause = cause,
        retries_left = rest.retries_left,
    );
    go_back(half, half.driver.rest.unacked);
}

// Sets the cursor back to the frame with this PSN. Answered frames stay answered.
fn go_back(half: &mut Sending, psn: Psn) {
    let shift = half.driver.mtu_shift;
    let mut cursor = None;
    for (index, wqe) in half.queue.iter_mut().enumerate() {
        if !matches!(wqe.phase, Phase::Started | Phase::Sent) || wqe.count == 0 {
            continue;
        }
        if psn_behind(wqe).distance_from(psn) <= 0 {
            continue;
        }
        wqe.phase = Phase::Started;
        let offset = psn.distance_from(Psn::new(wqe.first)).max(0) as u64;
        wqe.sent = if wqe.kept.op.is_read_or_atomic() {
            wqe.received
        } else {
            offset << shift
        };
        cursor.get_or_insert(index);
    }
    if let Some(cursor) = cursor {
        half.driver.rest.cursor = cursor;
    }
}

// Undoes `go_back`: the frames that were sent before are under way.
fn go_forward(half: &mut Sending) {
    let (shift, sent) = (half.driver.mtu_shift, half.driver.rest.sent);
    for wqe in half.queue.iter_mut() {
        if wqe.phase != Phase::Started || wqe.count == 0 {
            continue;
        }
        let behind = sent.distance_from(Psn::new(wqe.first)).max(0) as u64;
        wqe.sent = wqe.sent.max(behind << shift).min(wqe.kept.length);
        if sent.distance_from(psn_behind(wqe)) >= 0 {
            wqe.phase = Phase::Sent;
        }
    }
}

fn not_ready(qp: &Qp, half: &mut Sending, psn: Psn, code: u8, cx: &mut Cx<'_>) {
    // A duplicate of the RNR NAK does not count.
    if half.driver.rest.rnr_until.is_some() {
        return;
    }
    acknowledge(qp, half, psn, cx);
    if half.driver.rest.unacked != psn {
        // An earlier answer was lost, and has been requested again.
        return;
    }
    if !take_rnr_retry(half) {
        return fail_front(qp, half, WcStatus::RnrRetryExcErr, cx);
    }
    go_back(half, half.driver.rest.unacked);
    wait_for_receive(qp, half, code, cx);
}

fn refused(qp: &Qp, half: &mut Sending, psn: Psn, nak: Nak, cx: &mut Cx<'_>) {
    half.rare().counters.naks += 1;
    acknowledge(qp, half, psn, cx);
    if nak != Nak::SEQUENCE_ERROR {
        // Earlier requests without an answer can no longer get one.
        return fail_front(qp, half, status_of(nak), cx);
    }
    // Frames after a request that waits for a receive are out of order until that request has been retransmitted.
    if half.driver.rest.rnr_until.is_some() {
        return;
    }
    if half.driver.rest.retries_left == 0 {
        return fail_front(qp, half, WcStatus::RetryExcErr, cx);
    }
    half.driver.rest.retries_left -= 1;
    half.driver.rest.note_answer(cx.soon());
    note_loss(half);
    go_back_to_lost(qp, half, "sequence error NAK");
}

// Returns whether this number belongs to the oldest request, a read or an atomic; everything before it has arrived. If an
// older one still waits, its answer was lost, and this one will be sent again after it.
fn answers_front(qp: &Qp, half: &mut Sending, psn: Psn, cx: &mut Cx<'_>) -> bool {
    let Some(wqe) = half.queue.iter().find(|wqe| covers(wqe, psn)) else {
        return false;
    };
    let first = Psn::new(wqe.first);
    acknowledge(qp, half, first, cx);
    match half.queue.iter().position(|wqe| covers(wqe, psn)) {
        Some(0) => return true,
        Some(_) => ask_again(qp, half),
        None => {}
    }
    false
}

fn covers(wqe: &Wqe, psn: Psn) -> bool {
    matches!(wqe.phase, Phase::Started | Phase::Sent)
        && wqe.kept.op.is_read_or_atomic()
        && (0..wqe.count as i32).contains(&psn.distance_from(Psn::new(wqe.first)))
}

fn read_response(
    qp: &Qp,
    half: &mut Sending,
    header: &Header,
    position: Position,
    payload: &Payload<'_>,
    cx: &mut Cx<'_>,
) {
    let psn = header.psn;
    if !answers_front(qp, half, psn, cx) {
        return;
    }
    let shift = half.driver.mtu_shift;
    let wqe = &half.queue[0];
    if !matches!(wqe.kept.op, Op::Read(..) | Op::Flush { .. }) {
        return fail_front(qp, half, WcStatus::BadRespErr, cx);
    }
    let expected = psn_at(wqe, wqe.received, shift);
    match psn.distance_from(expected) {
        0 => {}
        1.. => return ask_again(qp, half),
        _ => return,
    }
    let whole = message_length(wqe);
    let reached = wqe.received + payload.len() as u64;
    // The sequence numbers rely on full packets.
    let fits = header.fits(position, payload.len(), shift);
    let end = end_of_piece(qp, half, wqe.received, whole);
    if !fits || reached > end || position.ends() != (reached == end) {
        return fail_front(qp, half, WcStatus::BadRespErr, cx);
    }
    let mut spans = Spans::new();
    if let Err(fault) = sink(qp, &wqe.kept.request(), cx, &mut spans) {
        return fail_front(qp, half, fault.local_status(), cx);
    }
    scatter_at(&spans, wqe.received, payload);
    half.queue[0].received = reached;
    // A response that arrives while its bytes wait to be requested again makes that request unnecessary.
    half.queue[0].sent = half.queue[0].sent.max(reached);
    let wqe = &half.queue[0];
    let taken = if reached == whole {
        wqe.count
    } else {
        (reached >> shift) as u32
    };
    progress_to(half, Psn::new(wqe.first).plus(taken), cx);
    if reached == whole {
        finish_front(qp, half, cx);
    }
}

fn extension_response(
    qp: &Qp,
    half: &mut Sending,
    header: &Header,
    payload: &Payload<'_>,
    cx: &mut Cx<'_>,
) {
    if !answers_front(qp, half, header.psn, cx) {
        return;
    }
    let request = half.queue[0].kept.request();
    let (Op::Extension(operation), Body::ExtensionResponse(extension, number)) =
        (request.op, header.body)
    else {
        return fail_front(qp, half, WcStatus::BadRespErr, cx);
    };
    let is_its = (operation.extension_id(), operation.number()) == (extension, number);
    if !is_its || payload.len() > ExtensionOperation::MAX_OCTETS {
        return fail_front(qp, half, WcStatus::BadRespErr, cx);
    }
    let placed = extension::prepare(qp, &request, operation, cx)
        .and_then(|(_, sink)| extension::place(qp, operation, payload.to_vec().into(), &sink));
    match placed {
        Ok(bytes) => half.queue[0].received = u64::from(bytes),
        Err(status) => return fail_front(qp, half, status, cx),
    }
    progress_to(half, header.psn.plus(1), cx);
    finish_front(qp, half, cx);
}

// Completes the oldest request, whose whole answer has arrived.
fn finish_front(qp: &Qp, half: &mut Sending, cx: &mut Cx<'_>) {
    if let Some(wqe) = half.queue.front_mut() {
        wqe.phase = Phase::Done(WcStatus::Success);
    }
    half.driver.rest.cursor = half.driver.rest.cursor.max(1);
    complete_in_order(qp, half, cx);
}

fn atomic_response(qp: &Qp, half: &mut Sending, psn: Psn, original: u64, cx: &mut Cx<'_>) {
    if !answers_front(qp, half, psn, cx) {
        return;
    }
    if !matches!(
        half.queue[0].kept.op,
        Op::CompareSwap(..) | Op::FetchAdd(..)
    ) {
        return fail_front(qp, half, WcStatus::BadRespErr, cx);
    }
    let mut spans = Spans::new();
    if let Err(fault) = sink(qp, &half.queue[0].kept.request(), cx, &mut spans) {
        return fail_front(qp, half, fault.local_status(), cx);
    }
    half.queue[0].received = u64::from(place_original(original, &spans));
    progress_to(half, psn.plus(1), cx);
    finish_front(qp, half, cx);
}

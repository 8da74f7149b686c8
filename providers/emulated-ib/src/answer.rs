//! The answers of a responder, and the frames that carry them over a link.

use polyverbs_engine::fault::Fault;
use polyverbs_engine::link::Frame;
use polyverbs_engine::operation::Octets;
use polyverbs_engine::payload::{Payload, Spans};
use verbs_api::{WcStatus, ids::Psn};

use crate::frame::{self, full_frame};
use crate::header::{Aeth, Body, Header, IpFields, Nak, Position, Syndrome};
use crate::pacing::NOTIFY_EVERY;
use crate::{Cx, Qp, Receiving};

/// The answer of a responder to one request frame.
#[derive(Debug)]
pub enum Answer<'p> {
    /// The request was dropped, or needs no answer.
    None,
    /// All requests up to this packet sequence number have arrived.
    Ack(Psn),
    /// The request is refused with this NAK. The number is the request's own PSN, or for a sequence error the expected one.
    Nak(Nak, Psn),
    /// No receive is posted for the request with this PSN. The first number is the timer code of the RNR NAK.
    Rnr(u8, Psn),
    /// The memory whose bytes a read requests; no memory in the answer to a flush.
    Read(Spans<'p>),
    /// The value of an atomic's operand before the operation.
    Atomic(u64),
    /// The bytes that an extension's operation answers.
    Extension(Octets),
    /// The request waits to be served; its answer is sent later.
    Later,
}

/// Why a request is refused: the NAK for the peer, and the status of the receive that the request was filling, if any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) nak: Nak,
    pub(crate) receive: WcStatus,
}

impl Refusal {
    pub(crate) const INVALID: Self = Self {
        nak: Nak::INVALID_REQUEST,
        receive: WcStatus::RemInvReqErr,
    };
}

impl From<Fault> for Refusal {
    /// A right that the queue pair lacks makes the request invalid; every fault of a key is an access error (IBTA
    /// 9.7.4.1.5).
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Misaligned
            | Fault::Operation
            | Fault::Length
            | Fault::NotPermitted
            | Fault::UnknownOperation => Self::INVALID,
            _ => Self {
                nak: Nak::REMOTE_ACCESS,
                receive: WcStatus::RemAccessErr,
            },
        }
    }
}

/// Sends the answer to a request frame over the link; an acknowledge is kept back until no further frame arrives. On a
/// direct network nothing is sent, because the requester's call returns the answer.
pub(crate) fn send(
    qp: &Qp,
    half: &mut Receiving,
    request: &Header,
    answer: Answer<'_>,
    cx: &mut Cx<'_>,
) {
    let (psn, body, refusal) = match answer {
        Answer::None | Answer::Later => return,
        Answer::Ack(psn) => {
            // One acknowledge covers all messages that arrive together, and a message with which the program answers leaves
            // before it.
            let rest = &mut half.driver.rest;
            rest.owed = Some(psn);
            if request.awaited {
                rest.is_awaited = true;
                cx.device.network().await_settling();
            }
            if !std::mem::replace(&mut rest.is_noted, true) {
                cx.device.network().settle_later(qp.downgrade());
            }
            return;
        }
        Answer::Nak(nak, psn) => (psn, Body::Acknowledge, Some(Syndrome::nak(nak))),
        Answer::Rnr(code, psn) => (psn, Body::Acknowledge, Some(Syndrome::rnr_nak(code))),
        Answer::Atomic(original) => (request.psn, Body::AtomicAcknowledge(original), None),
        Answer::Extension(bytes) => {
            let Body::ExtensionRequest(extension, operation) = request.body else {
                return;
            };
            let body = Body::ExtensionResponse(extension, operation);
            let payload = match &bytes[..] {
                [] => Payload::Empty,
                bytes => Payload::Bytes(bytes),
            };
            return emit(qp, half, request.psn, body, None, payload, cx);
        }
        Answer::Read(spans) => {
            let whole = Payload::of_spans(&spans);
            read_response(qp, half, request, &whole, 0, u32::MAX, cx);
            return;
        }
    };
    emit(qp, half, psn, body, refusal, Payload::Empty, cx);
}

/// Sends the acknowledge that the responder has kept back, if there is one.
pub(crate) fn acknowledge(qp: &Qp, cx: &mut Cx<'_>) {
    let half = &mut *qp.responder();
    (half.driver.rest.is_noted, half.driver.rest.is_awaited) = (false, false);
    if let Some(psn) = half.driver.rest.owed {
        emit(qp, half, psn, Body::Acknowledge, None, Payload::Empty, cx);
    }
}

/// Returns the acknowledge that the responder has kept back, if the peer waits for it: a request to the same peer then
/// carries it.
pub(crate) fn take_owed(qp: &Qp) -> Option<(Psn, Aeth)> {
    let half = &mut *qp.responder();
    let rest = &mut half.driver.rest;
    let psn = rest
        .owed
        .take_if(|_| std::mem::take(&mut rest.is_awaited))?;
    Some((psn, aeth(qp, half)))
}

fn aeth(qp: &Qp, half: &Receiving) -> Aeth {
    let receives = (!qp.has_srq()).then(|| qp.receives_waiting(half));
    Aeth::ack(half.driver.rest.msn, receives)
}

/// Sends at most `packets` packets of `whole`, the answer to a read, beginning at byte `offset`. Returns the offset after
/// the last byte sent.
pub(crate) fn read_response(
    qp: &Qp,
    half: &mut Receiving,
    request: &Header,
    whole: &Payload<'_>,
    offset: usize,
    packets: u32,
    cx: &mut Cx<'_>,
) -> usize {
    let end = offset.saturating_add((packets as usize) << half.driver.mtu_shift);
    let rest = whole.part(offset, whole.len() - offset);
    read_frames(qp, half, request, &rest, (offset, end), whole.len(), cx)
}

/// Sends `piece`, the part of the answer to a read that begins at byte `at` of `total`.
pub(crate) fn read_piece(
    qp: &Qp,
    half: &mut Receiving,
    request: &Header,
    piece: &Payload<'_>,
    (at, total): (u32, u32),
    cx: &mut Cx<'_>,
) {
    let (at, total) = (at as usize, total as usize);
    let end = (at + piece.len()).max(at + 1);
    read_frames(qp, half, request, piece, (at, end), total, cx);
}

// Sends frames of the answer to a read of `total` bytes, whose byte `begin` is the first of `rest`, until byte `end` was sent.
// Returns the offset after the last byte sent.
fn read_frames(
    qp: &Qp,
    half: &mut Receiving,
    request: &Header,
    rest: &Payload<'_>,
    (begin, end): (usize, usize),
    total: usize,
    cx: &mut Cx<'_>,
) -> usize {
    let mut offset = begin;
    let peer = &half.driver.rest;
    let frame = full_frame(qp, half.driver.mtu_shift, peer.peer_address, peer.peer_qpn);
    let frame = frame.unwrap_or(usize::MAX);
    while offset < end {
        let length = (begin + rest.len() - offset).min(frame);
        let position = Position::of(offset as u64, length as u64, total as u64);
        let psn = request.psn.plus((offset >> half.driver.mtu_shift) as u32);
        emit(
            qp,
            half,
            psn,
            Body::ReadResponse(position),
            None,
            rest.part(offset - begin, length),
            cx,
        );
        offset += length;
        if offset >= total {
            break;
        }
    }
    offset
}

/// Sends the peer a congestion notification (CNP), because its packets have met congestion; at most one in each
/// [`NOTIFY_EVERY`] (IBTA annex A17.9.3).
#[cold]
pub(crate) fn notify_congestion(qp: &Qp, frame: &Frame<'_, Header>, cx: &mut Cx<'_>) {
    let mut half = qp.responder();
    let rest = &half.driver.rest;
    let is_peer = rest.peer_address == Some(frame.from)
        && frame.header.may_come_from(rest.peer_qpn)
        && !matches!(frame.header.body, Body::Congestion);
    let now = cx.now();
    if !is_peer || now < rest.notified_until {
        return;
    }
    half.driver.rest.notified_until = now.after(NOTIFY_EVERY);
    let psn = Psn::default();
    emit(
        qp,
        &mut half,
        psn,
        Body::Congestion,
        None,
        Payload::Empty,
        cx,
    );
}

fn emit(
    qp: &Qp,
    half: &mut Receiving,
    psn: Psn,
    body: Body,
    refusal: Option<Syndrome>,
    payload: Payload<'_>,
    cx: &mut Cx<'_>,
) {
    if !matches!(body, Body::Congestion) {
        // Every answer acknowledges the requests before it (IBTA 9.7.5.1.2).
        let owed = &mut half.driver.rest.owed;
        owed.take_if(|owed| psn.distance_from(*owed) >= 0);
    }
    let mut aeth = aeth(qp, half);
    aeth.syndrome = refusal.unwrap_or(aeth.syndrome);
    let mut ip = half.driver.rest.ip;
    if matches!(body, Body::Congestion) {
        ip.traffic_class &= !IpFields::ECN;
    }
    let header = Header {
        xrc: qp.carries_srqn.then_some(0),
        aeth,
        ip,
        joined: frame::is_uncut(qp),
        mtu_shift: half.driver.mtu_shift,
        ..Header::new(qp.qp_type, qp.qpn, half.driver.rest.peer_qpn, psn, body)
    };
    frame::send(qp, half.driver.rest.peer_address, header, payload, cx);
}

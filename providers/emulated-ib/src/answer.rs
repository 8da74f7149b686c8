//! Answers of a responder, and the frames that carry them over a link.

use polyverbs_engine::fault::Fault;
use polyverbs_engine::link::Frame;
use polyverbs_engine::operation::Octets;
use polyverbs_engine::payload::{Payload, Spans};
use verbs_api::{WcStatus, ids::Psn};

use crate::frame::{self, full_frame};
use crate::header::{Aeth, Body, Header, IpFields, Nak, Position, Syndrome};
use crate::pacing::NOTIFY_EVERY;
use crate::{Cx, Qp, Receiving};

/// The answer to one request frame.
#[derive(Debug)]
pub enum Answer<'p> {
    /// The request was dropped, or needs no answer.
    None,
    /// The requests up to this sequence number have arrived.
    Ack(Psn),
    /// The request is refused. For a sequence error the number is the expected one.
    Nak(Nak, Psn),
    /// There is no receive. The code is that of the RNR timer.
    Rnr(u8, Psn),
    /// The bytes that a read requests.
    Read(Spans<'p>),
    /// The original value of an atomic.
    Atomic(u64),
    /// The answer of an extension's operation.
    Extension(Octets),
    /// The request is queued; the answer follows later.
    Later,
}

/// Why a request is refused, and the status of its receive if it has one.
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
    /// A missing right of the queue pair is an invalid request; every fault of a key is an access error (IBTA 9.7.4.1.5).
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

/// Sends the answer to a request frame over the link. On a direct network the requester has it already.
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
            // One acknowledge covers all messages that arrive together, and the program's own message is sent before it.
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

/// Sends the pending acknowledge.
pub(crate) fn acknowledge(qp: &Qp, cx: &mut Cx<'_>) {
    let half = &mut *qp.responder();
    (half.driver.rest.is_noted, half.driver.rest.is_awaited) = (false, false);
    if let Some(psn) = half.driver.rest.owed {
        emit(qp, half, psn, Body::Acknowledge, None, Payload::Empty, cx);
    }
}

/// Takes the pending acknowledge if the peer waits for it: a request to the same peer carries it.
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

/// Sends at most `packets` packets of the answer to a read, beginning at `offset`. Returns the offset after the last byte
/// sent.
pub(crate) fn read_response(
    qp: &Qp,
    half: &mut Receiving,
    request: &Header,
    whole: &Payload<'_>,
    mut offset: usize,
    packets: u32,
    cx: &mut Cx<'_>,
) -> usize {
    let rest = &half.driver.rest;
    let frame = full_frame(qp, half.driver.mtu_shift, rest.peer_address, rest.peer_qpn);
    let frame = frame.unwrap_or(usize::MAX);
    let total = whole.len();
    let end = offset.saturating_add((packets as usize) << half.driver.mtu_shift);
    while offset < end {
        let length = (total - offset).min(frame);
        let position = Position::of(offset as u64, length as u64, total as u64);
        let psn = request.psn.plus((offset >> half.driver.mtu_shift) as u32);
        emit(
            qp,
            half,
            psn,
            Body::ReadResponse(position),
            None,
            whole.part(offset, length),
            cx,
        );
        offset += length;
        if offset >= total {
            break;
        }
    }
    offset
}

/// Notifies the peer that its packets meet congestion, at a limited rate (IBTA annex A17.9.3).
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

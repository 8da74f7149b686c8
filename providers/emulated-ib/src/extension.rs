//! Operations of extensions: requests under the one opcode that manufacturers are left, each of one packet, answered once.
//!
//! They are ordered and repeated as atomics are: the responder notes its answer and gives it again to a request that
//! comes again, and the requester does not take an acknowledge for it.

use polyverbs_engine::operation::{self, Aligned, Octets, TargetMemory};
use polyverbs_engine::payload::{Payload, Spans};
use polyverbs_engine::request::Request;
use verbs_api::{WcStatus, extension::ExtensionOperation};

use crate::answer::{Answer, Refusal};
use crate::header::{Body, Header};
use crate::requester::{Attempt, hand_over, status_of, take_turn};
use crate::responder::{arrived, note_served};
use crate::{Cx, Qp, Receiving, Sending};

/// The octets of a request, and where its answer goes.
///
/// # Errors
/// The status of a request whose own memory was refused.
pub(crate) fn prepare<'p>(
    qp: &Qp,
    request: &Request<'_>,
    operation: &'static ExtensionOperation,
    cx: &Cx<'p>,
) -> Result<(Octets, Spans<'p>), WcStatus> {
    let (keys, pin) = (cx.keys(), cx.pin);
    let message = operation::message(keys, pin, qp.pd, request, operation);
    let sink = operation::sink(keys, pin, qp.pd, request, operation);
    match (message, sink) {
        (Ok(message), Ok(sink)) => Ok((message, sink)),
        (Err(fault), _) | (_, Err(fault)) => Err(fault.local_status()),
    }
}

/// Places an answer: how many octets of it, or how the request ends otherwise.
///
/// # Errors
/// The device has no such operation any more.
pub(crate) fn place(
    qp: &Qp,
    operation: &'static ExtensionOperation,
    answer: Octets,
    sink: &Spans<'_>,
) -> Result<u32, WcStatus> {
    let emulation = qp.device.operation(operation).ok_or(WcStatus::LocQpOpErr)?;
    Ok(operation::place(emulation, answer, sink))
}

/// Hands a request to a peer that is reached directly.
#[cold]
pub(crate) fn exchange(
    qp: &Qp,
    half: &mut Sending,
    request: &Request<'_>,
    operation: &'static ExtensionOperation,
    peer: &Qp,
    cx: &mut Cx<'_>,
) -> Attempt {
    let (message, sink) = match prepare(qp, request, operation, cx) {
        Ok(prepared) => prepared,
        Err(status) => return Attempt::Done(status, 0),
    };
    let payload = Payload::Octets(&message);
    let answer = match hand_over(qp, half, request, peer, &payload, cx) {
        Answer::Extension(answer) => answer,
        Answer::Nak(nak, _) => return Attempt::Done(status_of(nak), 0),
        _ => return Attempt::Lost,
    };
    take_turn(half, 0);
    match place(qp, operation, answer, &sink) {
        Ok(octets) => Attempt::Done(WcStatus::Success, octets),
        Err(status) => Attempt::Done(status, 0),
    }
}

/// Carries out a request that arrived in order. An operation that nobody emulates is answered as an unknown opcode is.
#[cold]
pub(crate) fn respond<'p>(
    qp: &Qp,
    half: &mut Receiving,
    header: &Header,
    payload: &Payload<'_>,
    direct: bool,
    cx: &mut Cx<'p>,
) -> Result<Answer<'p>, Refusal> {
    let Body::ExtensionRequest(extension, operation) = header.body else {
        return Err(Refusal::INVALID);
    };
    let emulation = qp.device.operation_numbered(extension, operation);
    let emulation = emulation.ok_or(Refusal::INVALID)?;
    if payload.len() > ExtensionOperation::MAX_OCTETS || !half.driver.is_between() {
        return Err(Refusal::INVALID);
    }
    let permitted = half.driver.access;
    let users = (qp.remote_pd(), qp.qpn);
    let memory = TargetMemory::new(qp.device.keys(), cx.pin, users, permitted, Aligned::Address);
    let mut answer = Octets::new();
    operation::respond(emulation, &payload.to_vec(), None, &memory, &mut answer)?;
    if !direct {
        note_served(half, header, &answer);
    }
    arrived(half, header, 0, false);
    Ok(Answer::Extension(answer))
}

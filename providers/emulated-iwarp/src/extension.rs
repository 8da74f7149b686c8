//! Operations of extensions: requests under the one spare opcode, on the queue of reads and atomics, answered on that of
//! atomic responses. What RFC 7306 has an encoding for is carried as it says.

use polyverbs_engine::fault::Fault;
use polyverbs_engine::operation::{
    self, Aligned, Octets, OperationEmulation, StandardOperation, TargetMemory,
};
use polyverbs_engine::pin::Pin;
use polyverbs_engine::request::{Op, Request};
use verbs_api::{Transport, WcStatus, extension::ExtensionOperation};

use crate::direct::{Failure, Far, untagged, within_budget};
use crate::header::{Body, ExtensionMessage, Message, QN_ATOMIC_RESPONSE, QN_REQUEST};
use crate::peer::Peer;
use crate::requester::{Started, ask};
use crate::terminate::Breach;
use crate::{Cx, Qp, Receiving, Sending, direct, requester};

/// What carries out an operation, and the atomic of RFC 7306 that it is, if it is one.
pub(crate) fn of(
    qp: &Qp,
    request: &Request<'_>,
    operation: &'static ExtensionOperation,
) -> Result<(&'static dyn OperationEmulation, Option<StandardOperation>), Fault> {
    let emulation = qp.device.operation(operation);
    let emulation = emulation.ok_or(Fault::UnknownOperation)?;
    let body = request.body.map_or(&[][..], |body| body.octets);
    Ok((emulation, emulation.standard(Transport::Iwarp, body)))
}

/// Whether a request is answered by an atomic response.
pub(crate) fn is_atomic(qp: &Qp, request: &Request<'_>) -> bool {
    match request.op {
        Op::CompareSwap(..) | Op::FetchAdd(..) => true,
        Op::Extension(operation) => {
            matches!(
                of(qp, request, operation),
                Ok((_, Some(StandardOperation::Atomic(..))))
            )
        }
        _ => false,
    }
}

fn request_body(operation: &ExtensionOperation, octets: Octets) -> Body {
    Body::Extension(Box::new(ExtensionMessage {
        extension: operation.extension_id(),
        operation: operation.number(),
        is_response: false,
        octets,
    }))
}

/// Starts a request over a link.
#[cold]
pub(crate) fn start(
    qp: &Qp,
    half: &mut Sending,
    peer: &Peer,
    request: &Request<'_>,
    operation: &'static ExtensionOperation,
    cx: &mut Cx<'_>,
) -> Started {
    if let (_, Some(StandardOperation::Atomic(remote, op))) = of(qp, request, operation)? {
        return requester::atomic(qp, half, peer, request, remote, op, cx);
    }
    let (keys, pin) = (cx.keys(), cx.pin);
    operation::sink(keys, pin, qp.pd, request, operation)?;
    let message = operation::message(keys, pin, qp.pd, request, operation)?;
    let body = request_body(operation, message);
    Ok(ask(qp, half, peer, |_| body, cx))
}

/// Carries a request out at a peer that is reached directly.
#[cold]
pub(crate) fn execute(
    qp: &Qp,
    far: &Far<'_>,
    ord: u8,
    request: &Request<'_>,
    operation: &'static ExtensionOperation,
    cx: &mut Cx<'_>,
) -> Result<u32, Failure> {
    let (emulation, standard) = of(qp, request, operation)?;
    if let Some(StandardOperation::Atomic(remote, op)) = standard {
        return direct::atomic(qp, far, ord, request, remote, op, cx);
    }
    if ord == 0 {
        return Err(Failure::Local(WcStatus::LocQpOpErr));
    }
    let (keys, pin) = (cx.keys(), cx.pin);
    let sink = operation::sink(keys, pin, qp.pd, request, operation)?;
    let message = operation::message(keys, pin, qp.pd, request, operation)?;
    let half = far.receiver(cx)?;
    let numbers = (operation.extension_id(), operation.number());
    let answer =
        within_budget(&half).and_then(|()| respond(far.peer, &half, numbers, &message, pin));
    match answer {
        Ok(answer) => {
            drop(half);
            Ok(operation::place(emulation, answer, &sink))
        }
        Err(breach) => {
            let about = untagged(QN_REQUEST, request_body(operation, message));
            Err(far.refuse(half, breach, about, cx))
        }
    }
}

/// Carries out a request that arrived. One that nobody emulates is an unknown opcode.
pub(crate) fn respond(
    qp: &Qp,
    half: &Receiving,
    (extension, operation): (u32, u16),
    message: &[u8],
    pin: &Pin,
) -> Result<Octets, Breach> {
    let emulation = qp.device.operation_numbered(extension, operation);
    let emulation = emulation.ok_or(Breach::Opcode)?;
    let users = (qp.pd, qp.qpn);
    let memory = TargetMemory::new(
        qp.device.keys(),
        pin,
        users,
        half.driver.access,
        Aligned::Memory,
    );
    let mut answer = Octets::new();
    operation::respond(emulation, message, None, &memory, &mut answer).map_err(
        |fault| match fault {
            Fault::NotPermitted | Fault::UnknownOperation => Breach::Opcode,
            fault => Breach::Atomic(fault),
        },
    )?;
    Ok(answer)
}

/// The answer to a request.
pub(crate) fn answer(
    qp: &Qp,
    half: &mut Receiving,
    request: &ExtensionMessage,
    cx: &Cx<'_>,
) -> Result<Message, Breach> {
    let numbers = (request.extension, request.operation);
    let octets = respond(qp, half, numbers, &request.octets, cx.pin)?;
    let response = Body::Extension(Box::new(ExtensionMessage {
        is_response: true,
        octets,
        ..*request
    }));
    let msn = half.driver.next_response();
    let mut segment = untagged(QN_ATOMIC_RESPONSE, response);
    if let Message::Untagged(segment) = &mut segment {
        segment.msn = msn;
    }
    Ok(segment)
}

/// Places the answer to the oldest request: how many octets.
pub(crate) fn place(
    qp: &Qp,
    request: &Request<'_>,
    response: &ExtensionMessage,
    cx: &Cx<'_>,
) -> Result<u32, Breach> {
    let Op::Extension(operation) = request.op else {
        return Err(Breach::Opcode);
    };
    let is_its =
        (operation.extension_id(), operation.number()) == (response.extension, response.operation);
    let (emulation, standard) = of(qp, request, operation).map_err(|_| Breach::Opcode)?;
    if !is_its || standard.is_some() || response.octets.len() > ExtensionOperation::MAX_OCTETS {
        return Err(Breach::Opcode);
    }
    let sink = operation::sink(cx.keys(), cx.pin, qp.pd, request, operation);
    let sink = sink.map_err(Breach::Receive)?;
    Ok(operation::place(emulation, response.octets.clone(), &sink))
}

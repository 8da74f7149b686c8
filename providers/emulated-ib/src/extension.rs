//! Operations of extensions: requests under the one opcode that manufacturers are left, each of one packet, answered once.
//!
//! They are ordered and repeated as atomics are: the responder notes its answer and gives it again to a request that
//! comes again, and the requester does not take an acknowledge for it.

use polyverbs_engine::fault::Fault;
use polyverbs_engine::operation::{self, Aligned, Octets, TargetMemory};
use polyverbs_engine::payload::{Payload, Spans};
use polyverbs_engine::request::Request;
use verbs_api::{Access, WcStatus, extension::ExtensionOperation};

use crate::{Cx, Qp};

/// The bytes of a request, and where its answer goes.
///
/// # Errors
/// The status of a request whose own memory was refused.
pub(crate) fn prepare<'p>(
    qp: &Qp,
    request: &Request<'_>,
    operation: &'static ExtensionOperation,
    cx: &Cx<'p>,
) -> Result<(Octets, Spans<'p>), WcStatus> {
    let message = qp.gather_message(request, operation, cx);
    let message = message.map_err(Fault::local_status)?;
    let sink = qp.gather_answer(request, operation, cx);
    Ok((message, sink.map_err(Fault::local_status)?))
}

/// Places an answer: how many bytes of it, or how the request ends otherwise.
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

/// Carries out a request that arrived in order: its answer.
///
/// # Errors
/// Nobody emulates the operation, which is as an opcode that is not known, or it was refused.
#[cold]
pub(crate) fn carry_out(
    qp: &Qp,
    permitted: Access,
    (extension, operation): (u32, u16),
    payload: &Payload<'_>,
    cx: &Cx<'_>,
) -> Result<Octets, Fault> {
    let emulation = qp.device.operation_numbered(extension, operation);
    let emulation = emulation.ok_or(Fault::UnknownOperation)?;
    if payload.len() > ExtensionOperation::MAX_OCTETS {
        return Err(Fault::Length);
    }
    let users = (qp.remote_pd(), qp.qpn);
    let memory = TargetMemory::new(qp.device.keys(), cx.pin, users, permitted, Aligned::Address);
    let mut answer = Octets::new();
    operation::respond(emulation, &payload.to_vec(), None, &memory, &mut answer)?;
    Ok(answer)
}

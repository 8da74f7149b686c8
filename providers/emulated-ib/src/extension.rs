//! Operations of extensions: requests with the one opcode that is left to manufacturers, each of one packet with one
//! answer.
//!
//! They are ordered and repeated as atomics are: the responder stores its answer and sends it again to a duplicate, and the
//! requester does not accept an acknowledge instead of the answer.

use polyverbs_engine::fault::Fault;
use polyverbs_engine::operation::{self, Aligned, Octets, TargetMemory};
use polyverbs_engine::payload::{Payload, Spans};
use polyverbs_engine::request::Request;
use verbs_api::{Access, WcStatus, extension::ExtensionOperation};

use crate::{Cx, Qp};

/// Returns the message that an extension's request sends, and the memory for its answer.
///
/// # Errors
/// The status of a request whose local memory was refused.
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

/// Places the answer to an extension's request in `sink`. Returns the number of bytes placed.
///
/// # Errors
/// The status of a request whose operation the device no longer has.
pub(crate) fn place(
    qp: &Qp,
    operation: &'static ExtensionOperation,
    answer: Octets,
    sink: &Spans<'_>,
) -> Result<u32, WcStatus> {
    let emulation = qp.device.operation(operation).ok_or(WcStatus::LocQpOpErr)?;
    Ok(operation::place(emulation, answer, sink))
}

/// Carries out an extension's request that has arrived in order, and returns its answer. `permitted` are the rights that
/// the queue pair grants to its peer.
///
/// # Errors
/// No extension emulates the operation, which counts as an unknown opcode, or the operation was refused.
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

//! Operations of extensions: requests under the one spare opcode, on the queue of reads and atomics, answered on that of
//! atomic responses. What RFC 7306 has an encoding for is carried as it says.

use polyverbs_engine::fault::Fault;
use polyverbs_engine::operation::{
    self, Aligned, Octets, OperationEmulation, StandardOperation, TargetMemory,
};
use polyverbs_engine::pin::Pin;
use polyverbs_engine::request::{Op, Request};
use verbs_api::{Transport, extension::ExtensionOperation};

use crate::header::{ExtensionHeader, ExtensionMessage};
use crate::terminate::Breach;
use crate::{Cx, Qp, Receiving};

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

/// The message that a request is.
pub(crate) fn message(
    qp: &Qp,
    request: &Request<'_>,
    operation: &ExtensionOperation,
    cx: &Cx<'_>,
) -> Result<ExtensionMessage, Fault> {
    let header = ExtensionHeader {
        extension: operation.extension_id(),
        operation: operation.number(),
        ..ExtensionHeader::default()
    };
    Ok(ExtensionMessage {
        header,
        octets: operation::message(cx.keys(), cx.pin, qp.pd, request, operation)?,
    })
}

/// Carries out a request that arrived. One that nobody emulates is an unknown opcode.
pub(crate) fn carry_out(
    qp: &Qp,
    half: &Receiving,
    request: &ExtensionMessage,
    pin: &Pin,
) -> Result<Octets, Breach> {
    let ExtensionHeader {
        extension,
        operation,
        ..
    } = request.header;
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
    operation::respond(emulation, &request.octets, None, &memory, &mut answer).map_err(
        |fault| match fault {
            Fault::NotPermitted | Fault::UnknownOperation => Breach::Opcode,
            fault => Breach::Atomic(fault),
        },
    )?;
    Ok(answer)
}

/// Places the answer to the oldest request: how many bytes.
pub(crate) fn place(
    qp: &Qp,
    request: &Request<'_>,
    response: &ExtensionMessage,
    cx: &Cx<'_>,
) -> Result<u32, Breach> {
    let Op::Extension(operation) = request.op else {
        return Err(Breach::Opcode);
    };
    let answered = (response.header.extension, response.header.operation);
    let is_its = (operation.extension_id(), operation.number()) == answered;
    let (emulation, standard) = of(qp, request, operation).map_err(|_| Breach::Opcode)?;
    if !is_its || standard.is_some() || response.octets.len() > ExtensionOperation::MAX_OCTETS {
        return Err(Breach::Opcode);
    }
    let sink = operation::sink(cx.keys(), cx.pin, qp.pd, request, operation);
    let sink = sink.map_err(Breach::Receive)?;
    Ok(operation::place(emulation, response.octets.clone(), &sink))
}

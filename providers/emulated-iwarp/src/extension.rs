//! Operations of extensions: requests with the one spare opcode, on the queue of reads and atomics, and answers on the
//! queue of atomic responses. Operations that RFC 7306 encodes use its encoding.

use polyverbs_engine::fault::Fault;
use polyverbs_engine::operation::{
    self, Aligned, Octets, OperationEmulation, StandardOperation, TargetMemory,
};
use polyverbs_engine::request::{Op, Request};
use verbs_api::{Transport, extension::ExtensionOperation};

use crate::header::ExtensionHeader;
use crate::operations::Target;
use crate::terminate::Breach;
use crate::{Cx, Qp};

/// Returns the emulation of a request's operation, and its form in RFC 7306 if it has one.
pub(crate) fn of(
    qp: &Qp,
    request: &Request<'_>,
    operation: &'static ExtensionOperation,
) -> Result<(&'static dyn OperationEmulation, Option<StandardOperation>), Fault> {
    let emulation = qp.device.operation(operation);
    let emulation = emulation.ok_or(Fault::UnknownOperation)?;
    Ok((
        emulation,
        emulation.standard(Transport::Iwarp, request.body),
    ))
}

/// Returns whether an Atomic Response of RFC 7306 answers the request.
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

/// Returns the header of a request of this operation.
pub(crate) fn header(operation: &ExtensionOperation) -> ExtensionHeader {
    ExtensionHeader {
        extension: operation.extension_id(),
        operation: operation.number(),
        ..ExtensionHeader::default()
    }
}

impl Target<'_, '_> {
    /// Carries out an extension's request that has arrived, and returns the answer. If no linked emulation knows the
    /// operation, its opcode counts as unknown.
    pub(crate) fn extension(
        &self,
        header: ExtensionHeader,
        bytes: &[u8],
    ) -> Result<Octets, Breach> {
        let qp = self.qp;
        let emulation = qp
            .device
            .operation_numbered(header.extension, header.operation);
        let emulation = emulation.ok_or(Breach::OPCODE)?;
        let (keys, permitted) = (qp.device.keys(), self.half.driver.access);
        let users = (qp.pd, qp.qpn);
        let memory = TargetMemory::new(keys, self.cx.pin, users, permitted, Aligned::Memory);
        let mut answer = Octets::new();
        match operation::respond(emulation, bytes, None, &memory, &mut answer) {
            Ok(()) => Ok(answer),
            Err(Fault::NotPermitted | Fault::UnknownOperation) => Err(Breach::OPCODE),
            Err(fault) => Err(Breach::Atomic(fault)),
        }
    }
}

/// Places the answer to `request` in its scatter/gather list. Returns the number of bytes placed.
pub(crate) fn place(
    qp: &Qp,
    request: &Request<'_>,
    header: ExtensionHeader,
    answer: Octets,
    cx: &Cx<'_>,
) -> Result<u32, Breach> {
    let Op::Extension(operation) = request.op else {
        return Err(Breach::OPCODE);
    };
    let answered = (header.extension, header.operation);
    let is_its = (operation.extension_id(), operation.number()) == answered;
    let (emulation, standard) = of(qp, request, operation).map_err(|_| Breach::OPCODE)?;
    if !is_its || standard.is_some() || answer.len() > ExtensionOperation::MAX_OCTETS {
        return Err(Breach::OPCODE);
    }
    let sink = qp.gather_answer(request, operation, cx);
    let sink = sink.map_err(Breach::Receive)?;
    Ok(operation::place(emulation, answer, &sink))
}

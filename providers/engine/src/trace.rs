//! A trace of the operations that a device has executed, to be compared with a plan.
//!
//! An operation on the wire is reported when it completes, one on the device's own keys when it is carried out, so that the
//! order shows whether a fence was kept. Requests that are flushed were not executed and are not reported.

use std::sync::Arc;

use verbs_api::{Operations, WcStatus, wr::SendFlags};

use crate::request::{Op, Request, SendExtra};

/// An operation that a device has executed, as a trace reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedOperation {
    /// The number of the queue pair that executed the operation.
    pub qpn: u32,
    /// The `wr_id` of the request.
    pub wr_id: u64,
    /// The kind of operation.
    pub operation: Operations,
    /// The flags with which the request was posted.
    pub flags: SendFlags,
    /// The status with which the operation ended.
    pub status: WcStatus,
}

/// A function that receives each executed operation. The device calls it with the queue pair locked, so it must only note
/// the operation.
pub type Trace = Arc<dyn Fn(TracedOperation) + Send + Sync>;

impl TracedOperation {
    pub(crate) fn of(qpn: u32, request: &Request<'_>, status: WcStatus) -> Self {
        Self {
            qpn,
            wr_id: request.wr_id,
            operation: operation(&request.op),
            flags: request.flags,
            status,
        }
    }
}

fn operation(op: &Op) -> Operations {
    match op {
        Op::Send(SendExtra::Nothing) => Operations::SEND,
        Op::Send(SendExtra::Immediate(_)) => Operations::SEND_WITH_IMM,
        Op::Send(SendExtra::Invalidate(_)) => Operations::SEND_WITH_INV,
        Op::Write(_, None) => Operations::WRITE,
        Op::Write(_, Some(_)) => Operations::WRITE_WITH_IMM,
        Op::Read(_, None) => Operations::READ,
        Op::Read(_, Some(_)) => Operations::READ_WITH_INV,
        Op::CompareSwap(..) => Operations::ATOMIC_CMP_AND_SWP,
        Op::FetchAdd(..) => Operations::ATOMIC_FETCH_AND_ADD,
        Op::AtomicWrite(_) => Operations::ATOMIC_WRITE,
        Op::Flush { .. } => Operations::FLUSH,
        Op::FastRegister { .. } => Operations::FAST_REGISTER,
        Op::LocalInvalidate(_) => Operations::LOCAL_INV,
        Op::Bind { .. } => Operations::BIND_MW,
        Op::Extension(operation) => operation.bit(),
    }
}

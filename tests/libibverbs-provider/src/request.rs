//! What requests are in C.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;

use polyverbs_abi::{
    Atomic, IbvAh, IbvQp, IbvRecvWr, IbvSendWr, IbvSge, IbvSrq, Rdma, SendWr, Ud, send_flags,
    wr_opcode,
};
use verbs_api::VerbError;
use verbs_api::provider::{Operation as _, own};
use verbs_api::wr::{
    Data, Operations, PostReason, ReceiveRequest, RemoteAddress, SendFlags, Sge, UdDestination,
    WorkRequest,
};

use crate::domain::AddressHandle;
use crate::verbs::{Live, Zero as _};

/// The operations that this provider puts into C.
pub(crate) const OPERATIONS: Operations = Operations::BASELINE;

const FLAGS: SendFlags = SendFlags::FENCE
    .union(SendFlags::SIGNALED)
    .union(SendFlags::SOLICITED);

const _: () = assert!(
    SendFlags::FENCE.bits() as u32 == send_flags::FENCE
        && SendFlags::SIGNALED.bits() as u32 == send_flags::SIGNALED
        && SendFlags::SOLICITED.bits() as u32 == send_flags::SOLICITED
);

/// Posts a request under a number.
///
/// # Errors
/// An error number that it was refused with; or what this provider refuses itself.
pub(crate) fn post_send(
    qp: &Live<IbvQp>,
    request: &WorkRequest<'_>,
    number: u64,
    is_signaled: bool,
) -> Result<c_int, PostReason> {
    let mut wr = IbvSendWr::zero();
    wr.wr_id = number;
    wr.send_flags = u32::from((request.common().flags & FLAGS).bits());
    if is_signaled {
        wr.send_flags |= send_flags::SIGNALED;
    }
    // It has to be there as long as the request.
    let inline;
    let entries = match request.data() {
        Data::Inline(octets) => {
            wr.send_flags |= send_flags::INLINE;
            inline = [inline_entry(octets)];
            &inline[..]
        }
        data => entries_of(data.sges().list),
    };
    (wr.sg_list, wr.num_sge) = (entries.as_ptr(), entries.len() as c_int);
    let destination = fill(&mut wr, request)?;
    let Some(destination) = destination else {
        // SAFETY: entries and inline octets are the request's, which lives.
        return posted(unsafe { qp.post_send(&mut wr) });
    };
    let handle: std::sync::Arc<AddressHandle> =
        own(destination.ah.ops(), "ah").map_err(|_| PostReason::ForeignAh)?;
    posted(
        handle
            .ah
            .with(|ah: *mut IbvAh| {
                wr.wr.ud = Ud {
                    ah,
                    remote_qpn: destination.remote_qpn.value(),
                    remote_qkey: destination.remote_qkey,
                };
                // SAFETY: as above; the address handle is not destroyed meanwhile.
                unsafe { qp.post_send(&mut wr) }
            })
            .and_then(|answer| answer),
    )
}

/// The operation and what belongs to it; answers where a datagram goes.
fn fill<'r>(
    wr: &mut IbvSendWr,
    request: &'r WorkRequest<'_>,
) -> Result<Option<&'r UdDestination>, PostReason> {
    let atomic = |remote: RemoteAddress, compare_add, swap| SendWr {
        atomic: Atomic {
            remote_addr: remote.addr,
            compare_add,
            swap,
            rkey: remote.rkey.value(),
        },
    };
    let mut destination = None;
    match request {
        WorkRequest::Send(send) => {
            wr.opcode = wr_opcode::SEND;
            destination = send.destination;
        }
        WorkRequest::SendWithImmediate(send) => {
            wr.opcode = wr_opcode::SEND_WITH_IMM;
            wr.imm_data = u32::from_ne_bytes(send.imm);
            destination = send.destination;
        }
        WorkRequest::Write(write) => {
            wr.opcode = wr_opcode::RDMA_WRITE;
            wr.wr = rdma(write.remote);
        }
        WorkRequest::WriteWithImmediate(write) => {
            wr.opcode = wr_opcode::RDMA_WRITE_WITH_IMM;
            wr.imm_data = u32::from_ne_bytes(write.imm);
            wr.wr = rdma(write.remote);
        }
        WorkRequest::Read(read) => {
            wr.opcode = wr_opcode::RDMA_READ;
            wr.wr = rdma(read.remote);
        }
        WorkRequest::CompareSwap(swap) => {
            wr.opcode = wr_opcode::ATOMIC_CMP_AND_SWP;
            wr.wr = atomic(swap.remote, swap.compare, swap.swap);
        }
        WorkRequest::FetchAdd(add) => {
            wr.opcode = wr_opcode::ATOMIC_FETCH_AND_ADD;
            wr.wr = atomic(add.remote, add.add, 0);
        }
        other => {
            let missing = other.operation();
            return Err(PostReason::OperationNotEnabled { missing });
        }
    }
    Ok(destination)
}

fn rdma(remote: RemoteAddress) -> SendWr {
    SendWr {
        rdma: Rdma {
            remote_addr: remote.addr,
            rkey: remote.rkey.value(),
        },
    }
}

/// The same entries: they are laid out as in C.
fn entries_of(list: &[Sge]) -> &[IbvSge] {
    // SAFETY: both are an address, a length and a key, at the same places.
    unsafe { std::slice::from_raw_parts(list.as_ptr().cast(), list.len()) }
}

fn inline_entry(octets: &[u8]) -> IbvSge {
    IbvSge {
        addr: octets.as_ptr().expose_provenance() as u64,
        length: octets.len() as u32,
        lkey: 0,
    }
}

fn posted(answer: Result<c_int, VerbError>) -> Result<c_int, PostReason> {
    answer.map_err(|_| PostReason::InvalidHandle)
}

/// A receive under a number.
fn receive(request: &ReceiveRequest<'_>, number: u64) -> IbvRecvWr {
    let entries = entries_of(request.data.sges().list);
    IbvRecvWr {
        wr_id: number,
        next: ptr::null_mut(),
        sg_list: entries.as_ptr(),
        num_sge: entries.len() as c_int,
    }
}

/// Posts a receive under a number; an error number where it was refused.
///
/// # Errors
/// The queue pair was destroyed.
pub(crate) fn post_recv(
    qp: &Live<IbvQp>,
    request: &ReceiveRequest<'_>,
    number: u64,
) -> Result<c_int, PostReason> {
    // SAFETY: the entries are the request's, which lives.
    posted(unsafe { qp.post_recv(&mut receive(request, number)) })
}

/// The same to a shared queue.
///
/// # Errors
/// The queue was destroyed.
pub(crate) fn post_srq_recv(
    srq: &Live<IbvSrq>,
    request: &ReceiveRequest<'_>,
    number: u64,
) -> Result<c_int, PostReason> {
    // SAFETY: as above.
    posted(unsafe { srq.post(&mut receive(request, number)) })
}

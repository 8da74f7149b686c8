//! What requests are in C.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use polyverbs_abi::{
    Atomic, BindMw, IbvMw, IbvMwBind, IbvMwBindInfo, IbvQp, IbvRecvWr, IbvSendWr, IbvSge, IbvSrq,
    Rdma, SendWr, Ud, send_flags, wr_opcode,
};
use verbs_api::capability::Features;
use verbs_api::provider::{Operation as _, own};
use verbs_api::wr::{
    BindWindow, Data, Operations, PostReason, ReceiveRequest, RemoteAddress, SendFlags, Sge,
    UdDestination, WorkRequest,
};
use verbs_api::{Access, VerbError};

use crate::domain::{AddressHandle, Region};
use crate::verbs::{Live, Zero as _};
use crate::window::Window;

/// The operations that this provider puts into C.
pub(crate) const OPERATIONS: Operations = Operations::BASELINE
    .union(Operations::LOCAL_INV)
    .union(Operations::SEND_WITH_INV)
    .union(Operations::BIND_MW);

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
    wr.send_flags = flags_in_c(request.common().flags, is_signaled);
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
    match fill(&mut wr, request)? {
        Named::Nothing => {
            // SAFETY: entries and inline octets are the request's, which lives.
            gone(unsafe { qp.post_send(&mut wr) })
        }
        Named::Destination(to) => {
            let handle: Arc<AddressHandle> =
                own(to.ah.ops(), "ah").map_err(|_| PostReason::ForeignAh)?;
            let posted = handle.ah.with(|ah| {
                wr.wr.ud = Ud {
                    ah,
                    remote_qpn: to.remote_qpn.value(),
                    remote_qkey: to.remote_qkey,
                };
                // SAFETY: as above; the address handle is not destroyed meanwhile.
                unsafe { qp.post_send(&mut wr) }
            });
            gone(posted.and_then(|answer| answer))
        }
        Named::Window(bind) => with_window(bind, |mw, bind_info| {
            wr.bind_mw = BindMw {
                mw,
                rkey: bind.key().value(),
                bind_info,
            };
            // SAFETY: window and region are not destroyed meanwhile.
            gone(unsafe { qp.post_send(&mut wr) })
        })?,
    }
}

/// Binds a window of type 1 under a number.
///
/// # Errors
/// An error number that it was refused with; or what this provider refuses itself.
pub(crate) fn bind_mw(
    qp: &Live<IbvQp>,
    bind: &BindWindow<'_>,
    number: u64,
    is_signaled: bool,
) -> Result<c_int, PostReason> {
    with_window(bind, |mw, bind_info| {
        let mut bind = IbvMwBind {
            wr_id: number,
            send_flags: flags_in_c(bind.common().flags, is_signaled),
            bind_info,
        };
        // SAFETY: window and region are not destroyed meanwhile.
        gone(unsafe { qp.bind_mw(mw, &mut bind) })
    })?
}

/// The window of a bind.
///
/// # Errors
/// It is of another provider.
pub(crate) fn window_of(bind: &BindWindow<'_>) -> Result<Arc<Window>, PostReason> {
    let window = bind.mw().ok_or(PostReason::NoWindow)?;
    own(window, "mw").map_err(|_| PostReason::InvalidHandle)
}

/// Uses window and region of a bind, which are not destroyed meanwhile.
fn with_window<R>(
    bind: &BindWindow<'_>,
    using: impl FnOnce(*mut IbvMw, IbvMwBindInfo) -> R,
) -> Result<R, PostReason> {
    if bind.access.contains(Access::ZERO_BASED) {
        let missing = Features::ZBVA;
        return Err(PostReason::Unsupported { missing });
    }
    let info = |mr| IbvMwBindInfo {
        mr,
        addr: bind.addr,
        length: bind.length,
        mw_access_flags: bind.access.bits(),
    };
    let window = window_of(bind)?;
    let region: Option<Arc<Region>> = match bind.mr() {
        Some(mr) => Some(own(mr, "mr").map_err(|_| PostReason::InvalidHandle)?),
        None => None,
    };
    let used = window.mw.with(|mw| match &region {
        Some(region) => region.shared.mr.with(|mr| using(mw, info(mr))),
        None => Ok(using(mw, info(ptr::null_mut()))),
    });
    gone(used.and_then(|used| used))
}

/// What a request names by a pointer.
enum Named<'r> {
    Nothing,
    Destination(&'r UdDestination),
    Window(&'r BindWindow<'r>),
}

impl<'r> From<Option<&'r UdDestination>> for Named<'r> {
    fn from(destination: Option<&'r UdDestination>) -> Self {
        destination.map_or(Self::Nothing, Self::Destination)
    }
}

fn flags_in_c(flags: SendFlags, is_signaled: bool) -> u32 {
    let signaled = if is_signaled { send_flags::SIGNALED } else { 0 };
    u32::from((flags & FLAGS).bits()) | signaled
}

/// The operation and what belongs to it; answers what else it names.
fn fill<'r>(wr: &mut IbvSendWr, request: &'r WorkRequest<'_>) -> Result<Named<'r>, PostReason> {
    let atomic = |remote: RemoteAddress, compare_add, swap| SendWr {
        atomic: Atomic {
            remote_addr: remote.addr,
            compare_add,
            swap,
            rkey: remote.rkey.value(),
        },
    };
    let mut named = Named::Nothing;
    match request {
        WorkRequest::Send(send) => {
            wr.opcode = wr_opcode::SEND;
            named = send.destination.into();
        }
        WorkRequest::SendWithImmediate(send) => {
            wr.opcode = wr_opcode::SEND_WITH_IMM;
            wr.imm_data = u32::from_ne_bytes(send.imm);
            named = send.destination.into();
        }
        WorkRequest::SendWithInvalidate(send) => {
            wr.opcode = wr_opcode::SEND_WITH_INV;
            // A key to invalidate lies where immediate data does.
            wr.imm_data = send.rkey.value();
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
        WorkRequest::LocalInvalidate(invalidate) => {
            wr.opcode = wr_opcode::LOCAL_INV;
            wr.imm_data = invalidate.key.value();
        }
        WorkRequest::BindWindow(bind) => {
            wr.opcode = wr_opcode::BIND_MW;
            named = Named::Window(bind);
        }
        other => {
            let missing = other.operation();
            return Err(PostReason::OperationNotEnabled { missing });
        }
    }
    Ok(named)
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

/// An object that a request names was destroyed.
fn gone<T>(used: Result<T, VerbError>) -> Result<T, PostReason> {
    used.map_err(|_| PostReason::InvalidHandle)
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
    gone(unsafe { qp.post_recv(&mut receive(request, number)) })
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
    gone(unsafe { srq.post(&mut receive(request, number)) })
}

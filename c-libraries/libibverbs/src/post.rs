//! Posting of work requests: converts the requests of C programs to those of `verbs-api`, whose checks are not repeated
//! here.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::iter::successors;
use std::mem::ManuallyDrop;
use std::{ptr, slice};

use ::xrc::remote_srqn;
use verbs_api::{
    Batch, PostError, RKey, RemoteAddress, Sge,
    ids::Qpn,
    wr::{self, Data, PostReason, ReceiveRequest, SendFlags, UdDestination, WorkRequest},
};

use crate::abi::{
    IbvMw, IbvMwBind, IbvQp, IbvRecvWr, IbvSendWr, IbvSge, IbvSrq, Rdma, qp_type, send_flags,
    wr_opcode,
};
use crate::ah::AhObject;
use crate::entry::direct;
use crate::errno::{Errno, code};
use crate::mw::{self, MwObject};
use crate::qp::{self, QpObject, State};
use crate::srq;

// An SGE list of `count` entries. A list of more than `max` entries is refused before it is read.
#[inline]
fn list<'a>(first: *const IbvSge, count: c_int, max: u32) -> Result<&'a [Sge], Errno> {
    let count = u32::try_from(count).map_err(|_| Errno::INVAL)?;
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() || count > max {
        return Err(Errno::INVAL);
    }
    let count = count as usize;
    // SAFETY: a list of as many entries, as the program says; `Sge` is laid out like an `ibv_sge`, any bytes are one, and
    // this library makes no buffer pool whose key a program could name.
    Ok(unsafe { slice::from_raw_parts(first.cast(), count) })
}

#[inline]
fn data<'a>(list: &'a [Sge]) -> Data<'a> {
    match list {
        [] => Data::None,
        [one] => Data::Sge(*one),
        many => Data::Sges(many),
    }
}

#[inline]
fn bytes<'a>(sge: &Sge) -> Result<&'a [u8], Errno> {
    if sge.length() == 0 {
        return Ok(&[]);
    }
    if sge.addr() == 0 {
        return Err(Errno::FAULT);
    }
    let at = ptr::with_exposed_provenance(sge.addr() as usize);
    // SAFETY: inline bytes are read while posting, from memory that the program names and nobody writes meanwhile.
    Ok(unsafe { slice::from_raw_parts(at, sge.length() as usize) })
}

// The inline data of all entries, copied one after the other to `room` unless there is just one entry. Data of more than
// `max` bytes, the limit of the QP, are refused before they are read.
fn inline<'a>(entries: &[Sge], max: u32, room: &'a mut Vec<u8>) -> Result<Data<'a>, Errno> {
    let given: usize = entries.iter().map(|sge| sge.length() as usize).sum();
    if given > max as usize {
        return Err(PostReason::InlineTooLong { max, given }.kind().into());
    }
    if let [one] = entries {
        return Ok(Data::Inline(bytes(one)?));
    }
    for sge in entries {
        room.extend_from_slice(bytes(sge)?);
    }
    Ok(Data::Inline(room))
}

fn remote(rdma: Rdma) -> RemoteAddress {
    RemoteAddress::new(rdma.remote_addr, RKey::new(rdma.rkey))
}

/// Objects that are created for a request and that it borrows until it is posted.
#[derive(Default)]
struct RequestObjects {
    inlined: Vec<u8>,
    sink: Vec<Sge>,
    destination: Option<UdDestination>,
}

// Converts one send work request. `made` must be empty.
unsafe fn request<'a>(
    wr: &IbvSendWr,
    kind: c_int,
    state: &State,
    made: &'a mut RequestObjects,
) -> Result<WorkRequest<'a>, Errno> {
    let entries = list(wr.sg_list, wr.num_sge, state.cap.max_send_sge)?;
    let RequestObjects {
        inlined,
        sink,
        destination,
    } = made;
    if kind == qp_type::UD {
        // Only these requests have a destination on a UD QP.
        if !matches!(wr.opcode, wr_opcode::SEND | wr_opcode::SEND_WITH_IMM) {
            return Err(Errno::INVAL);
        }
        // SAFETY: a datagram has its destination there.
        let ud = unsafe { wr.wr.ud };
        if ud.ah.is_null() {
            return Err(Errno::INVAL);
        }
        *destination = Some(UdDestination {
            // SAFETY: the program destroys no handle that a request being posted names.
            ah: unsafe { AhObject::own_unchecked(ud.ah) }.clone(),
            remote_qpn: Qpn::new(ud.remote_qpn),
            remote_qkey: ud.remote_qkey,
        });
    }
    let data: Data<'a> = if wr.send_flags & send_flags::INLINE == 0 {
        data(entries)
    } else {
        inline(entries, state.cap.max_inline_data, inlined)?
    };
    let imm = wr.imm_data.to_ne_bytes();
    let to = destination.as_ref();
    // SAFETY: which part of the union there is, the opcode says; all are plain numbers.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let target = RemoteAddress::new(atomic.remote_addr, RKey::new(atomic.rkey));
    let queue = (kind == qp_type::XRC_SEND).then(|| remote_srqn(wr.remote_srqn));
    macro_rules! made {
        ($request:expr) => {
            match queue {
                Some(queue) => $request.with(queue).into(),
                None => $request.into(),
            }
        };
    }
    let mut request: WorkRequest<'a> = match wr.opcode {
        wr_opcode::RDMA_WRITE => made!(wr::Write::new(data, remote(rdma))),
        wr_opcode::RDMA_WRITE_WITH_IMM => {
            made!(wr::WriteWithImmediate::new(data, remote(rdma), imm))
        }
        wr_opcode::SEND => match to {
            Some(to) => wr::Send::new(data).to(to).into(),
            None => made!(wr::Send::new(data)),
        },
        wr_opcode::SEND_WITH_IMM => match to {
            Some(to) => wr::SendWithImmediate::new(data, imm).to(to).into(),
            None => made!(wr::SendWithImmediate::new(data, imm)),
        },
        wr_opcode::RDMA_READ => match &state.sinks {
            // Inline data is refused, as it is without these keys.
            Some(sinks) if wr.send_flags & send_flags::INLINE == 0 => {
                sink.extend(entries.iter().map(|entry| sinks.entry(entry)));
                made!(wr::Read::new(self::data(sink), remote(rdma)))
            }
            _ => made!(wr::Read::new(data, remote(rdma))),
        },
        wr_opcode::ATOMIC_CMP_AND_SWP => {
            made!(wr::CompareSwap::new(
                data,
                target,
                atomic.compare_add,
                atomic.swap
            ))
        }
        wr_opcode::ATOMIC_FETCH_AND_ADD => {
            made!(wr::FetchAdd::new(data, target, atomic.compare_add))
        }
        wr_opcode::LOCAL_INV => wr::LocalInvalidate::new(RKey::new(wr.imm_data)).into(),
        wr_opcode::BIND_MW => {
            // SAFETY: the program ends no window or region that a request being posted names.
            unsafe { mw::posted(&wr.bind_mw) }?.into()
        }
        wr_opcode::SEND_WITH_INV => {
            made!(wr::SendWithInvalidate::new(data, RKey::new(wr.imm_data)))
        }
        wr_opcode::ATOMIC_WRITE => made!(wr::AtomicWrite::new(data, remote(rdma))),
        _ => return Err(Errno::OPNOTSUPP),
    };
    request.set_common(wr.wr_id, flags(wr.send_flags));
    Ok(request)
}

// The flags of a send work request, without `IBV_SEND_INLINE`.
fn flags(given: u32) -> SendFlags {
    let known = SendFlags::FENCE | SendFlags::SIGNALED | SendFlags::SOLICITED;
    SendFlags::from_bits_truncate(given as u8) & known
}

const _: () = assert!(
    SendFlags::FENCE.bits() as u32 == send_flags::FENCE
        && SendFlags::SIGNALED.bits() as u32 == send_flags::SIGNALED
        && SendFlags::SOLICITED.bits() as u32 == send_flags::SOLICITED
);

/// Implements the slot `post_send` of `ibv_context_ops`.
///
/// # Safety
/// The QP is live, the requests are a list that ends with null, and `bad` is writable.
pub unsafe extern "C" fn send(
    qp: *mut IbvQp,
    first: *mut IbvSendWr,
    bad: *mut *mut IbvSendWr,
) -> c_int {
    // SAFETY: as the caller promises.
    let posted = direct("ibv_post_send", || unsafe { post(qp, first, bad) });
    posted.unwrap_or_else(|errno| refused(errno, first, bad))
}

#[inline]
unsafe fn post(qp: *mut IbvQp, first: *mut IbvSendWr, bad: *mut *mut IbvSendWr) -> c_int {
    // SAFETY: as the caller promises.
    let (state, kind) = unsafe { (QpObject::own_unchecked(qp.cast()), (*qp).qp_type) };
    // SAFETY: as the caller promises.
    let Some(only) = (unsafe { first.as_ref() }) else {
        return 0;
    };
    // SAFETY: as the caller promises.
    match unsafe { plain(state, kind, only) } {
        Some(Ok(())) => 0,
        Some(Err(reason)) => refused(reason.into(), first, bad),
        // SAFETY: as the caller promises.
        None if only.next.is_null() => unsafe { one(state, kind, first, bad) },
        // SAFETY: as the caller promises.
        None => unsafe { several(state, kind, first, bad) },
    }
}

#[cold]
fn refused<T>(errno: Errno, at: *mut T, bad: *mut *mut T) -> c_int {
    if !bad.is_null() {
        // SAFETY: as the program promises.
        unsafe { *bad = at };
    }
    errno.set()
}

// The fast path for nearly all requests: a single request with one SGE on a connected QP. It is built in place, because
// moving it would cost as much as everything else here. Returns `None` for all other requests, which go through `request`.
#[inline]
unsafe fn plain(state: &State, kind: c_int, wr: &IbvSendWr) -> Option<Result<(), PostError>> {
    if !matches!(kind, qp_type::RC | qp_type::UC) || wr.num_sge != 1 || !wr.next.is_null() {
        return None;
    }
    let entries = list(wr.sg_list, wr.num_sge, 1).ok()?;
    match entries {
        _ if wr.send_flags & send_flags::INLINE == 0 => plain_of(state, wr, entries),
        [only] => plain_of(state, wr, bytes(only).ok()?),
        _ => None,
    }
}

#[inline(always)]
fn plain_of<'a>(
    state: &State,
    wr: &IbvSendWr,
    data: impl Into<Data<'a>>,
) -> Option<Result<(), PostError>> {
    let flags = flags(wr.send_flags);
    // SAFETY: which part of the union there is, the opcode says; all are plain numbers.
    let remote = || remote(unsafe { wr.wr.rdma });
    // The request only borrows, so nothing has to be dropped.
    let mut request = ManuallyDrop::new(match wr.opcode {
        wr_opcode::SEND => WorkRequest::Send(wr::Send::new(data).flags(flags).wr_id(wr.wr_id)),
        wr_opcode::RDMA_WRITE => {
            WorkRequest::Write(wr::Write::new(data, remote()).flags(flags).wr_id(wr.wr_id))
        }
        wr_opcode::RDMA_READ if state.sinks.is_none() => {
            WorkRequest::Read(wr::Read::new(data, remote()).flags(flags).wr_id(wr.wr_id))
        }
        _ => return None,
    });
    Some(state.qp.post_in_place(&mut request))
}

#[inline(never)]
unsafe fn one(
    state: &State,
    kind: c_int,
    first: *mut IbvSendWr,
    bad: *mut *mut IbvSendWr,
) -> c_int {
    let mut made = RequestObjects::default();
    // SAFETY: as the caller promises.
    let request = match unsafe { request(&*first, kind, state, &mut made) } {
        Ok(request) => request,
        Err(errno) => return refused(errno, first, bad),
    };
    match state.qp.post_one(request) {
        Ok(()) => 0,
        Err(rejected) => refused(rejected.into(), first, bad),
    }
}

// Converts a list up to the first request that cannot be converted. `made` must be empty.
unsafe fn convert<'a>(
    state: &State,
    kind: c_int,
    first: *mut IbvSendWr,
    made: &'a mut Vec<RequestObjects>,
) -> (Batch<'a>, Result<(), (Errno, *mut IbvSendWr)>) {
    // SAFETY: as the caller promises.
    let requests = || successors(unsafe { first.as_ref() }, |wr| unsafe { wr.next.as_ref() });
    made.resize_with(requests().count(), RequestObjects::default);
    let mut batch = Batch::with_capacity(made.len());
    for (wr, made) in requests().zip(made) {
        // SAFETY: as the caller promises.
        match unsafe { request(wr, kind, state, made) } {
            Ok(request) => batch.push(request),
            Err(errno) => return (batch, Err((errno, ptr::from_ref(wr).cast_mut()))),
        }
    }
    (batch, Ok(()))
}

// Posts a list with one doorbell. The requests before an invalid one are posted nevertheless.
#[inline(never)]
unsafe fn several(
    state: &State,
    kind: c_int,
    first: *mut IbvSendWr,
    bad: *mut *mut IbvSendWr,
) -> c_int {
    let mut made = Vec::new();
    // SAFETY: as the caller promises.
    let (mut batch, converted) = unsafe { convert(state, kind, first, &mut made) };
    if let Err(error) = state.qp.post(&mut batch) {
        let mut at = first;
        for _ in 0..error.index {
            // SAFETY: as many were taken from the list.
            at = unsafe { (*at).next };
        }
        return refused(error.into(), at, bad);
    }
    match converted {
        Err((errno, at)) => refused(errno, at, bad),
        Ok(()) => 0,
    }
}

/// Posts all requests of a list, or none if one of them cannot be posted.
///
/// # Errors
/// Why a request of the list cannot be posted.
///
/// # Safety
/// The QP is live, and the requests are a list that ends with null.
pub(crate) unsafe fn whole(qp: *mut IbvQp, first: *mut IbvSendWr) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    let (state, kind) = unsafe { (QpObject::own_unchecked(qp.cast()), (*qp).qp_type) };
    let mut made = Vec::new();
    // SAFETY: as the caller promises.
    let (mut batch, converted) = unsafe { convert(state, kind, first, &mut made) };
    converted.map_err(|(errno, _)| errno)?;
    Ok(state.qp.post_whole(&mut batch)?)
}

// Posts the receives of a null-terminated list, for the verb of this name.
// SAFETY of the callers: the list is one, and `bad` is null or writable.
#[inline]
unsafe fn each_receive(
    name: &str,
    first: *mut IbvRecvWr,
    bad: *mut *mut IbvRecvWr,
    max_sge: u32,
    post: impl Fn(ReceiveRequest<'_>) -> Result<(), PostError>,
) -> c_int {
    let mut next = first;
    let posted = direct(name, || {
        // SAFETY: as the caller promises.
        while let Some(wr) = unsafe { next.as_ref() } {
            let posted = list(wr.sg_list, wr.num_sge, max_sge)
                .and_then(|entries| Ok(post(ReceiveRequest::new(wr.wr_id, entries))?));
            if let Err(errno) = posted {
                return refused(errno, next, bad);
            }
            next = wr.next;
        }
        0
    });
    posted.unwrap_or_else(|errno| refused(errno, next, bad))
}

/// Implements the slot `post_recv` of `ibv_context_ops`.
///
/// # Safety
/// The queue pair is live, the requests are a list that ends with null, and `bad` is writable.
pub unsafe extern "C" fn recv(
    qp: *mut IbvQp,
    first: *mut IbvRecvWr,
    bad: *mut *mut IbvRecvWr,
) -> c_int {
    // SAFETY: as the caller promises.
    let state = unsafe { QpObject::own_unchecked(qp.cast()) };
    // SAFETY: as the caller promises.
    unsafe {
        let max_sge = state.cap.max_recv_sge;
        each_receive("ibv_post_recv", first, bad, max_sge, |request| {
            state.qp.post_receive(request)
        })
    }
}

/// Implements the slot `post_srq_recv` of `ibv_context_ops`.
///
/// # Safety
/// The queue is live, the requests are a list that ends with null, and `bad` is writable.
pub unsafe extern "C" fn srq_recv(
    srq: *mut IbvSrq,
    first: *mut IbvRecvWr,
    bad: *mut *mut IbvRecvWr,
) -> c_int {
    // SAFETY: as the caller promises.
    let own = unsafe { srq::own_unchecked(srq) };
    // SAFETY: as the caller promises.
    unsafe {
        let max_sge = own.max_sge();
        each_receive("ibv_post_srq_recv", first, bad, max_sge, |request| {
            own.post_receive(request)
        })
    }
}

/// Implements the slot `bind_mw` of `ibv_context_ops`, for windows of type 1.
///
/// # Safety
/// The structures are the program's, and none of the objects in them is destroyed during the call.
pub unsafe extern "C-unwind" fn bind_mw(
    qp: *mut IbvQp,
    mw: *mut IbvMw,
    bind: *const IbvMwBind,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { qp::own(qp) }.and_then(|state| {
        // SAFETY: as the caller promises.
        let (window, bind) = unsafe { (MwObject::own(mw)?, bind.as_ref()) };
        let bind = bind.ok_or(Errno::INVAL)?;
        // SAFETY: as the caller promises.
        let request = unsafe { mw::request(window, &bind.bind_info) }?;
        let request = request.flags(flags(bind.send_flags)).wr_id(bind.wr_id);
        let rkey = state.qp.bind_mw(request)?;
        // SAFETY: live, as was seen.
        unsafe { (*mw).rkey = rkey.value() };
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receive_whose_posting_panics_is_the_bad_one_of_its_list() {
        // SAFETY: numbers and pointers, for which zero is a value.
        let mut requests: [IbvRecvWr; 2] = unsafe { std::mem::zeroed() };
        let second = &raw mut requests[1];
        requests[0].next = second;
        requests[1].wr_id = 1;
        let post = |request: ReceiveRequest<'_>| match request.wr_id {
            0 => Ok(()),
            _ => panic!("a fault of the library"),
        };
        let mut bad = ptr::null_mut();
        // SAFETY: a list of two, and room for a pointer.
        let posted =
            unsafe { each_receive("ibv_post_recv", &raw mut requests[0], &raw mut bad, 1, post) };
        assert_eq!((posted, bad), (libc::EIO, second));
    }
}

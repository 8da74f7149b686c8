//! Extended QPs, whose work requests a program builds by `ibv_wr_*` calls and posts together, and XRC target QPs.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::{ptr, slice};

use ::xrc::Xrcd;
use verbs_api::{Operations, ids::Qpn};

use crate::abi::{
    Atomic, BindMw, IbvAh, IbvContext, IbvDataBuf, IbvMw, IbvMwBindInfo, IbvQp, IbvQpEx,
    IbvQpInitAttr, IbvQpInitAttrEx, IbvQpOpenAttr, IbvSendWr, IbvSge, Rdma, SendWr, Slot, Ud,
    qp_ex, qp_type, wr_opcode,
};
use crate::builder::Builder;
use crate::entry::{direct, slot};
use crate::errno::{Errno, code, pointer};
use crate::qp::{self, CreateArguments, QpObject, make};
use crate::{post, xrc};

const PD: u32 = 1;
const XRCD: u32 = 1 << 1;
const CREATE_FLAGS: u32 = 1 << 2;
const SEND_OPS_FLAGS: u32 = 1 << 6;

const BLOCK_SELF_MCAST_LB: u32 = 1 << 1;

// Converts the flags `IBV_QP_EX_WITH_…`, whose order differs from that of [`Operations`].
fn operations(flags: u64) -> Result<Operations, Errno> {
    let table = [
        Operations::WRITE,
        Operations::WRITE_WITH_IMM,
        Operations::SEND,
        Operations::SEND_WITH_IMM,
        Operations::READ,
        Operations::ATOMIC_CMP_AND_SWP,
        Operations::ATOMIC_FETCH_AND_ADD,
        Operations::LOCAL_INV,
        Operations::BIND_MW,
        Operations::SEND_WITH_INV,
    ];
    const ATOMIC_WRITE: u64 = 1 << 12;
    let mut found = Operations::empty();
    for (bit, operation) in table.into_iter().enumerate() {
        found.set(operation, flags & 1 << bit != 0);
    }
    found.set(Operations::ATOMIC_WRITE, flags & ATOMIC_WRITE != 0);
    let known = ((1 << table.len()) - 1) | ATOMIC_WRITE;
    if flags & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(found)
}

/// Implements the slot `create_qp_ex` of `verbs_context`.
///
/// # Safety
/// `attr` is null or writable, and none of the objects in it is destroyed during the call.
pub unsafe extern "C-unwind" fn create(
    context: *mut IbvContext,
    attr: *mut IbvQpInitAttrEx,
) -> *mut IbvQp {
    // SAFETY: as the caller promises.
    let made = unsafe { attr.as_mut() }
        .ok_or(Errno::INVAL)
        .and_then(|attr| {
            if attr.comp_mask & !(PD | XRCD | CREATE_FLAGS | SEND_OPS_FLAGS) != 0 {
                return Err(Errno::OPNOTSUPP);
            }
            if attr.qp_type == qp_type::XRC_RECV {
                if attr.comp_mask & XRCD == 0 {
                    return Err(Errno::INVAL);
                }
                let create = |xrcd: &Xrcd| Ok(xrcd.create_target().wait()?);
                // SAFETY: as the caller promises.
                let target = unsafe { xrc::with(attr.xrcd, create) }?;
                // SAFETY: a domain is live, so its device is.
                return unsafe { qp::target(context, target, attr.qp_context) };
            }
            if attr.comp_mask & PD == 0 {
                return Err(Errno::INVAL);
            }
            let operations = (attr.comp_mask & SEND_OPS_FLAGS != 0)
                .then(|| operations(attr.send_ops_flags))
                .transpose()?;
            let flags = match attr.comp_mask & CREATE_FLAGS {
                0 => 0,
                _ => attr.create_flags,
            };
            if flags & !BLOCK_SELF_MCAST_LB != 0 {
                return Err(Errno::OPNOTSUPP);
            }
            let mut init = IbvQpInitAttr {
                qp_context: attr.qp_context,
                send_cq: attr.send_cq,
                recv_cq: attr.recv_cq,
                srq: attr.srq,
                cap: attr.cap,
                qp_type: attr.qp_type,
                sq_sig_all: attr.sq_sig_all,
            };
            let arguments = CreateArguments {
                init: &mut init,
                operations,
                blocks_loopback: flags & BLOCK_SELF_MCAST_LB != 0,
                slots: slots(),
            };
            // SAFETY: as the caller promises.
            let at = unsafe { make(attr.pd, arguments) }?;
            attr.cap = init.cap;
            Ok(at)
        });
    pointer(made).cast()
}

/// Implements the slot `open_qp` of `verbs_context`: opens an XRC target QP of another process or context, by its number.
///
/// # Safety
/// `attr` is null or readable, and the domain is not closed during the call.
pub unsafe extern "C-unwind" fn open(
    context: *mut IbvContext,
    attr: *const IbvQpOpenAttr,
) -> *mut IbvQp {
    const NUM: u32 = 1;
    const XRCD: u32 = 1 << 1;
    const CONTEXT: u32 = 1 << 2;
    const TYPE: u32 = 1 << 3;
    // SAFETY: as the caller promises.
    let made = unsafe { attr.as_ref() }
        .ok_or(Errno::INVAL)
        .and_then(|attr| {
            let needed = NUM | XRCD | TYPE;
            if attr.comp_mask & !(needed | CONTEXT) != 0
                || attr.comp_mask & needed != needed
                || attr.qp_type != qp_type::XRC_RECV
            {
                return Err(Errno::INVAL);
            }
            let number = Qpn::new(attr.qp_num);
            // SAFETY: as the caller promises.
            let target =
                unsafe { xrc::with(attr.xrcd, |xrcd| Ok(xrcd.open_target(number).wait()?)) }?;
            let qp_context = if attr.comp_mask & CONTEXT != 0 {
                attr.qp_context
            } else {
                ptr::null_mut()
            };
            // SAFETY: a domain is live, so its device is.
            unsafe { qp::target(context, target, qp_context) }
        });
    pointer(made).cast()
}

fn slots() -> [Slot; 21] {
    let mut slots = [ptr::null(); 21];
    slots[qp_ex::ATOMIC_CMP_SWP] = slot!(direct "ibv_wr_atomic_cmp_swp" ("qp rkey:x remote_addr:w compare:w swap:w") Nothing => atomic_cmp_swp);
    slots[qp_ex::ATOMIC_FETCH_ADD] = slot!(direct "ibv_wr_atomic_fetch_add" ("qp rkey:x remote_addr:w add:w") Nothing => atomic_fetch_add);
    slots[qp_ex::BIND_MW] =
        slot!(direct "ibv_wr_bind_mw" ("qp mw rkey:x bind_info") Nothing => bind_mw);
    slots[qp_ex::LOCAL_INV] =
        slot!(direct "ibv_wr_local_inv" ("qp invalidate_rkey:x") Nothing => local_inv);
    slots[qp_ex::RDMA_READ] =
        slot!(direct "ibv_wr_rdma_read" ("qp rkey:x remote_addr:w") Nothing => rdma_read);
    slots[qp_ex::RDMA_WRITE] =
        slot!(direct "ibv_wr_rdma_write" ("qp rkey:x remote_addr:w") Nothing => rdma_write);
    slots[qp_ex::RDMA_WRITE_IMM] = slot!(direct "ibv_wr_rdma_write_imm" ("qp rkey:x remote_addr:w imm_data:x") Nothing => rdma_write_imm);
    slots[qp_ex::SEND] = slot!(direct "ibv_wr_send" ("qp") Nothing => send);
    slots[qp_ex::SEND_IMM] = slot!(direct "ibv_wr_send_imm" ("qp imm_data:x") Nothing => send_imm);
    slots[qp_ex::SEND_INV] =
        slot!(direct "ibv_wr_send_inv" ("qp invalidate_rkey:x") Nothing => send_inv);
    slots[qp_ex::SET_UD_ADDR] = slot!(direct "ibv_wr_set_ud_addr" ("qp ah remote_qpn:x remote_qkey:x") Nothing => set_ud_addr);
    slots[qp_ex::SET_XRC_SRQN] =
        slot!(direct "ibv_wr_set_xrc_srqn" ("qp remote_srqn:x") Nothing => set_xrc_srqn);
    slots[qp_ex::SET_INLINE_DATA] =
        slot!(direct "ibv_wr_set_inline_data" ("qp addr length:z") Nothing => set_inline_data);
    slots[qp_ex::SET_INLINE_DATA_LIST] = slot!(direct "ibv_wr_set_inline_data_list" ("qp num_buf:z buf_list") Nothing => set_inline_data_list);
    slots[qp_ex::SET_SGE] =
        slot!(direct "ibv_wr_set_sge" ("qp lkey:x addr:w length:i") Nothing => set_sge);
    slots[qp_ex::SET_SGE_LIST] =
        slot!(direct "ibv_wr_set_sge_list" ("qp num_sge:z sg_list") Nothing => set_sge_list);
    slots[qp_ex::START] = slot!(direct "ibv_wr_start" ("qp") Nothing => forget);
    slots[qp_ex::COMPLETE] = slot!(direct "ibv_wr_complete" ("qp") Number => complete);
    slots[qp_ex::ABORT] = slot!(direct "ibv_wr_abort" ("qp") Nothing => forget);
    slots[qp_ex::ATOMIC_WRITE] = slot!(direct "ibv_wr_atomic_write" ("qp rkey:x remote_addr:w atomic_wr") Nothing => atomic_write);
    slots
}

// SAFETY of all below: between `ibv_wr_start` and `ibv_wr_complete` a queue pair is its caller's alone, and the header
// calls these with one that was made with them.

unsafe fn builder<'a>(qp: *mut IbvQpEx) -> &'a mut Builder {
    // SAFETY: see above.
    unsafe { &mut *QpObject::own_unchecked(qp).builder.get() }
}

unsafe fn begin<'a>(qp: *mut IbvQpEx, opcode: c_int) -> &'a mut IbvSendWr {
    // SAFETY: see above; a request is numbers and pointers, for which zero is a value.
    let mut wr: IbvSendWr = unsafe { std::mem::zeroed() };
    // SAFETY: see above.
    unsafe { (wr.wr_id, wr.send_flags) = ((*qp).wr_id, (*qp).wr_flags) };
    wr.opcode = opcode;
    // SAFETY: see above.
    unsafe { builder(qp) }.begin(wr)
}

unsafe fn last(qp: *mut IbvQpEx, change: impl FnOnce(&mut IbvSendWr)) {
    // SAFETY: see above.
    if let Some(wr) = unsafe { builder(qp) }.last() {
        change(wr);
    }
}

// Discards the requests that were built so far, for `ibv_wr_start` and `ibv_wr_abort`.
unsafe extern "C" fn forget(qp: *mut IbvQpEx) {
    // SAFETY: see above.
    unsafe { builder(qp) }.clear();
}

// Posts all requests that were built, or none, as the manual page says.
unsafe extern "C" fn complete(qp: *mut IbvQpEx) -> c_int {
    // SAFETY: see above.
    let builder = unsafe { builder(qp) };
    let posted = direct("ibv_wr_complete", || {
        // SAFETY: a list that ends with null, of requests that live until this returns.
        code((builder.link()).and_then(|first| unsafe { post::whole(qp.cast(), first) }))
    });
    builder.clear();
    posted.unwrap_or_else(Errno::set)
}

unsafe extern "C" fn send(qp: *mut IbvQpEx) {
    // SAFETY: see above.
    unsafe { begin(qp, wr_opcode::SEND) };
}

unsafe extern "C" fn send_imm(qp: *mut IbvQpEx, imm_data: u32) {
    // SAFETY: see above.
    unsafe { begin(qp, wr_opcode::SEND_WITH_IMM) }.imm_data = imm_data;
}

unsafe extern "C" fn send_inv(qp: *mut IbvQpEx, rkey: u32) {
    // SAFETY: see above.
    unsafe { begin(qp, wr_opcode::SEND_WITH_INV) }.imm_data = rkey;
}

unsafe extern "C" fn local_inv(qp: *mut IbvQpEx, rkey: u32) {
    // SAFETY: see above.
    unsafe { begin(qp, wr_opcode::LOCAL_INV) }.imm_data = rkey;
}

unsafe fn at(qp: *mut IbvQpEx, opcode: c_int, rkey: u32, remote_addr: u64) -> *mut IbvSendWr {
    // SAFETY: see above.
    let wr = unsafe { begin(qp, opcode) };
    wr.wr = SendWr {
        rdma: Rdma { remote_addr, rkey },
    };
    wr
}

unsafe extern "C" fn rdma_read(qp: *mut IbvQpEx, rkey: u32, remote_addr: u64) {
    // SAFETY: see above.
    unsafe { at(qp, wr_opcode::RDMA_READ, rkey, remote_addr) };
}

unsafe extern "C" fn rdma_write(qp: *mut IbvQpEx, rkey: u32, remote_addr: u64) {
    // SAFETY: see above.
    unsafe { at(qp, wr_opcode::RDMA_WRITE, rkey, remote_addr) };
}

unsafe extern "C" fn rdma_write_imm(qp: *mut IbvQpEx, rkey: u32, remote_addr: u64, imm: u32) {
    // SAFETY: see above.
    unsafe { (*at(qp, wr_opcode::RDMA_WRITE_WITH_IMM, rkey, remote_addr)).imm_data = imm };
}

unsafe extern "C" fn atomic_write(
    qp: *mut IbvQpEx,
    rkey: u32,
    remote_addr: u64,
    source: *const c_void,
) {
    // SAFETY: see above; the header passes eight bytes.
    unsafe {
        at(qp, wr_opcode::ATOMIC_WRITE, rkey, remote_addr);
        set_inline_data(qp, source, 8);
    }
}

unsafe extern "C" fn atomic_cmp_swp(
    qp: *mut IbvQpEx,
    rkey: u32,
    remote_addr: u64,
    compare_add: u64,
    swap: u64,
) {
    let atomic = Atomic {
        remote_addr,
        compare_add,
        swap,
        rkey,
    };
    // SAFETY: see above.
    unsafe { begin(qp, wr_opcode::ATOMIC_CMP_AND_SWP) }.wr = SendWr { atomic };
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut IbvQpEx, rkey: u32, remote_addr: u64, add: u64) {
    let atomic = Atomic {
        remote_addr,
        compare_add: add,
        swap: 0,
        rkey,
    };
    // SAFETY: see above.
    unsafe { begin(qp, wr_opcode::ATOMIC_FETCH_AND_ADD) }.wr = SendWr { atomic };
}

unsafe extern "C" fn bind_mw(
    qp: *mut IbvQpEx,
    mw: *mut IbvMw,
    rkey: u32,
    bind_info: *const IbvMwBindInfo,
) {
    // SAFETY: see above.
    let wr = unsafe { begin(qp, wr_opcode::BIND_MW) };
    // SAFETY: the program passes a structure.
    match unsafe { bind_info.as_ref() } {
        Some(&bind_info) => {
            wr.bind_mw = BindMw {
                mw,
                rkey,
                bind_info,
            };
        }
        // SAFETY: see above.
        None => unsafe { builder(qp) }.refuse(Errno::INVAL),
    }
}

unsafe extern "C" fn set_ud_addr(
    qp: *mut IbvQpEx,
    ah: *mut IbvAh,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    let ud = Ud {
        ah,
        remote_qpn,
        remote_qkey,
    };
    // SAFETY: see above.
    unsafe { last(qp, |wr| wr.wr = SendWr { ud }) };
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut IbvQpEx, remote_srqn: u32) {
    // SAFETY: see above.
    unsafe { last(qp, |wr| wr.remote_srqn = remote_srqn) };
}

unsafe extern "C" fn set_sge(qp: *mut IbvQpEx, lkey: u32, addr: u64, length: u32) {
    let entry = IbvSge { addr, length, lkey };
    // SAFETY: see above.
    unsafe { builder(qp) }.set_entries(&[entry]);
}

unsafe extern "C" fn set_sge_list(qp: *mut IbvQpEx, count: usize, list: *const IbvSge) {
    // SAFETY: see above.
    let (builder, cap) = unsafe { (builder(qp), QpObject::own_unchecked(qp).cap) };
    // SAFETY: the program passes as many entries.
    match unsafe { entries(list, count, cap.max_send_sge) } {
        Ok(entries) => builder.set_entries(entries),
        Err(errno) => builder.refuse(errno),
    }
}

unsafe extern "C" fn set_inline_data(qp: *mut IbvQpEx, addr: *const c_void, length: usize) {
    let one = IbvDataBuf { addr, length };
    // SAFETY: see above.
    unsafe { set_inline_data_list(qp, 1, &raw const one) };
}

unsafe extern "C" fn set_inline_data_list(qp: *mut IbvQpEx, count: usize, list: *const IbvDataBuf) {
    // SAFETY: see above.
    let (builder, cap) = unsafe { (builder(qp), QpObject::own_unchecked(qp).cap) };
    builder.begin_inlined();
    let mut room = cap.max_inline_data as usize;
    // No limit of a queue pair bounds how many stretches there are. Each program that exists passes fewer than this.
    // SAFETY: the program passes as many stretches.
    let added = unsafe { entries(list, count, u16::MAX.into()) }.and_then(|stretches| {
        stretches
            .iter()
            .try_for_each(|&IbvDataBuf { addr, length }| {
                room = room.checked_sub(length).ok_or(Errno::INVAL)?;
                if length > 0 {
                    // SAFETY: the program passes stretches that are as long as it says.
                    builder.inline(unsafe { entries(addr.cast(), length, u32::MAX) }?);
                }
                Ok(())
            })
    });
    if let Err(errno) = added {
        builder.refuse(errno);
    }
}

// A list of `count` entries of the program. One that is null or has more than `max` entries is refused before it is read.
unsafe fn entries<'a, T>(list: *const T, count: usize, max: u32) -> Result<&'a [T], Errno> {
    match count {
        0 => Ok(&[]),
        _ if count > max as usize => Err(Errno::INVAL),
        _ if list.is_null() => Err(Errno::FAULT),
        // SAFETY: as the caller promises.
        _ => Ok(unsafe { slice::from_raw_parts(list, count) }),
    }
}

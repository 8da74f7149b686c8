//! The QPs and SRQs of identifiers.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;

use polyverbs_libibverbs::abi::{
    IbvCompChannel, IbvCq, IbvPd, IbvQp, IbvQpCap, IbvQpInitAttr, IbvQpInitAttrEx, IbvSge,
    IbvSrqInitAttr, IbvSrqInitAttrEx, qp_type,
};
use polyverbs_libibverbs::errno::Errno;
use polyverbs_libibverbs::{cq, qp, qp_ex, srq};
use verbs_api::PathOptions;
use verbs_api::qp::{QpAttributes, QpState};

use crate::abi::RdmaCmId;
use crate::errno::done;
use crate::{groups, id};

/// The Q_Key of UD QPs in the UDP port space.
pub const QKEY: u32 = 0x0123_4567;
/// Bits of `comp_mask` in `ibv_qp_init_attr_ex`.
const PD: u32 = 1;
/// Sizes of a QP that every device supports.
const INLINE: u32 = 64;

/// Implements `rdma_create_qp`.
///
/// # Safety
/// `init` is null or writable, and neither the identifier nor an object in the attributes is destroyed during the call.
pub unsafe extern "C-unwind" fn create(
    id: *mut RdmaCmId,
    pd: *mut IbvPd,
    init: *mut IbvQpInitAttr,
) -> c_int {
    // SAFETY: as the caller promises.
    let known = unsafe { known(id, init) };
    // SAFETY: as the caller promises.
    done(known.and_then(|(public, init)| unsafe { make(public, pd, init) }))
}

// SAFETY of the callers: `init` is null or writable, and the identifier is not destroyed while the answer is used.
unsafe fn known<'a, T>(
    id: *mut RdmaCmId,
    init: *mut T,
) -> Result<(&'a mut RdmaCmId, &'a mut T), Errno> {
    // SAFETY: as the caller promises.
    let (public, _) = unsafe { id::own(id) }?;
    // SAFETY: as the caller promises.
    let init = unsafe { init.as_mut() }.ok_or(Errno::INVAL)?;
    Ok((public, init))
}

/// Creates the QP of an identifier.
///
/// # Errors
/// The identifier has a QP already, or no device yet; or the PD belongs to another device.
///
/// # Safety
/// None of the objects in the attributes is destroyed during the call.
pub unsafe fn make(
    public: &mut RdmaCmId,
    pd: *mut IbvPd,
    init: &mut IbvQpInitAttr,
) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    let pd = unsafe { domain(public, pd) }?;
    // SAFETY: as the caller promises.
    unsafe { add_queues(public, &init.cap, &mut init.send_cq, &mut init.recv_cq) }?;
    if init.srq.is_null() {
        init.srq = public.srq;
    }
    // Programs expect room for one SGE even if they ask for none.
    let room = init
        .cap
        .max_send_sge
        .saturating_mul(size_of::<IbvSge>() as u32);
    init.cap.max_inline_data = init.cap.max_inline_data.max(room.min(INLINE));
    // SAFETY: as the caller promises.
    let made = unsafe { qp::create(pd, init) };
    // SAFETY: just made, or null.
    unsafe { adopt(public, made, pd) }
}

/// Implements `rdma_create_qp_ex`.
///
/// # Safety
/// As for [`create`].
pub unsafe extern "C-unwind" fn create_ex(id: *mut RdmaCmId, init: *mut IbvQpInitAttrEx) -> c_int {
    let made = || {
        // SAFETY: as the caller promises.
        let (public, init) = unsafe { known(id, init) }?;
        let named = if init.comp_mask & PD != 0 {
            init.pd
        } else {
            ptr::null_mut()
        };
        // SAFETY: as the caller promises.
        let pd = unsafe { domain(public, named) }?;
        init.comp_mask |= PD;
        init.pd = pd;
        // SAFETY: as the caller promises.
        unsafe { add_queues(public, &init.cap, &mut init.send_cq, &mut init.recv_cq) }?;
        if init.srq.is_null() {
            init.srq = public.srq;
        }
        let made = if init.comp_mask == PD {
            let mut short = IbvQpInitAttr {
                qp_context: init.qp_context,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                cap: IbvQpCap { ..init.cap },
                qp_type: init.qp_type,
                sq_sig_all: init.sq_sig_all,
            };
            // SAFETY: as the caller promises.
            let made = unsafe { qp::create(pd, &raw mut short) };
            init.cap = short.cap;
            made
        } else {
            // SAFETY: as the caller promises.
            unsafe { qp_ex::create(public.verbs, init) }
        };
        // SAFETY: just made, or null.
        unsafe { adopt(public, made, pd) }
    };
    done(made())
}

unsafe fn domain(public: &RdmaCmId, named: *mut IbvPd) -> Result<*mut IbvPd, Errno> {
    if public.verbs.is_null() || !public.qp.is_null() {
        return Err(Errno::INVAL);
    }
    let pd = if named.is_null() { public.pd } else { named };
    polyverbs_libibverbs::object::check(pd)?;
    // SAFETY: live, as was seen.
    if unsafe { (*pd).context } != public.verbs {
        return Err(Errno::INVAL);
    }
    Ok(pd)
}

// Creates the CQs that the program does not name, each with a completion channel.
unsafe fn add_queues(
    public: &mut RdmaCmId,
    cap: &IbvQpCap,
    send_cq: &mut *mut IbvCq,
    recv_cq: &mut *mut IbvCq,
) -> Result<(), Errno> {
    if recv_cq.is_null() && cap.max_recv_wr > 0 {
        // SAFETY: as the caller promises.
        let (channel, queue) = unsafe { add_queue(public, cap.max_recv_wr) }?;
        (public.recv_cq_channel, public.recv_cq) = (channel, queue);
        *recv_cq = queue;
    }
    if send_cq.is_null() && cap.max_send_wr > 0 {
        // SAFETY: as the caller promises.
        let made = unsafe { add_queue(public, cap.max_send_wr) };
        let (channel, queue) = made.inspect_err(|_| {
            // SAFETY: the identifier's own.
            unsafe { remove_queues(public) };
        })?;
        (public.send_cq_channel, public.send_cq) = (channel, queue);
        *send_cq = queue;
    }
    // A QP needs both CQs, even if it does not use them.
    if send_cq.is_null() {
        *send_cq = *recv_cq;
    }
    if recv_cq.is_null() {
        *recv_cq = *send_cq;
    }
    Ok(())
}

unsafe fn add_queue(
    public: &mut RdmaCmId,
    entries: u32,
) -> Result<(*mut IbvCompChannel, *mut IbvCq), Errno> {
    let entries = c_int::try_from(entries).map_err(|_| Errno::INVAL)?;
    // SAFETY: the device is never closed.
    let channel = unsafe { cq::create_channel(public.verbs) };
    if channel.is_null() {
        return Err(Errno::last());
    }
    let context = ptr::from_mut(public).cast();
    // SAFETY: as above, and the channel was just made.
    let queue = unsafe { cq::create(public.verbs, entries, context, channel, 0) };
    if queue.is_null() {
        let errno = Errno::last();
        // SAFETY: just made.
        unsafe { cq::destroy_channel(channel) };
        return Err(errno);
    }
    Ok((channel, queue))
}

unsafe fn remove_queues(public: &mut RdmaCmId) {
    for (queue, channel) in [
        (&mut public.recv_cq, &mut public.recv_cq_channel),
        (&mut public.send_cq, &mut public.send_cq_channel),
    ] {
        let (queue, channel) = (
            std::mem::replace(queue, ptr::null_mut()),
            std::mem::replace(channel, ptr::null_mut()),
        );
        if !queue.is_null() {
            // SAFETY: the identifier's own.
            unsafe { cq::destroy(queue) };
        }
        if !channel.is_null() {
            // SAFETY: as above.
            unsafe { cq::destroy_channel(channel) };
        }
    }
}

// Modifies a new QP so that receives can be posted: a UD QP to RTS, others to INIT. Stores it in the identifier.
unsafe fn adopt(public: &mut RdmaCmId, made: *mut IbvQp, pd: *mut IbvPd) -> Result<(), Errno> {
    let begun = || {
        if made.is_null() {
            return Err(Errno::last());
        }
        // SAFETY: just made.
        let (own, shown) = unsafe { (&qp::own(made)?.qp, &mut *made) };
        if shown.qp_type == qp_type::UD {
            own.activate(PathOptions::new().qkey(QKEY)).wait()?;
            shown.state = QpState::Rts as c_int;
        } else {
            let first = QpAttributes::new()
                .qp_state(QpState::Init)
                .pkey_index(0)
                .port_num(1)
                .qp_access_flags(verbs_api::Access::empty());
            own.modify(first).wait()?;
            shown.state = QpState::Init as c_int;
        }
        Ok(shown.qp_type)
    };
    match begun() {
        Ok(qp_type) => {
            (public.qp, public.pd, public.qp_type) = (made, pd, qp_type);
            Ok(())
        }
        Err(errno) => {
            if !made.is_null() {
                // SAFETY: just made.
                unsafe { qp::destroy(made) };
            }
            // SAFETY: the identifier's own.
            unsafe { remove_queues(public) };
            Err(errno)
        }
    }
}

/// Implements `rdma_destroy_qp`.
///
/// # Safety
/// The program does not use the QP after this call, and the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn destroy(id: *mut RdmaCmId) {
    // SAFETY: as the caller promises.
    match unsafe { id::own(id) } {
        Err(errno) => {
            errno.set();
        }
        Ok((public, own)) => {
            groups::detach_all(public, &own.inner);
            let made = std::mem::replace(&mut public.qp, ptr::null_mut());
            // SAFETY: as the caller promises.
            unsafe { qp::destroy(made) };
            // SAFETY: the identifier's own.
            unsafe { remove_queues(public) };
        }
    }
}

/// Implements `rdma_create_srq`.
///
/// # Safety
/// `init` is null or writable, and neither the domain nor the identifier is destroyed during the call.
pub unsafe extern "C-unwind" fn create_srq(
    id: *mut RdmaCmId,
    pd: *mut IbvPd,
    init: *mut IbvSrqInitAttr,
) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(public, _)| {
        if !public.srq.is_null() || public.verbs.is_null() {
            return Err(Errno::INVAL);
        }
        let pd = if pd.is_null() { public.pd } else { pd };
        // SAFETY: as the caller promises.
        public.srq = unsafe { srq::create(pd, init) };
        if public.srq.is_null() {
            return Err(Errno::last());
        }
        public.pd = pd;
        Ok(())
    }))
}

/// Implements `rdma_create_srq_ex`.
///
/// # Safety
/// As for [`create_srq`].
pub unsafe extern "C-unwind" fn create_srq_ex(
    id: *mut RdmaCmId,
    init: *mut IbvSrqInitAttrEx,
) -> c_int {
    const TYPE: u32 = 1;
    const PD: u32 = 1 << 1;
    const CQ: u32 = 1 << 3;
    const XRC: c_int = 1;
    let made = || {
        // SAFETY: as the caller promises.
        let (public, init) = unsafe { known(id, init) }?;
        if !public.srq.is_null() || public.verbs.is_null() {
            return Err(Errno::INVAL);
        }
        if init.comp_mask & PD == 0 || init.pd.is_null() {
            init.pd = public.pd;
            init.comp_mask |= PD;
        }
        let is_xrc = init.comp_mask & TYPE != 0 && init.srq_type == XRC;
        let needs_queue = is_xrc && (init.comp_mask & CQ == 0 || init.cq.is_null());
        if needs_queue {
            if public.recv_cq.is_null() {
                // SAFETY: as the caller promises.
                let (channel, queue) = unsafe { add_queue(public, init.attr.max_wr) }?;
                (public.recv_cq_channel, public.recv_cq) = (channel, queue);
            }
            init.cq = public.recv_cq;
            init.comp_mask |= CQ;
        }
        // SAFETY: as the caller promises.
        public.srq = unsafe { srq::create_ex(public.verbs, init) };
        if public.srq.is_null() {
            let errno = Errno::last();
            // The CQ of the QP stays.
            if needs_queue && public.qp.is_null() {
                // SAFETY: the identifier's own.
                unsafe { remove_queues(public) };
            }
            return Err(errno);
        }
        public.pd = init.pd;
        Ok(())
    };
    done(made())
}

/// Implements `rdma_destroy_srq`.
///
/// # Safety
/// The program does not use the SRQ after this call, and the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn destroy_srq(id: *mut RdmaCmId) {
    // SAFETY: as the caller promises.
    match unsafe { id::own(id) } {
        Err(errno) => {
            errno.set();
        }
        Ok((public, _)) => {
            let made = std::mem::replace(&mut public.srq, ptr::null_mut());
            // SAFETY: as the caller promises.
            unsafe { srq::destroy(made) };
        }
    }
}

//! Shared receive queues, for C programs.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ops::Deref;

use ::xrc::{XrcSrq, Xrcd};
use verbs_api::{Srq, SrqOptions};

use crate::abi::{
    IbvContext, IbvCq, IbvPd, IbvSrq, IbvSrqAttr, IbvSrqInitAttr, IbvSrqInitAttrEx, IbvXrcd,
};
use crate::errno::{Errno, code, pointer};
use crate::object::Object;
use crate::{context, cq, pd, xrc};

/// An SRQ: its public structure and the library's part.
type SrqObject = Object<IbvSrq, Kind>;

enum Kind {
    Basic(Srq),
    Xrc(XrcSrq),
}

impl Deref for Kind {
    type Target = Srq;

    fn deref(&self) -> &Srq {
        match self {
            Self::Basic(srq) => srq,
            Self::Xrc(srq) => srq,
        }
    }
}

const MAX_WR: c_int = 1;
const LIMIT: c_int = 1 << 1;

/// The SRQ that the program's pointer stands for.
///
/// # Errors
/// The pointer is null, or the SRQ was destroyed.
///
/// # Safety
/// The SRQ is not destroyed while the result is used.
pub unsafe fn own<'a>(srq: *const IbvSrq) -> Result<&'a Srq, Errno> {
    // SAFETY: as the caller promises.
    unsafe { SrqObject::own(srq) }.map(Deref::deref)
}

/// The SRQ that the program's pointer stands for, without a check: for the data path.
///
/// # Safety
/// The SRQ is live.
#[inline]
pub unsafe fn own_unchecked<'a>(srq: *const IbvSrq) -> &'a Srq {
    // SAFETY: as the caller promises.
    unsafe { SrqObject::own_unchecked(srq) }
}

unsafe fn make(
    pd: *mut IbvPd,
    srq_context: *mut c_void,
    attr: &mut IbvSrqAttr,
    of: Option<(*mut IbvXrcd, *mut IbvCq)>,
) -> Result<*mut IbvSrq, Errno> {
    // SAFETY: as the caller promises.
    let own = unsafe { pd::own(pd) }?;
    // SAFETY: live, as `own` has seen.
    let public = unsafe { (*pd).context };
    // SAFETY: a domain is live, so its device is.
    let device = unsafe { context::own(public) }?;
    // The limit of a new SRQ is not armed, whatever its attributes say.
    let options = SrqOptions::new(attr.max_wr).max_sge(attr.max_sge.max(1));
    let srq = match of {
        None => Kind::Basic(own.create_srq(options).wait()?),
        Some((xrcd, cq)) => {
            // SAFETY: as the caller promises.
            let cq = unsafe { cq::own(cq) }?;
            let create = |xrcd: &Xrcd| Ok(xrcd.create_srq(own, options, &cq.cq).wait()?);
            // SAFETY: as the caller promises.
            Kind::Xrc(unsafe { xrc::with(xrcd, create) }?)
        }
    };
    let made = srq.query()?;
    (attr.max_wr, attr.max_sge) = (made.max_wr, made.max_sge);
    let c = IbvSrq {
        context: public,
        srq_context,
        pd,
        handle: srq.id().index,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let id = srq.id();
    let at = SrqObject::create(c, srq);
    device.place(id, at);
    Ok(at)
}

/// Implements `ibv_create_srq`.
///
/// # Safety
/// `attr` is null or writable, and the domain is not freed during the call.
pub unsafe extern "C-unwind" fn create(pd: *mut IbvPd, attr: *mut IbvSrqInitAttr) -> *mut IbvSrq {
    // SAFETY: as the caller promises.
    let made = unsafe { attr.as_mut() }.ok_or(Errno::INVAL);
    // SAFETY: as the caller promises.
    pointer(made.and_then(|init| unsafe { make(pd, init.srq_context, &mut init.attr, None) }))
}

const TYPE: u32 = 1;
const PD: u32 = 1 << 1;
const XRCD: u32 = 1 << 2;
const CQ: u32 = 1 << 3;
const TYPE_BASIC: c_int = 0;
const TYPE_XRC: c_int = 1;

/// Implements the slot `create_srq_ex` of `verbs_context`.
///
/// # Safety
/// `attr` is null or writable, and none of the objects in it is destroyed during the call.
pub unsafe extern "C-unwind" fn create_ex(
    _context: *mut IbvContext,
    attr: *mut IbvSrqInitAttrEx,
) -> *mut IbvSrq {
    // SAFETY: as the caller promises.
    pointer(
        unsafe { attr.as_mut() }
            .ok_or(Errno::INVAL)
            .and_then(|init| {
                let mask = init.comp_mask;
                let kind = if mask & TYPE != 0 {
                    init.srq_type
                } else {
                    TYPE_BASIC
                };
                if mask & !(TYPE | PD | XRCD | CQ) != 0 || !matches!(kind, TYPE_BASIC | TYPE_XRC) {
                    return Err(Errno::OPNOTSUPP);
                }
                let needed = if kind == TYPE_XRC { PD | XRCD | CQ } else { PD };
                if mask & needed != needed {
                    return Err(Errno::INVAL);
                }
                let of = (kind == TYPE_XRC).then_some((init.xrcd, init.cq));
                // SAFETY: as the caller promises.
                unsafe { make(init.pd, init.srq_context, &mut init.attr, of) }
            }),
    )
}

/// Implements the slot `get_srq_num` of `verbs_context`.
///
/// # Safety
/// `number` is null or writable, and the queue is not destroyed during the call.
pub unsafe extern "C-unwind" fn get_number(srq: *mut IbvSrq, number: *mut u32) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { SrqObject::own(srq) }.and_then(|kind| {
        let Kind::Xrc(own) = kind else {
            return Err(Errno::OPNOTSUPP);
        };
        // SAFETY: as the caller promises.
        *unsafe { number.as_mut() }.ok_or(Errno::INVAL)? = own.number();
        Ok(())
    }))
}

/// Implements `ibv_modify_srq`.
///
/// # Safety
/// `attr` is null or readable, and the queue is not destroyed during the call.
pub unsafe extern "C-unwind" fn modify(
    srq: *mut IbvSrq,
    attr: *const IbvSrqAttr,
    mask: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { own(srq) }.and_then(|own| {
        // SAFETY: as the caller promises.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        if mask & !(MAX_WR | LIMIT) != 0 {
            return Err(Errno::INVAL);
        }
        if mask & MAX_WR != 0 {
            own.resize(attr.max_wr).wait()?;
        }
        if mask & LIMIT != 0 {
            own.arm_limit(attr.srq_limit).wait()?;
        }
        Ok(())
    }))
}

/// Implements `ibv_query_srq`.
///
/// # Safety
/// `attr` is null or writable, and the queue is not destroyed during the call.
pub unsafe extern "C-unwind" fn query(srq: *mut IbvSrq, attr: *mut IbvSrqAttr) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { own(srq) }.and_then(|own| {
        let found = own.query()?;
        // SAFETY: as the caller promises.
        *unsafe { attr.as_mut() }.ok_or(Errno::INVAL)? = IbvSrqAttr {
            max_wr: found.max_wr,
            max_sge: found.max_sge,
            srq_limit: found.srq_limit,
        };
        Ok(())
    }))
}

/// Implements `ibv_destroy_srq`.
///
/// # Safety
/// The program does not use the structure after this call.
pub unsafe extern "C-unwind" fn destroy(srq: *mut IbvSrq) -> c_int {
    let end = |kind: &Kind| {
        // SAFETY: live, as was seen; a queue is live, so its device is.
        let device = unsafe { context::own((*srq).context) }?;
        let id = kind.id();
        match kind {
            Kind::Basic(own) => device.end(id, own.clone().destroy()),
            Kind::Xrc(own) => device.end(id, own.clone().destroy()),
        }
    };
    // SAFETY: as the caller promises.
    code(unsafe { SrqObject::end(srq, end) })
}

/// `ibv_post_srq_ops`, for tag matching, which no device here has: the first operation fails.
///
/// # Safety
/// `bad_op` is null or writable.
pub unsafe extern "C-unwind" fn post_ops(
    _srq: *mut c_void,
    op: *mut c_void,
    bad_op: *mut *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    if let Some(bad_op) = unsafe { bad_op.as_mut() } {
        *bad_op = op;
    }
    Errno::OPNOTSUPP.set()
}

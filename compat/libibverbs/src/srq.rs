//! Shared receive queues.
#![allow(unsafe_code)]

use std::ffi::c_int;

use verbs_api::{Srq, SrqOptions};

use crate::abi::{IbvPd, IbvRecvWr, IbvSrq, IbvSrqAttr, IbvSrqInitAttr};
use crate::errno::{Errno, code, pointer};
use crate::object::Object;
use crate::{context, pd, post};

/// A queue as it lies in memory.
type SrqObject = Object<IbvSrq, Srq>;

const MAX_WR: c_int = 1;
const LIMIT: c_int = 1 << 1;

/// Ours, behind a pointer of the program.
///
/// # Errors
/// It is null, or the queue was destroyed.
///
/// # Safety
/// Nobody destroys the queue while the answer is used.
pub unsafe fn own<'a>(srq: *const IbvSrq) -> Result<&'a Srq, Errno> {
    // SAFETY: as the caller promises.
    unsafe { SrqObject::own(srq) }
}

/// `ibv_create_srq`.
///
/// # Safety
/// `attr` is null or writable, and nobody frees the domain meanwhile.
pub unsafe extern "C" fn create(pd: *mut IbvPd, attr: *mut IbvSrqInitAttr) -> *mut IbvSrq {
    // SAFETY: as the caller promises.
    pointer(unsafe { pd::own(pd) }.and_then(|own| {
        // SAFETY: as the caller promises.
        let init = unsafe { attr.as_mut() }.ok_or(Errno::INVAL)?;
        // SAFETY: live, as `own` has seen.
        let public = unsafe { (*pd).context };
        // SAFETY: a domain is live, so its device is.
        let device = unsafe { context::own(public) }?;
        // The limit of a new queue is not armed, whatever the program left there.
        let options = SrqOptions::new(init.attr.max_wr).max_sge(init.attr.max_sge.max(1));
        let srq = own.create_srq(options).wait()?;
        let made = srq.query()?;
        (init.attr.max_wr, init.attr.max_sge) = (made.max_wr, made.max_sge);
        let c = IbvSrq {
            context: public,
            srq_context: init.srq_context,
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
    }))
}

/// `ibv_modify_srq`.
///
/// # Safety
/// `attr` is null or readable, and nobody destroys the queue meanwhile.
pub unsafe extern "C" fn modify(srq: *mut IbvSrq, attr: *const IbvSrqAttr, mask: c_int) -> c_int {
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

/// `ibv_query_srq`.
///
/// # Safety
/// `attr` is null or writable, and nobody destroys the queue meanwhile.
pub unsafe extern "C" fn query(srq: *mut IbvSrq, attr: *mut IbvSrqAttr) -> c_int {
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

/// `ibv_destroy_srq`.
///
/// # Safety
/// Nobody uses the structure any more.
pub unsafe extern "C" fn destroy(srq: *mut IbvSrq) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { own(srq) }.and_then(|own| {
        // SAFETY: live, as was seen; a queue is live, so its device is.
        let device = unsafe { context::own((*srq).context) }?;
        let id = own.id();
        own.clone().destroy().wait()?;
        device.displace(id);
        // SAFETY: as the caller promises.
        unsafe { SrqObject::destroy(srq) };
        Ok(())
    }))
}

/// The slot `post_srq_recv`.
///
/// # Safety
/// The queue is live, the requests are a list that ends with null, and `bad` is writable.
pub unsafe extern "C" fn post_recv(
    srq: *mut IbvSrq,
    first: *mut IbvRecvWr,
    bad: *mut *mut IbvRecvWr,
) -> c_int {
    // SAFETY: as the caller promises.
    let own = unsafe { SrqObject::own_unchecked(srq) };
    // SAFETY: as the caller promises.
    unsafe {
        post::each_receive(first, bad, |request| {
            own.post_receive(request).map_err(|refused| refused.reason)
        })
    }
}

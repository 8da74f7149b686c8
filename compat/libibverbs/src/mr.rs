//! Memory regions.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};

use verbs_api::{Access, Mr, MrOptions};

use crate::abi::{IbvMr, IbvPd, access};
use crate::errno::{Errno, code, pointer};
use crate::object::Object;
use crate::pd;

/// A region as it lies in memory.
pub type MrObject = Object<IbvMr, Mr>;

/// Rights as the program gave them; what is only a hint is taken away.
///
/// # Errors
/// A bit is no right.
pub fn rights(flags: u32) -> Result<Access, Errno> {
    let flags = flags & !(access::OPTIONAL | access::HUGETLB);
    if flags & access::ON_DEMAND != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Access::from_bits(flags).ok_or(Errno::INVAL)
}

unsafe fn register(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> Result<*mut IbvMr, Errno> {
    // SAFETY: as the caller promises.
    let own = unsafe { pd::own(pd) }?;
    let rights = rights(flags)?;
    let options = MrOptions::new(rights);
    let options = if rights.contains(Access::ZERO_BASED) {
        options
    } else {
        options.iova(iova)
    };
    // SAFETY: the program keeps the memory until it has deregistered it, and accesses it as C does.
    let mr = unsafe { own.register_borrowed(addr.cast(), length, options) }.wait()?;
    let c = IbvMr {
        // SAFETY: live, as `own` has seen.
        context: unsafe { (*pd).context },
        pd,
        addr,
        length,
        handle: mr.id().index,
        lkey: mr.lkey().value(),
        rkey: mr.rkey().value(),
    };
    Ok(MrObject::create(c, mr))
}

/// `ibv_reg_mr`.
///
/// # Safety
/// `length` octets from `addr` are the program's until the region is deregistered.
pub unsafe extern "C" fn reg(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut IbvMr {
    // SAFETY: as the caller promises.
    pointer(unsafe { register(pd, addr, length, addr as u64, flags as u32) })
}

/// `ibv_reg_mr_iova`.
///
/// # Safety
/// As for [`reg`].
pub unsafe extern "C" fn reg_iova(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_int,
) -> *mut IbvMr {
    // SAFETY: as the caller promises.
    pointer(unsafe { register(pd, addr, length, iova, flags as u32) })
}

/// `ibv_reg_mr_iova2`.
///
/// # Safety
/// As for [`reg`].
pub unsafe extern "C" fn reg_iova2(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> *mut IbvMr {
    // SAFETY: as the caller promises.
    pointer(unsafe { register(pd, addr, length, iova, flags) })
}

/// `ibv_dereg_mr`.
///
/// # Safety
/// Nobody uses the structure any more.
pub unsafe extern "C" fn dereg(mr: *mut IbvMr) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { MrObject::own(mr) }.and_then(|own| {
        own.clone().deregister().wait()?;
        // SAFETY: as the caller promises.
        unsafe { MrObject::destroy(mr) };
        Ok(())
    }))
}

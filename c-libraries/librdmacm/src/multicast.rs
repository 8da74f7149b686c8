//! Joining and leaving of multicast groups.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use polyverbs_libibverbs::errno::Errno;
use verbs_api::ids::LinkAddress;
use verbs_api::qp::AddressVector;

use crate::abi::{RdmaCmId, RdmaCmJoinMcAttrEx, event};
use crate::device::Service;
use crate::errno::done;
use crate::id::{self, Own};
use crate::state::Data;
use crate::{address, events, groups};

/// Implements `rdma_join_multicast`.
///
/// # Safety
/// `addr` is null or an address, and the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn join(
    id: *mut RdmaCmId,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(public, own)| {
        // SAFETY: as the caller promises.
        unsafe { join_as(public, own, addr, context, true) }
    }))
}

/// Implements `rdma_join_multicast_ex`.
///
/// # Safety
/// `attr` is null or readable, and so is its address; the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn join_ex(
    id: *mut RdmaCmId,
    attr: *mut RdmaCmJoinMcAttrEx,
    context: *mut c_void,
) -> c_int {
    const ADDRESS: u32 = 1;
    const FLAGS: u32 = 1 << 1;
    const FULL: u32 = 0;
    const SEND_ONLY: u32 = 1;
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(public, own)| {
        // SAFETY: as the caller promises.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        if attr.comp_mask != ADDRESS | FLAGS || !matches!(attr.join_flags, FULL | SEND_ONLY) {
            return Err(Errno::INVAL);
        }
        // SAFETY: as the caller promises.
        unsafe { join_as(public, own, attr.addr, context, attr.join_flags == FULL) }
    }))
}

unsafe fn join_as(
    public: &mut RdmaCmId,
    own: &Own,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
    is_full: bool,
) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    let ip = unsafe { address::read(addr) }?.ip();
    if public.verbs.is_null() || id::service(public) != Service::Datagrams || !ip.is_multicast() {
        return Err(Errno::INVAL);
    }
    if own.inner.lock().groups.contains_key(&ip) {
        return Err(Errno(libc::EADDRINUSE));
    }
    let is_attached = is_full && !public.qp.is_null();
    if is_attached {
        groups::attach(public, ip)?;
    }
    own.inner.lock().groups.insert(ip, is_attached);
    let path = AddressVector::new(LinkAddress::Ip(ip), groups::gid(ip), 1);
    let device = own.inner.lock().device.clone().ok_or(Errno::INVAL)?;
    let ah_attr = device.path(&path);
    let data = Data::Group { context, ah_attr };
    own.inner.post(event::MULTICAST_JOIN, 0, data);
    // SAFETY: as the caller promises.
    unsafe { events::complete(public, own) }
}

/// Implements `rdma_leave_multicast`.
///
/// # Safety
/// `addr` is null or an address, and the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn leave(id: *mut RdmaCmId, addr: *mut libc::sockaddr) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(public, own)| {
        // SAFETY: as the caller promises.
        let ip = unsafe { address::read(addr) }?.ip();
        let known = own.inner.lock().groups.remove(&ip);
        let is_attached = known.ok_or(Errno(libc::EADDRNOTAVAIL))?;
        if is_attached {
            groups::detach(public, ip);
        }
        Ok(())
    }))
}

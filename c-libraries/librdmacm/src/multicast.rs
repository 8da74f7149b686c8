//! Joining and leaving of multicast groups.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use polyverbs_libibverbs::errno::Errno;
use verbs_api::ids::LinkAddress;
use verbs_api::qp::AddressVector;

use crate::abi::{RdmaCmId, RdmaCmJoinMcAttrEx, event};
use crate::device::Service;
use crate::errno::done;
use crate::id::{self, Own};
use crate::state::{Data, Part, Queued};
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
    let state = own.inner.lock();
    let is_in_time = matches!(state.part, Part::Bound | Part::AddressResolved);
    let device = state.device.clone().filter(|_| is_in_time);
    drop(state);
    let device = device.ok_or(Errno::INVAL)?;
    if id::service(public) != Service::Datagrams || !ip.is_multicast() {
        return Err(Errno::INVAL);
    }
    let attached = match is_full && !public.qp.is_null() {
        true => groups::attach(public, &own.inner, ip).map(|()| true),
        false => Ok(false),
    };
    // As with rdma-core, a queue pair that cannot be attached is reported by the event, and the group is joined.
    let (event, status) = match attached {
        Ok(_) => (event::MULTICAST_JOIN, 0),
        Err(_) => (event::MULTICAST_ERROR, -1),
    };
    own.inner.lock().groups.push((ip, attached == Ok(true)));
    let path = AddressVector::new(LinkAddress::Ip(ip), groups::gid(ip), 1);
    let ah_attr = device.path(&path);
    own.inner
        .post(event, status, Data::Group { context, ah_attr });
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
        let mut state = own.inner.lock();
        let joined = &mut state.groups;
        let place = joined.iter().rposition(|(joined, _)| *joined == ip);
        let left = joined.remove(place.ok_or(Errno(libc::EADDRNOTAVAIL))?);
        let is_detached = left.1 && !joined.contains(&left);
        let is_member = joined.iter().any(|(joined, _)| *joined == ip);
        let channel = Arc::clone(&state.channel);
        drop(state);
        if is_detached {
            groups::detach(public, ip);
        }
        // Events of a group that the program has left are not delivered.
        let group = groups::gid(ip).0;
        let is_of_group = |queued: &Queued| match &queued.data {
            Data::Group { ah_attr, .. } => {
                !is_member && ah_attr.grh.dgid.raw == group && Arc::ptr_eq(&queued.of, &own.inner)
            }
            _ => false,
        };
        for queued in channel.take(is_of_group) {
            queued.of.acknowledged();
        }
        Ok(())
    }))
}

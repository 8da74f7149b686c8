//! Resolution of the peer's address, and of the route to it.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::SocketAddr;

use polyverbs_libibverbs::errno::Errno;

use crate::abi::{RdmaCmId, event};
use crate::errno::done;
use crate::id::{self, Own};
use crate::ports::some_port;
use crate::state::{Data, Part};
use crate::{address, bind, device, events};

/// Implements `rdma_resolve_addr`.
///
/// # Safety
/// `src` and `dst` are null or addresses, and the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn resolve_addr(
    id: *mut RdmaCmId,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(public, own)| {
        // SAFETY: as the caller promises.
        let remote = unsafe { address::read(dst) }?;
        let mut state = own.inner.lock();
        if state.remote.is_some() || !matches!(state.part, Part::Nothing) {
            return Err(Errno::INVAL);
        }
        let is_bound = state.local.is_some();
        let reserved = std::mem::take(&mut state.reserved);
        drop(state);
        // An identifier that connects does not listen, so its listeners are dropped.
        drop(reserved);
        if !is_bound && !src.is_null() {
            // SAFETY: as the caller promises.
            let local = unsafe { address::read(src) }?;
            if local.is_ipv4() != remote.is_ipv4() {
                return Err(Errno::INVAL);
            }
            bind::bind_to(public, own, local)?;
        }
        let (event, status) = match resolve(public, own, remote) {
            Ok(()) => (event::ADDR_RESOLVED, 0),
            Err(errno) => (event::ADDR_ERROR, -errno.0),
        };
        own.inner.post(event, status, Data::None);
        // SAFETY: as the caller promises.
        unsafe { events::complete(public, own) }
    }))
}

fn resolve(public: &mut RdmaCmId, own: &Own, remote: SocketAddr) -> Result<(), Errno> {
    let state = own.inner.lock();
    let (device, local) = (state.device.clone(), state.local);
    drop(state);
    let device = match device {
        Some(device) => device,
        None => {
            let device = match local {
                Some(local) if local.ip().is_loopback() => device::at(local, id::service(public)),
                _ => device::towards(remote, id::service(public)),
            }?;
            let port = local.map_or_else(some_port, |local| local.port());
            own.inner.lock().has_assigned_port |= local.is_none();
            id::bound(
                public,
                own,
                &device,
                SocketAddr::new(device.address(), port),
            )?;
            device
        }
    };
    if device.address().is_ipv4() != remote.is_ipv4() {
        return Err(Errno(libc::ENETUNREACH));
    }
    id::towards(public, own, &device, remote);
    own.inner.lock().remote = Some(remote);
    Ok(())
}

/// Implements `rdma_resolve_route`.
///
/// # Safety
/// The identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn resolve_route(id: *mut RdmaCmId, _timeout_ms: c_int) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(public, own)| {
        let mut state = own.inner.lock();
        if state.remote.is_none() || !matches!(state.part, Part::Nothing) {
            return Err(Errno::INVAL);
        }
        state.has_route = true;
        drop(state);
        own.inner.post(event::ROUTE_RESOLVED, 0, Data::None);
        // SAFETY: as the caller promises.
        unsafe { events::complete(public, own) }
    }))
}

//! Resolution of the peer's address, and of the route to it.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;

use polyverbs_libibverbs::errno::Errno;

use crate::abi::{RdmaCmId, event, port_space};
use crate::device::CmDevice;
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
        let source = match src.is_null() {
            true => None,
            // SAFETY: as the caller promises.
            false => Some(unsafe { address::read(src) }?),
        };
        let mut state = own.inner.lock();
        if !matches!(state.part, Part::Idle | Part::Bound) {
            return Err(Errno::INVAL);
        }
        let is_idle = matches!(state.part, Part::Idle);
        let reserved = std::mem::take(&mut state.reserved);
        drop(state);
        // An identifier that connects does not listen, so its listeners are dropped.
        drop(reserved);
        if let Some(source) = source.filter(|_| is_idle) {
            bind::bind_to(public, own, source)?;
        }
        // Without a route the call fails; without a device the event says so.
        let device = device_for(public, own, remote)?.and_then(|device| match public.ps {
            // Only InfiniBand's ports have IP over InfiniBand.
            port_space::IPOIB => Err(Errno::INVAL),
            _ => Ok(device),
        });
        let (event, status) = match device.and_then(|device| reach(public, own, &device, remote)) {
            Ok(()) => (event::ADDR_RESOLVED, 0),
            Err(errno) => (event::ADDR_ERROR, -errno.0),
        };
        own.inner.post(event, status, Data::None);
        // SAFETY: as the caller promises.
        unsafe { events::complete(public, own) }
    }))
}

// The device from which a destination is reached, or why there is none.
//
// # Errors
// There is no route; the identifier is bound to an address of another family.
fn device_for(
    public: &RdmaCmId,
    own: &Own,
    remote: SocketAddr,
) -> Result<Result<Arc<CmDevice>, Errno>, Errno> {
    let service = id::service(public);
    let state = own.inner.lock();
    let (known, local) = (state.device.clone(), state.local);
    drop(state);
    if local.is_some_and(|local| local.is_ipv4() != remote.is_ipv4()) {
        return Err(Errno::INVAL);
    }
    Ok(match (known, local) {
        (Some(device), _) => Ok(device),
        (None, Some(local)) if local.ip().is_loopback() => device::at(local, service),
        (None, _) => device::at(device::source_for(remote, service)?, service),
    })
}

// The peer's address is resolved.
fn reach(
    public: &mut RdmaCmId,
    own: &Own,
    device: &Arc<CmDevice>,
    mut remote: SocketAddr,
) -> Result<(), Errno> {
    let state = own.inner.lock();
    let (is_at_device, local) = (state.device.is_some(), state.local);
    drop(state);
    if !is_at_device {
        let port = local.map_or_else(some_port, |local| local.port());
        own.inner.lock().has_assigned_port |= local.is_none();
        let local = SocketAddr::new(device.address(), port);
        id::bound(public, own, device, local)?;
    }
    // The wildcard address stands for this machine.
    if remote.ip().is_unspecified() {
        remote.set_ip(device.address());
    }
    id::towards(public, own, device, remote);
    let mut state = own.inner.lock();
    (state.remote, state.part) = (Some(remote), Part::AddressResolved);
    Ok(())
}

/// Implements `rdma_resolve_route`.
///
/// # Safety
/// The identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn resolve_route(id: *mut RdmaCmId, _timeout_ms: c_int) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(public, own)| {
        take_route(own)?;
        // SAFETY: as the caller promises.
        unsafe { events::complete(public, own) }
    }))
}

/// The route is that of the system: reports that it is resolved.
///
/// # Errors
/// The peer's address is not resolved, or the route is.
pub(crate) fn take_route(own: &Own) -> Result<(), Errno> {
    let mut state = own.inner.lock();
    if !matches!(state.part, Part::AddressResolved) {
        return Err(Errno::INVAL);
    }
    state.part = Part::RouteResolved;
    drop(state);
    own.inner.post(event::ROUTE_RESOLVED, 0, Data::None);
    Ok(())
}

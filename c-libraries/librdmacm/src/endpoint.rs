//! Endpoints: synchronous identifiers that are created together with their address, route and QP.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;

use polyverbs_libibverbs::abi::{IbvPd, IbvQpCap, IbvQpInitAttr};
use polyverbs_libibverbs::errno::Errno;

use crate::abi::{RdmaAddrinfo, RdmaCmId, event};
use crate::errno::done;
use crate::info::PASSIVE;
use crate::state::Template;
use crate::{bind, channel, connect, events, id, qp, resolve};

const TIMEOUT_MS: c_int = 2000;

/// Implements `rdma_create_ep`.
///
/// # Safety
/// `id` is null or writable, `info` is null or was returned by `rdma_getaddrinfo`, `init` is null or writable, and none of the
/// objects in them is destroyed during the call.
pub unsafe extern "C-unwind" fn create(
    id: *mut *mut RdmaCmId,
    info: *mut RdmaAddrinfo,
    pd: *mut IbvPd,
    init: *mut IbvQpInitAttr,
) -> c_int {
    // SAFETY: as the caller promises.
    let known = unsafe { (id.as_mut(), info.as_ref()) };
    let (Some(place), Some(info)) = known else {
        return done(Err(Errno::INVAL));
    };
    let made = id::qp_type_of(info.ai_port_space).and_then(|_| {
        let (ps, qp_type) = (info.ai_port_space, info.ai_qp_type);
        // SAFETY: a channel of its own is made.
        unsafe { id::make(ptr::null_mut(), ptr::null_mut(), ps, qp_type) }
    });
    let made = made.and_then(|made| {
        // SAFETY: as the caller promises, and the identifier was just made.
        unsafe { prepare(made, info, pd, init) }.inspect_err(|_| {
            // SAFETY: just made, and nobody has it.
            unsafe { destroy(made) };
        })?;
        *place = made;
        Ok(())
    });
    done(made)
}

unsafe fn prepare(
    made: *mut RdmaCmId,
    info: &RdmaAddrinfo,
    pd: *mut IbvPd,
    init: *mut IbvQpInitAttr,
) -> Result<(), Errno> {
    // A C function that returns -1 has set `errno`.
    let checked = |answer: c_int| {
        if answer == 0 {
            Ok(())
        } else {
            Err(Errno::last())
        }
    };
    // SAFETY: as the caller promises.
    let init = unsafe { init.as_mut() };
    if info.ai_flags & PASSIVE != 0 {
        // SAFETY: as the caller promises.
        checked(unsafe { bind::bind_addr(made, info.ai_src_addr) })?;
        // SAFETY: as the caller promises.
        let (public, own) = unsafe { id::own(made) }?;
        if !pd.is_null() {
            public.pd = pd;
        }
        if let Some(init) = init {
            let mut copy = copied(init);
            copy.qp_type = info.ai_qp_type;
            own.inner.lock().template = Some(Template(copy, pd));
        }
        return Ok(());
    }
    // SAFETY: as the caller promises.
    checked(unsafe {
        resolve::resolve_addr(made, info.ai_src_addr, info.ai_dst_addr, TIMEOUT_MS)
    })?;
    // SAFETY: as the caller promises.
    checked(unsafe { resolve::resolve_route(made, TIMEOUT_MS) })?;
    if let Some(init) = init {
        init.qp_type = info.ai_qp_type;
        // SAFETY: as the caller promises.
        checked(unsafe { qp::create(made, pd, init) })?;
    }
    Ok(())
}

fn copied(init: &IbvQpInitAttr) -> IbvQpInitAttr {
    IbvQpInitAttr {
        cap: IbvQpCap { ..init.cap },
        ..*init
    }
}

/// Implements `rdma_destroy_ep`.
///
/// # Safety
/// The identifier is not used any more.
pub unsafe extern "C-unwind" fn destroy(id: *mut RdmaCmId) {
    // SAFETY: as the caller promises.
    match unsafe { id::own(id) } {
        Err(errno) => {
            errno.set();
        }
        Ok((public, _)) => {
            if !public.qp.is_null() {
                // SAFETY: as the caller promises.
                unsafe { qp::destroy(id) };
            }
            if !public.srq.is_null() {
                // SAFETY: as the caller promises.
                unsafe { qp::destroy_srq(id) };
            }
            // SAFETY: as the caller promises.
            unsafe { id::destroy(id) };
        }
    }
}

/// Implements `rdma_get_request`: waits for the next request of a synchronous listener. The new identifier has a QP if the
/// listener was created with attributes of one.
///
/// # Safety
/// `id` is null or writable, and the listener is not destroyed during the call.
pub unsafe extern "C-unwind" fn get_request(
    listener: *mut RdmaCmId,
    id: *mut *mut RdmaCmId,
) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(listener) }.and_then(|(public, own)| {
        // SAFETY: as the caller promises.
        let place = unsafe { id.as_mut() }.ok_or(Errno::INVAL)?;
        if !own.inner.lock().is_sync {
            return Err(Errno::INVAL);
        }
        if !public.event.is_null() {
            // SAFETY: the identifier's own.
            unsafe { channel::ack_event(public.event) };
            public.event = ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        let fetched = unsafe { events::fetch(public.channel) }?;
        // SAFETY: just fetched.
        let (kind, asker) = unsafe { ((*fetched).event, (*fetched).id) };
        if kind != event::CONNECT_REQUEST {
            public.event = fetched;
            return Err(Errno::INVAL);
        }
        let template = own.inner.lock().template.as_ref().map(|known| {
            let Template(init, pd) = known;
            (copied(init), *pd)
        });
        // SAFETY: as the caller promises, and the identifier comes with the event.
        let ready = unsafe { id::own(asker) }.and_then(|(asker, _)| {
            asker.event = fetched;
            match template {
                // SAFETY: what the template names is the program's to keep.
                Some((mut init, pd)) => unsafe { qp::make(asker, pd, &mut init) },
                None => Ok(()),
            }
        });
        if let Err(errno) = ready {
            // SAFETY: nobody has it.
            unsafe {
                connect::reject(asker, ptr::null(), 0);
                id::destroy(asker);
            }
            return Err(errno);
        }
        *place = asker;
        Ok(())
    }))
}

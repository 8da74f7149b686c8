//! Memory windows, for C programs.
#![allow(unsafe_code)]

use std::ffi::c_int;

use verbs_api::provider::MwType;
use verbs_api::{Access, Mw, RKey, wr};

use crate::abi::{BindMw, IbvMw, IbvMwBindInfo, IbvPd};
use crate::errno::{Errno, code, pointer};
use crate::mr::{self, rights};
use crate::object::Object;
use crate::pd;

/// A memory window: its public structure and the library's part.
pub type MwObject = Object<IbvMw, Mw>;

/// Implements the slot `alloc_mw` of `ibv_context_ops`.
///
/// # Safety
/// The domain is not freed during the call.
pub unsafe extern "C-unwind" fn alloc(pd: *mut IbvPd, mw_type: c_int) -> *mut IbvMw {
    // SAFETY: as the caller promises.
    pointer(unsafe { pd::own(pd) }.and_then(|own| {
        let kind = match mw_type {
            1 => MwType::Type1,
            2 => MwType::Type2,
            _ => return Err(Errno::INVAL),
        };
        let mw = own.alloc_mw(kind).wait()?;
        let c = IbvMw {
            // SAFETY: live, as `own` has seen.
            context: unsafe { (*pd).context },
            pd,
            rkey: mw.rkey().value(),
            handle: mw.id().index,
            mw_type,
        };
        Ok(MwObject::create(c, mw))
    }))
}

/// Implements the slot `dealloc_mw` of `ibv_context_ops`.
///
/// # Safety
/// The program does not use the structure after this call.
pub unsafe extern "C-unwind" fn dealloc(mw: *mut IbvMw) -> c_int {
    let end = |own: &Mw| Ok(own.clone().destroy().wait()?);
    // SAFETY: as the caller promises.
    code(unsafe { MwObject::end(mw, end) })
}

/// Converts a bind work request (`IBV_WR_BIND_MW`), whose `rkey` gives the low byte of the window's new key.
///
/// # Errors
/// The access flags are unknown, the window or MR was destroyed, or the rest of `rkey` is that of another window.
///
/// # Safety
/// Neither the window nor the MR is destroyed during the call.
pub unsafe fn posted<'a>(bind: &BindMw) -> Result<wr::BindWindow<'a>, Errno> {
    // SAFETY: as the caller promises.
    let window = unsafe { MwObject::own(bind.mw) }?;
    let key = RKey::new(bind.rkey);
    if key.index() != window.rkey().index() {
        return Err(Errno::INVAL);
    }
    // SAFETY: as the caller promises.
    let request = unsafe { request(window, &bind.bind_info) }?;
    Ok(request.key_byte(key.key_byte()))
}

/// Converts the arguments of a bind; without an MR the window is unbound.
///
/// # Errors
/// The access flags are unknown, or the MR was deregistered.
///
/// # Safety
/// The MR is not deregistered during the call.
pub unsafe fn request<'a>(
    window: &'a Mw,
    info: &IbvMwBindInfo,
) -> Result<wr::BindWindow<'a>, Errno> {
    // A window grants only remote access; local write is implied by it.
    let access = rights(info.mw_access_flags)? - Access::LOCAL_WRITE;
    let request = if info.mr.is_null() {
        wr::BindWindow::unbind(window)
    } else {
        // SAFETY: as the caller promises.
        let region = unsafe { mr::own(info.mr) }?;
        wr::BindWindow::new(window, region, info.addr, info.length)
    };
    Ok(request.access(access))
}

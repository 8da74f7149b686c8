//! Memory windows.
#![allow(unsafe_code)]

use std::ffi::c_int;

use verbs_api::provider::MwType;
use verbs_api::{Access, Mw, RKey, wr};

use crate::abi::{BindMw, IbvMw, IbvMwBindInfo, IbvPd};
use crate::errno::{Errno, code, pointer};
use crate::mr::{self, rights};
use crate::object::Object;
use crate::pd;

/// The layout of a window.
pub type MwObject = Object<IbvMw, Mw>;

/// The slot `alloc_mw`.
///
/// # Safety
/// The domain is not freed meanwhile.
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

/// The slot `dealloc_mw`.
///
/// # Safety
/// The structure is not used any more.
pub unsafe extern "C-unwind" fn dealloc(mw: *mut IbvMw) -> c_int {
    let end = |own: &Mw| Ok(own.clone().destroy().wait()?);
    // SAFETY: as the caller promises.
    code(unsafe { MwObject::end(mw, end) })
}

/// The posted bind of a window, whose new key ends with the low byte of `rkey`.
///
/// # Errors
/// Unknown access bits, a window or region that was destroyed, or another window's key.
///
/// # Safety
/// Neither the window nor the region is destroyed meanwhile.
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

/// The arguments of a bind; without a region the window is unbound.
///
/// # Errors
/// Unknown access bits, or a region that was deregistered.
///
/// # Safety
/// The region is not deregistered meanwhile.
pub unsafe fn request<'a>(
    window: &'a Mw,
    info: &IbvMwBindInfo,
) -> Result<wr::BindWindow<'a>, Errno> {
    // A window grants remote access only; local write is implied.
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

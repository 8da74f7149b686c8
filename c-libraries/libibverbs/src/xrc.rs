//! XRC domains, for C programs.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use ::xrc::{OpenXrcd, Xrc, Xrcd};
use verbs_api::DestroyError;
use verbs_api::provider::Mutex;

use crate::abi::{IbvContext, IbvXrcd, IbvXrcdInitAttr};
use crate::context;
use crate::errno::{Errno, code, pointer};
use crate::object::Object;

/// An XRC domain: its public structure and the library's part, `None` while it is being closed.
type XrcdObject = Object<IbvXrcd, Mutex<Option<Xrcd>>>;

const FD: u32 = 1;
const OFLAGS: u32 = 1 << 1;

/// Calls `what` with the XRC domain that the program's pointer stands for.
///
/// # Errors
/// The pointer is null, or the domain was closed; and those of `what`.
///
/// # Safety
/// The domain is not closed during the call.
pub unsafe fn with<T>(
    xrcd: *const IbvXrcd,
    what: impl FnOnce(&Xrcd) -> Result<T, Errno>,
) -> Result<T, Errno> {
    // SAFETY: as the caller promises.
    let own = unsafe { XrcdObject::own(xrcd) }?;
    own.lock().as_ref().ok_or(Errno::INVAL).and_then(what)
}

/// Implements the slot `open_xrcd` of `verbs_context`.
///
/// # Safety
/// `attr` is null or readable, and the device is not closed during the call.
pub unsafe extern "C-unwind" fn open(
    context: *mut IbvContext,
    attr: *const IbvXrcdInitAttr,
) -> *mut IbvXrcd {
    // SAFETY: as the caller promises.
    pointer(unsafe { context::own(context) }.and_then(|state| {
        // SAFETY: as the caller promises.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        if attr.comp_mask != FD | OFLAGS {
            return Err(Errno::INVAL);
        }
        let xrc: Xrc = state.context.extension().map_err(|_| Errno::OPNOTSUPP)?;
        let mut how = if attr.fd < 0 {
            OpenXrcd::anonymous()
        } else {
            // SAFETY: open for as long as this takes, as the program says.
            OpenXrcd::of(unsafe { BorrowedFd::borrow_raw(attr.fd) })
        };
        if attr.oflags & libc::O_CREAT != 0 {
            how = how.create();
        }
        if attr.oflags & libc::O_EXCL != 0 {
            how = how.exclusive();
        }
        let xrcd = xrc.open(how).wait()?;
        Ok(XrcdObject::create(
            IbvXrcd { context },
            Mutex::new(Some(xrcd)),
        ))
    }))
}

/// Implements the slot `close_xrcd` of `verbs_context`.
///
/// # Safety
/// The program does not use the structure after this call.
pub unsafe extern "C-unwind" fn close(xrcd: *mut IbvXrcd) -> c_int {
    let end = |own: &Mutex<Option<Xrcd>>| {
        let mut slot = own.lock();
        let open = slot.take().ok_or(Errno::INVAL)?;
        if let Err(error) = open.close() {
            let kind = error.kind();
            if let DestroyError::Busy { object, .. } = error {
                *slot = Some(object);
            }
            return Err(kind.into());
        }
        Ok(())
    };
    // SAFETY: as the caller promises.
    code(unsafe { XrcdObject::end(xrcd, end) })
}

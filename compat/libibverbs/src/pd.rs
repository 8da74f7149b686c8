//! Protection domains.
#![allow(unsafe_code)]

use std::ffi::c_int;

use verbs_api::Pd;

use crate::abi::{IbvContext, IbvPd};
use crate::context;
use crate::errno::{Errno, code, pointer};
use crate::object::Object;

/// A domain as it lies in memory.
pub type PdObject = Object<IbvPd, Pd>;

/// Ours, behind a pointer of the program.
///
/// # Errors
/// It is null, or the domain was freed.
///
/// # Safety
/// Nobody frees the domain while the answer is used.
pub unsafe fn own<'a>(pd: *const IbvPd) -> Result<&'a Pd, Errno> {
    // SAFETY: as the caller promises.
    unsafe { PdObject::own(pd) }
}

/// `ibv_alloc_pd`.
///
/// # Safety
/// Nobody closes the device meanwhile.
pub unsafe extern "C" fn alloc(context: *mut IbvContext) -> *mut IbvPd {
    // SAFETY: as the caller promises.
    pointer(unsafe { context::own(context) }.and_then(|state| {
        let pd = state.context.alloc_pd().wait()?;
        let handle = pd.id().index;
        Ok(PdObject::create(IbvPd { context, handle }, pd))
    }))
}

/// `ibv_dealloc_pd`.
///
/// # Safety
/// Nobody uses the domain any more.
pub unsafe extern "C" fn dealloc(pd: *mut IbvPd) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { own(pd) }.and_then(|own| {
        own.clone().destroy().wait()?;
        // SAFETY: as the caller promises.
        unsafe { PdObject::destroy(pd) };
        Ok(())
    }))
}

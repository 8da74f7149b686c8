//! Protection domains, and the structures that are other names for one: parent domains and imported domains.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use verbs_api::Pd;

use crate::abi::{IbvContext, IbvParentDomainInitAttr, IbvPd, IbvTd};
use crate::context;
use crate::errno::{Errno, code, pointer};
use crate::object::Object;

/// A protection domain: its public structure and the library's part.
type PdObject = Object<IbvPd, State>;

/// The library's part of a protection domain.
struct State {
    pd: Pd,
    kind: Kind,
    // The number of parent domains that are based on it.
    parents: AtomicU32,
}

enum Kind {
    Own,
    Imported,
    ParentOf(*mut IbvPd),
}

/// The PD that the program's pointer stands for.
///
/// # Errors
/// The pointer is null, or the domain was freed.
///
/// # Safety
/// The domain is not freed while the result is used.
pub unsafe fn own<'a>(pd: *const IbvPd) -> Result<&'a Pd, Errno> {
    // SAFETY: as the caller promises.
    Ok(&unsafe { PdObject::own(pd) }?.pd)
}

fn create(context: *mut IbvContext, pd: Pd, kind: Kind) -> *mut IbvPd {
    let handle = pd.id().index;
    let parents = AtomicU32::new(0);
    PdObject::create(IbvPd { context, handle }, State { pd, kind, parents })
}

/// Implements `ibv_alloc_pd`.
///
/// # Safety
/// The device is not closed during the call.
pub unsafe extern "C-unwind" fn alloc(context: *mut IbvContext) -> *mut IbvPd {
    // SAFETY: as the caller promises.
    pointer(unsafe { context::own(context) }.and_then(|state| {
        let pd = state.context.alloc_pd().wait()?;
        state.shared.pds.lock().insert(pd.id().index, pd.clone());
        Ok(create(context, pd, Kind::Own))
    }))
}

/// Implements `ibv_dealloc_pd`.
///
/// # Safety
/// The program does not use the domain after this call.
pub unsafe extern "C-unwind" fn dealloc(pd: *mut IbvPd) -> c_int {
    let end = |state: &State| {
        if state.parents.load(Ordering::Acquire) > 0 {
            return Err(Errno::BUSY);
        }
        match state.kind {
            Kind::Own => {
                // SAFETY: live, as was seen; a domain is live, so its device is.
                let device = unsafe { context::own((*pd).context) }?;
                let known = device.shared.pds.lock().remove(&state.pd.id().index);
                if let Err(error) = state.pd.clone().destroy().wait() {
                    if let Some(known) = known {
                        device.shared.pds.lock().insert(known.id().index, known);
                    }
                    return Err(error.into());
                }
            }
            Kind::ParentOf(base) => {
                // SAFETY: a domain with parents is not freed.
                if let Ok(base) = unsafe { PdObject::own(base) } {
                    base.parents.fetch_sub(1, Ordering::AcqRel);
                }
            }
            Kind::Imported => {}
        }
        Ok(())
    };
    // SAFETY: as the caller promises.
    code(unsafe { PdObject::end(pd, end) })
}

/// Implements `ibv_import_pd`: another structure for the domain with this handle.
///
/// # Safety
/// The device is not closed during the call.
pub unsafe extern "C-unwind" fn import(context: *mut IbvContext, handle: u32) -> *mut IbvPd {
    // SAFETY: as the caller promises.
    pointer(unsafe { context::own(context) }.and_then(|state| {
        let known = state.shared.pds.lock().get(&handle).cloned();
        Ok(create(
            context,
            known.ok_or(Errno(libc::ENOENT))?,
            Kind::Imported,
        ))
    }))
}

/// Implements `ibv_unimport_pd`.
///
/// # Safety
/// The program does not use the structure after this call.
pub unsafe extern "C-unwind" fn unimport(pd: *mut IbvPd) {
    // SAFETY: as the caller promises.
    let is_imported =
        unsafe { PdObject::own(pd) }.is_ok_and(|own| matches!(own.kind, Kind::Imported));
    if is_imported {
        // SAFETY: as the caller promises.
        unsafe { PdObject::destroy(pd) };
    }
}

const ALLOCATORS: u32 = 1;
const PD_CONTEXT: u32 = 1 << 1;

/// Implements the slot `alloc_parent_domain` of `verbs_context`. The allocators that the program passes are not called,
/// because queues are in the library's own memory.
///
/// # Safety
/// `attr` is null or readable, and the domain is not freed during the call.
pub unsafe extern "C-unwind" fn alloc_parent(
    context: *mut IbvContext,
    attr: *const IbvParentDomainInitAttr,
) -> *mut IbvPd {
    // SAFETY: as the caller promises.
    pointer(
        unsafe { attr.as_ref() }
            .ok_or(Errno::INVAL)
            .and_then(|attr| {
                if attr.comp_mask & !(ALLOCATORS | PD_CONTEXT) != 0 {
                    return Err(Errno::INVAL);
                }
                // SAFETY: as the caller promises.
                let base = unsafe { PdObject::own(attr.pd) }?;
                base.parents.fetch_add(1, Ordering::AcqRel);
                Ok(create(context, base.pd.clone(), Kind::ParentOf(attr.pd)))
            }),
    )
}

/// Implements the slot `alloc_td` of `verbs_context`. By a thread domain the program promises to use its objects from one
/// thread at a time; this library makes no use of that.
///
/// # Safety
/// The device is not closed during the call.
pub unsafe extern "C-unwind" fn alloc_td(
    context: *mut IbvContext,
    _attr: *const c_void,
) -> *mut IbvTd {
    // SAFETY: as the caller promises.
    let checked = unsafe { context::own(context) };
    pointer(checked.map(|_| Object::<IbvTd, ()>::create(IbvTd { context }, ())))
}

/// Implements the slot `dealloc_td` of `verbs_context`.
///
/// # Safety
/// The program does not use the structure after this call.
pub unsafe extern "C-unwind" fn dealloc_td(td: *mut IbvTd) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { Object::<IbvTd, ()>::own(td) }.map(|()| {
        // SAFETY: as the caller promises.
        unsafe { Object::<IbvTd, ()>::destroy(td) };
    }))
}

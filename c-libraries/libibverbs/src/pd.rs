//! Protection domains, and the parent domains and imported domains that are other names for them.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use verbs_api::Pd;

use crate::abi::{IbvContext, IbvParentDomainInitAttr, IbvPd, IbvTd};
use crate::context;
use crate::errno::{Errno, code, pointer};
use crate::object::Object;

/// The layout of a domain.
type PdObject = Object<IbvPd, State>;

/// Our part of it.
struct State {
    pd: Pd,
    kind: Kind,
    // Parent domains made of it.
    parents: AtomicU32,
}

enum Kind {
    Own,
    Imported,
    ParentOf(*mut IbvPd),
}

/// Our part of a domain.
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

/// `ibv_alloc_pd`.
///
/// # Safety
/// The device is not closed meanwhile.
pub unsafe extern "C-unwind" fn alloc(context: *mut IbvContext) -> *mut IbvPd {
    // SAFETY: as the caller promises.
    pointer(unsafe { context::own(context) }.and_then(|state| {
        let pd = state.context.alloc_pd().wait()?;
        state.shared.pds.lock().insert(pd.id().index, pd.clone());
        Ok(create(context, pd, Kind::Own))
    }))
}

/// `ibv_dealloc_pd`.
///
/// # Safety
/// The domain is not used any more.
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

/// `ibv_import_pd`: the domain of a handle, under another name.
///
/// # Safety
/// The device is not closed meanwhile.
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

/// `ibv_unimport_pd`.
///
/// # Safety
/// The structure is not used any more.
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

/// The slot `alloc_parent_domain`. Queues lie in the device's memory: allocators of the program are not called.
///
/// # Safety
/// `attr` is null or readable, and the domain is not freed meanwhile.
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

/// The slot `alloc_td`: the program promises to use objects made with it from one thread only, which needs nothing here.
///
/// # Safety
/// The device is not closed meanwhile.
pub unsafe extern "C-unwind" fn alloc_td(
    context: *mut IbvContext,
    _attr: *const c_void,
) -> *mut IbvTd {
    // SAFETY: as the caller promises.
    let checked = unsafe { context::own(context) };
    pointer(checked.map(|_| Object::<IbvTd, ()>::create(IbvTd { context }, ())))
}

/// The slot `dealloc_td`.
///
/// # Safety
/// The structure is not used any more.
pub unsafe extern "C-unwind" fn dealloc_td(td: *mut IbvTd) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { Object::<IbvTd, ()>::own(td) }.map(|()| {
        // SAFETY: as the caller promises.
        unsafe { Object::<IbvTd, ()>::destroy(td) };
    }))
}

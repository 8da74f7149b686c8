//! Device memory, which programs access by copies and work requests, not by pointers.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::slice;

use polyverbs::emulated::Unshared;
use verbs_api::{Access, Memory, MrOptions};

use crate::abi::{IbvAllocDmAttr, IbvContext, IbvDm, IbvMr, IbvPd};
use crate::entry::slot;
use crate::errno::{Errno, code, minus_one, pointer};
use crate::object::Object;
use crate::{buf, context, mr, pd};

/// The most bytes of one allocation of device memory.
pub const MAX_SIZE: u64 = 1 << 20;

// Copies to and from device memory begin and end at multiples of this number of bytes.
const ALIGNMENT: u64 = 4;

/// An allocation of device memory: its public structure and the library's part.
type DmObject = Object<IbvDm, State>;

struct State {
    memory: Memory,
    /// The file with the memory, which a program exports; `None` if it is imported, or if the system refuses such files.
    file: Option<Unshared>,
    is_imported: bool,
}

fn create(context: *mut IbvContext, handle: u32, own: State) -> *mut IbvDm {
    let c = IbvDm {
        context,
        memcpy_to_dm: slot!("ibv_memcpy_to_dm" ("dm dm_offset:w host_addr length:z") Number => copy_to),
        memcpy_from_dm: slot!("ibv_memcpy_from_dm" ("host_addr dm dm_offset:w length:z") Number => copy_from),
        comp_mask: 0,
        handle,
    };
    DmObject::create(c, own)
}

/// Implements the slot `alloc_dm` of `verbs_context`.
///
/// # Safety
/// `attr` is null or readable, and the device is not closed during the call.
pub unsafe extern "C-unwind" fn alloc(
    context: *mut IbvContext,
    attr: *const IbvAllocDmAttr,
) -> *mut IbvDm {
    // SAFETY: as the caller promises.
    pointer(unsafe { context::own(context) }.and_then(|state| {
        // SAFETY: as the caller promises.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        if attr.comp_mask != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if attr.length == 0 || attr.length as u64 > MAX_SIZE || attr.log_align_req > 12 {
            return Err(Errno::INVAL);
        }
        let (memory, file) = buf::shareable(attr.length)?;
        let handle = state.shared.next_handle();
        state.shared.dms.lock().insert(handle, memory.clone());
        let own = State {
            memory,
            file,
            is_imported: false,
        };
        Ok(create(context, handle, own))
    }))
}

/// Implements the slot `free_dm` of `verbs_context`. MRs of the allocation keep its memory until they are deregistered.
///
/// # Safety
/// The program does not use the allocation after this call.
pub unsafe extern "C-unwind" fn free(dm: *mut IbvDm) -> c_int {
    let end = |state: &State| {
        if !state.is_imported {
            // SAFETY: live, as was seen; device memory is live, so its device is.
            let device = unsafe { context::own((*dm).context) }?;
            // SAFETY: live, as was seen.
            device.shared.dms.lock().remove(&unsafe { (*dm).handle });
        }
        Ok(())
    };
    // SAFETY: as the caller promises.
    code(unsafe { DmObject::end(dm, end) })
}

/// Implements `ibv_import_dm`.
///
/// # Safety
/// The device is not closed during the call.
pub unsafe extern "C-unwind" fn import(context: *mut IbvContext, handle: u32) -> *mut IbvDm {
    // SAFETY: as the caller promises.
    pointer(unsafe { context::own(context) }.and_then(|state| {
        let known = state.shared.dms.lock().get(&handle).cloned();
        let memory = known.ok_or(Errno(libc::ENOENT))?;
        let own = State {
            memory,
            file: None,
            is_imported: true,
        };
        Ok(create(context, handle, own))
    }))
}

/// Implements `ibv_dm_export_dmabuf_fd`: another process maps the file, and registers it by `ibv_reg_dmabuf_mr`.
///
/// # Safety
/// The allocation is not freed during the call.
pub unsafe extern "C-unwind" fn export_fd(dm: *mut IbvDm) -> c_int {
    // SAFETY: as the caller promises.
    minus_one(unsafe { DmObject::own(dm) }.and_then(|state| {
        let file = state.file.as_ref();
        buf::export(file.ok_or(Errno::OPNOTSUPP)?)
    }))
}

/// Implements `ibv_unimport_dm`.
///
/// # Safety
/// The program does not use the structure after this call.
pub unsafe extern "C-unwind" fn unimport(dm: *mut IbvDm) {
    // SAFETY: as the caller promises.
    if unsafe { DmObject::own(dm) }.is_ok_and(|state| state.is_imported) {
        // SAFETY: as the caller promises.
        unsafe { DmObject::destroy(dm) };
    }
}

// Checks that a copy of `length` bytes at `offset` is aligned. Returns the offset.
fn place(offset: u64, length: usize) -> Result<usize, Errno> {
    if !offset.is_multiple_of(ALIGNMENT) || !(length as u64).is_multiple_of(ALIGNMENT) {
        return Err(Errno::INVAL);
    }
    usize::try_from(offset).map_err(|_| Errno::INVAL)
}

unsafe extern "C-unwind" fn copy_to(
    dm: *mut IbvDm,
    offset: u64,
    source: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the program frees it after this.
    code(unsafe { DmObject::own(dm) }.and_then(|state| {
        let offset = place(offset, length)?;
        // SAFETY: as many bytes of the program's, which it does not write meanwhile.
        let source = unsafe { slice::from_raw_parts(source.cast::<u8>(), length) };
        state.memory.write(offset, source).map_err(|_| Errno::INVAL)
    }))
}

unsafe extern "C-unwind" fn copy_from(
    target: *mut c_void,
    dm: *mut IbvDm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the program frees it after this.
    code(unsafe { DmObject::own(dm) }.and_then(|state| {
        let offset = place(offset, length)?;
        // SAFETY: as many bytes of the program's, which it uses after this only.
        let target = unsafe { slice::from_raw_parts_mut(target.cast::<u8>(), length) };
        state.memory.read(offset, target).map_err(|_| Errno::INVAL)
    }))
}

/// Implements the slot `reg_dm_mr` of `verbs_context`: addresses in such an MR are offsets in the allocation.
///
/// # Safety
/// Neither the domain nor the allocation is freed during the call.
pub unsafe extern "C-unwind" fn register(
    pd: *mut IbvPd,
    dm: *mut IbvDm,
    offset: u64,
    length: usize,
    flags: c_uint,
) -> *mut IbvMr {
    // SAFETY: as the caller promises.
    pointer(unsafe { pd::own(pd) }.and_then(|own| {
        // SAFETY: as the caller promises.
        let state = unsafe { DmObject::own(dm) }?;
        let rights = mr::rights(flags)?;
        if !rights.contains(Access::ZERO_BASED) {
            return Err(Errno::INVAL);
        }
        let range = state.memory.range(place(offset, length)?, length);
        let options = MrOptions::new(rights - Access::ZERO_BASED).zero_based();
        let range = range.map_err(|_| Errno::INVAL)?;
        let region = own.register_with(range.clone(), options).wait()?;
        // SAFETY: the domain is live, as was seen.
        unsafe { mr::made_of(pd, std::ptr::null_mut(), length, region, range, rights) }
    }))
}

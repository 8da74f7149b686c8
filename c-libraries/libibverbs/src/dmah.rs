//! DMA handles: hints about where a device should place what it writes. A device in software has no use for them; it accepts
//! them, and the trace shows them.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::available_parallelism;

use crate::abi::{IbvContext, IbvDmah, IbvDmahInitAttr};
use crate::context;
use crate::errno::{Errno, code, pointer};
use crate::object::Object;

/// A DMA handle: its public structure and the number of MRs that use it.
type DmahObject = Object<IbvDmah, Arc<AtomicU32>>;

/// A use of a DMA handle by an MR, which ends when this is dropped.
pub(crate) struct Use(Arc<AtomicU32>);

impl Use {
    /// Begins a use by an MR of this context.
    ///
    /// # Errors
    /// `EINVAL`: the handle was freed, or is of another device.
    ///
    /// # Safety
    /// The handle is not freed during the call.
    pub(crate) unsafe fn begin(
        dmah: *const IbvDmah,
        context: *const IbvContext,
    ) -> Result<Self, Errno> {
        // SAFETY: as the caller promises.
        let uses = unsafe { DmahObject::own(dmah) }?;
        // SAFETY: live, as was seen; a handle is live, so its device is.
        let (its, wanted) = unsafe { (context::own((*dmah).context)?, context::own(context)?) };
        if !Arc::ptr_eq(&its.shared, &wanted.shared) {
            return Err(Errno::INVAL);
        }
        uses.fetch_add(1, Ordering::AcqRel);
        Ok(Self(Arc::clone(uses)))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

const CPU_ID: u32 = 1;
const PROCESSING_HINTS: u32 = 1 << 1;
const MEMORY_TYPE: u32 = 1 << 2;
const PERSISTENT: u8 = 1;

fn check(attr: &IbvDmahInitAttr) -> Result<(), Errno> {
    let given = |bit| attr.comp_mask & bit != 0;
    if attr.comp_mask & !(CPU_ID | PROCESSING_HINTS | MEMORY_TYPE) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let processors = available_parallelism().map_or(1, |count| count.get());
    let is_wrong = given(CPU_ID) && attr.cpu_id as usize >= processors
        || given(MEMORY_TYPE) && attr.tph_mem_type > PERSISTENT;
    match is_wrong {
        true => Err(Errno::INVAL),
        false => Ok(()),
    }
}

/// Implements `ibv_alloc_dmah`.
///
/// # Safety
/// `attr` is null or readable, and the device is not closed during the call.
pub unsafe extern "C-unwind" fn alloc(
    context: *mut IbvContext,
    attr: *const IbvDmahInitAttr,
) -> *mut IbvDmah {
    // SAFETY: as the caller promises.
    let attr = unsafe { context::own(context).map(|_| attr.as_ref()) };
    let checked = attr.and_then(|attr| check(attr.ok_or(Errno::INVAL)?));
    pointer(checked.map(|()| DmahObject::create(IbvDmah { context }, Arc::default())))
}

/// Implements `ibv_dealloc_dmah`. Fails with `EBUSY` while an MR uses the handle.
///
/// # Safety
/// The program does not use the handle after this call.
pub unsafe extern "C-unwind" fn dealloc(dmah: *mut IbvDmah) -> c_int {
    let end = |uses: &Arc<AtomicU32>| match uses.load(Ordering::Acquire) {
        0 => Ok(()),
        _ => Err(Errno::BUSY),
    };
    // SAFETY: as the caller promises.
    code(unsafe { DmahObject::end(dmah, end) })
}

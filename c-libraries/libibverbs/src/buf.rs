//! Buffers of the library's own, which a program registers, and which another process can map.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd as _, IntoRawFd as _};
use std::ptr;

use polyverbs::emulated::Unshared;
use verbs_api::Memory;
use verbs_api::memory::MemoryRange;
use verbs_api::provider::errno_of;

use crate::abi::{IbvBuf, IbvPd};
use crate::errno::{Errno, minus_one, pointer};
use crate::object::Object;
use crate::pd;

/// A buffer: the program knows only its address.
type BufObject = Object<IbvBuf, State>;

struct State {
    pd: *mut IbvPd,
    memory: Memory,
    file: Option<Unshared>,
}

/// Allocates memory in a file of its own. Where the system refuses such files, as some sandboxes do, the memory has none.
///
/// # Errors
/// `ENOMEM`: there is not so much memory.
pub(crate) fn shareable(length: usize) -> Result<(Memory, Option<Unshared>), Errno> {
    let mut memory = None;
    let file = Unshared::made(|| {
        let (made, file) = Memory::shared(length)?;
        memory = Some(made);
        Ok(file)
    });
    match (memory, file) {
        (Some(memory), Ok(file)) => Ok((memory, Some(file))),
        _ => Ok((Memory::zeroed(length)?, None)),
    }
}

/// A new descriptor of the file, which the program closes.
pub(crate) fn export(file: &Unshared) -> Result<c_int, Errno> {
    let copy = file.as_fd().try_clone_to_owned();
    let copy = copy.map_err(|error| Errno(errno_of(&error)))?;
    Ok(copy.into_raw_fd())
}

/// Implements `ibv_alloc_buf`: returns the address of the buffer, and in `buf` its handle.
///
/// # Safety
/// `buf` is null or writable, and the domain is not freed during the call.
pub unsafe extern "C-unwind" fn alloc(
    pd: *mut IbvPd,
    size: usize,
    buf: *mut *mut IbvBuf,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    pointer(unsafe { pd::own(pd) }.and_then(|_| {
        if buf.is_null() || size == 0 {
            return Err(Errno::INVAL);
        }
        let (memory, file) = shareable(size)?;
        let address = ptr::with_exposed_provenance_mut(memory.address() as usize);
        let made = BufObject::create(IbvBuf { _dummy: 0 }, State { pd, memory, file });
        // SAFETY: as the caller promises.
        unsafe { buf.write(made) };
        Ok(address)
    }))
}

/// Implements `ibv_free_buf`. MRs of the buffer keep its memory until they are deregistered.
///
/// # Safety
/// The program does not use the buffer after this call.
pub unsafe extern "C-unwind" fn free(buf: *mut IbvBuf) {
    // SAFETY: as the caller promises.
    if let Err(errno) = unsafe { BufObject::end(buf, |_| Ok(())) } {
        errno.set();
    }
}

/// Implements `ibv_export_buf_dmabuf_fd`.
///
/// # Safety
/// The buffer is not freed during the call.
pub unsafe extern "C-unwind" fn export_fd(buf: *mut IbvBuf) -> c_int {
    // SAFETY: as the caller promises.
    minus_one(unsafe { BufObject::own(buf) }.and_then(|state| {
        let file = state.file.as_ref();
        export(file.ok_or(Errno(libc::ENODATA))?)
    }))
}

/// The `length` bytes at `addr` of a buffer of this domain, to be registered.
///
/// # Errors
/// `EINVAL`: the buffer was freed, is of another domain, or does not have all of the bytes.
///
/// # Safety
/// The buffer is not freed during the call.
pub(crate) unsafe fn range(
    buf: *const IbvBuf,
    pd: *const IbvPd,
    addr: *const c_void,
    length: usize,
) -> Result<MemoryRange, Errno> {
    // SAFETY: as the caller promises.
    let state = unsafe { BufObject::own(buf) }?;
    let offset = addr.addr().checked_sub(state.memory.address() as usize);
    match offset {
        Some(offset) if ptr::eq(pd, state.pd) => {
            let range = state.memory.range(offset, length);
            range.map_err(|_| Errno::INVAL)
        }
        _ => Err(Errno::INVAL),
    }
}

//! Memory regions, for C programs.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use verbs_api::provider::{Mutex, errno_of};
use verbs_api::{
    Access, Memory, Mr, MrOptions,
    memory::{MemoryRange, MrReregister, make_resident},
};

use crate::abi::{IbvBuf, IbvDmah, IbvMr, IbvMrInitAttr, IbvPd, IbvSge, access, mr_init_attr};
use crate::errno::{Errno, code, pointer};
use crate::kept::{Kept, page};
use crate::object::Object;
use crate::odp::{self, Advice};
use crate::sinks::Sinks;
use crate::{buf, context, dmah, pd};

/// An MR: its public structure and the library's part.
type MrObject = Object<IbvMr, State>;

struct State {
    mr: Mr,
    is_imported: bool,
    sink: Mutex<Sink>,
    /// Keeps the program's memory mapped; `None` if the region is memory of the library or the whole address space.
    kept: Mutex<Option<Kept>>,
    /// The memory of the library that the region is made of: device memory, a buffer, or the mapping of a dmabuf.
    memory: Mutex<Option<MemoryRange>>,
    /// The DMA handle that the program has named.
    _dmah: Option<dmah::Use>,
    is_on_demand: AtomicBool,
}

/// A second MR for the same memory, as the destination of RDMA reads, on devices that need it.
struct Sink {
    /// The access that the program's own MR grants.
    rights: Access,
    mr: Option<(Mr, Option<Kept>)>,
}

impl Sink {
    const NONE: Self = Self {
        rights: Access::empty(),
        mr: None,
    };
}

// The end of a process's address space: the lower half of 48 bits.
const ADDRESS_SPACE: usize = 1 << 47;

// The rkey is always the number of the MR, even if it grants no remote access yet: programs store the rkey and change the
// access later.

/// The MR that the program's pointer stands for.
///
/// # Errors
/// The pointer is null, or the region was deregistered.
///
/// # Safety
/// The region is not deregistered while the result is used.
pub unsafe fn own<'a>(mr: *const IbvMr) -> Result<&'a Mr, Errno> {
    // SAFETY: as the caller promises.
    Ok(&unsafe { MrObject::own(mr) }?.mr)
}

/// Converts the access flags of C, without those that are only hints.
///
/// # Errors
/// Unknown bits are set.
pub fn rights(flags: u32) -> Result<Access, Errno> {
    let hints = access::OPTIONAL | access::HUGETLB | access::ON_DEMAND;
    Access::from_bits(flags & !hints).ok_or(Errno::INVAL)
}

fn options(rights: Access, iova: u64) -> MrOptions {
    let options = MrOptions::new(rights);
    if rights.contains(Access::ZERO_BASED) {
        options
    } else {
        options.iova(iova)
    }
}

/// Makes the pages of a region resident, as a kernel device does by pinning them; writable, if any of these rights lets the
/// device write.
///
/// # Errors
/// `EFAULT`: a part is not mapped, is protected, or is beyond the end of its file.
fn check_pages(addr: *mut c_void, length: usize, rights: Access) -> Result<(), Errno> {
    let writing =
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::MW_BIND;
    match make_resident(addr.cast(), length, rights.intersects(writing)) {
        true => Ok(()),
        false => Err(Errno::FAULT),
    }
}

unsafe fn register(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
    hints: Option<dmah::Use>,
) -> Result<*mut IbvMr, Errno> {
    // SAFETY: as the caller promises.
    let own = unsafe { pd::own(pd) }?;
    let rights = rights(flags)?;
    let is_implicit = addr.is_null() && length == usize::MAX;
    // The whole address space, most of which is not mapped: such a region grants no remote access.
    if is_implicit && (flags & access::ON_DEMAND == 0 || rights.exposes()) {
        return Err(Errno::OPNOTSUPP);
    }
    // Linux's core demands this of every device, because a region is a list of whole pages.
    if !(addr.addr() as u64 ^ iova).is_multiple_of(page() as u64) {
        return Err(Errno::INVAL);
    }
    let reach = if is_implicit { ADDRESS_SPACE } else { length };
    if addr.addr().checked_add(reach).is_none() {
        return Err(Errno::INVAL);
    }
    if flags & access::ON_DEMAND == 0 {
        check_pages(addr, length, rights)?;
    }
    let mut options = options(rights, iova);
    if flags & access::ON_DEMAND != 0 {
        options = options.on_demand();
    }
    // SAFETY: the program keeps the memory until it has deregistered it, and accesses it as C does.
    let mr = unsafe { own.register_borrowed(addr.cast(), reach, options) }.wait()?;
    // SAFETY: the domain is live, as was seen.
    let made = unsafe { made(pd, addr, length, mr, hints) }?;
    if flags & access::ON_DEMAND != 0 {
        // SAFETY: just made.
        unsafe { note_on_demand(made, reach, rights) }?;
    }
    if !is_implicit {
        // SAFETY: just made.
        let state = unsafe { MrObject::own(made) }?;
        *state.kept.lock() = Some(Kept::new(addr, length, &state.mr));
        // SAFETY: as before.
        unsafe { add_first_sink(made, rights) }?;
    }
    Ok(made)
}

// Adds the second key of a region that the program does not know yet, which is deregistered on failure.
unsafe fn add_first_sink(made: *mut IbvMr, rights: Access) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    unsafe { add_sink(made, rights) }.inspect_err(|_| {
        // SAFETY: as the caller promises.
        unsafe { dereg(made) };
    })
}

// Registers a second key for the destinations of RDMA reads, on devices that need it, in place of the region's previous
// one.
unsafe fn add_sink(mr: *mut IbvMr, rights: Access) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    let (public, state) = unsafe { (&*mr, MrObject::own(mr)?) };
    // SAFETY: a region is live, so its device is.
    let device = unsafe { context::own(public.context) }?;
    let mut sink = state.sink.lock();
    sink.rights = rights;
    let Some(sinks) = &device.shared.sinks else {
        return Ok(());
    };
    if let Some((before, _kept)) = sink.mr.take() {
        before.deregister().wait()?;
    }
    if Sinks::serve(rights) {
        let options = options(rights | Access::REMOTE_WRITE, state.mr.iova());
        // SAFETY: a region is live, so its domain is.
        let pd = unsafe { pd::own(public.pd) }?;
        let memory = state.memory.lock().clone();
        let is_programs = memory.is_none();
        let made = match memory {
            Some(range) => pd.register_with(range, options),
            // SAFETY: as for the region itself.
            None => unsafe { pd.register_borrowed(public.addr.cast(), public.length, options) },
        };
        let made = made.wait()?;
        sinks.insert(public.lkey, made.lkey());
        let kept = is_programs.then(|| Kept::new(public.addr, public.length, &made));
        sink.mr = Some((made, kept));
    }
    Ok(())
}

/// Creates the public structure of an MR with these rights, which was made of memory of the library.
///
/// # Errors
/// The device was closed, or has no room for a second key.
///
/// # Safety
/// The domain is live.
pub unsafe fn made_of(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    mr: Mr,
    memory: MemoryRange,
    rights: Access,
) -> Result<*mut IbvMr, Errno> {
    // SAFETY: as the caller promises.
    unsafe { made_with(pd, addr, length, mr, memory, rights, None) }
}

unsafe fn made_with(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    mr: Mr,
    memory: MemoryRange,
    rights: Access,
    hints: Option<dmah::Use>,
) -> Result<*mut IbvMr, Errno> {
    // SAFETY: as the caller promises.
    let made = unsafe { made(pd, addr, length, mr, hints) }?;
    // SAFETY: just made.
    let state = unsafe { MrObject::own(made) }?;
    *state.memory.lock() = Some(memory);
    // SAFETY: just made.
    unsafe { add_first_sink(made, rights) }?;
    Ok(made)
}

// Creates the public structure of an MR.
unsafe fn made(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    mr: Mr,
    dmah: Option<dmah::Use>,
) -> Result<*mut IbvMr, Errno> {
    // SAFETY: as the caller promises.
    let context = unsafe { (*pd).context };
    // SAFETY: a domain is live, so its device is.
    let device = unsafe { context::own(context) }?;
    device.shared.mrs.lock().insert(mr.id().index, mr.clone());
    let c = IbvMr {
        context,
        pd,
        addr,
        length,
        handle: mr.id().index,
        lkey: mr.lkey().value(),
        rkey: mr.lkey().value(),
    };
    Ok(MrObject::create(
        c,
        State {
            mr,
            is_imported: false,
            sink: Mutex::new(Sink::NONE),
            kept: Mutex::new(None),
            memory: Mutex::new(None),
            _dmah: dmah,
            is_on_demand: AtomicBool::new(false),
        },
    ))
}

// The rights that an MR of a dmabuf may have.
const DMABUF_RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

fn mapped(fd: c_int, offset: u64, length: usize) -> Result<MemoryRange, Errno> {
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: the descriptor is used during this call only. If it is not open, the system says so.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    match Memory::map_file(file, offset, length) {
        Ok(memory) => Ok(memory.into()),
        Err(error) => Err(match errno_of(&error) {
            // The memory of a GPU, which processors cannot reach.
            libc::ENODEV | libc::ENOTTY => Errno::OPNOTSUPP,
            errno => Errno(errno),
        }),
    }
}

unsafe fn register_dmabuf(
    pd: *mut IbvPd,
    fd: c_int,
    offset: u64,
    length: usize,
    iova: u64,
    flags: u32,
    hints: Option<dmah::Use>,
) -> Result<*mut IbvMr, Errno> {
    // SAFETY: as the caller promises.
    let own = unsafe { pd::own(pd) }?;
    let rights = Access::from_bits(flags & !access::OPTIONAL).ok_or(Errno::INVAL)?;
    let is_same_place = (iova ^ offset).is_multiple_of(PAGE);
    if !DMABUF_RIGHTS.contains(rights) || !is_same_place {
        return Err(Errno::INVAL);
    }
    let range = mapped(fd, offset, length)?;
    let options = MrOptions::new(rights).iova(iova);
    let mr = own.register_with(range.clone(), options).wait()?;
    // As rdma-core reports it.
    let addr = std::ptr::without_provenance_mut(offset as usize);
    // SAFETY: the domain is live, as was seen.
    unsafe { made_with(pd, addr, length, mr, range, rights, hints) }
}

/// Implements `ibv_reg_dmabuf_mr`, for dmabufs that can be mapped, and for any other file in memory.
///
/// # Safety
/// The domain is not freed during the call.
pub unsafe extern "C-unwind" fn reg_dmabuf(
    pd: *mut IbvPd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    flags: c_int,
) -> *mut IbvMr {
    // SAFETY: as the caller promises.
    pointer(unsafe { register_dmabuf(pd, fd, offset, length, iova, flags as u32, None) })
}

unsafe fn register_buf(
    pd: *mut IbvPd,
    attr: &Registration,
    hints: Option<dmah::Use>,
) -> Result<*mut IbvMr, Errno> {
    let (addr, length) = (attr.addr, attr.length);
    // SAFETY: as the caller promises.
    let (own, range) = unsafe { (pd::own(pd)?, buf::range(attr.buf, pd, addr, length)?) };
    let rights = rights(attr.flags)?;
    let options = options(rights, addr as u64);
    let mr = own.register_with(range.clone(), options).wait()?;
    // SAFETY: the domain is live, as was seen.
    unsafe { made_with(pd, addr, length, mr, range, rights, hints) }
}

/// The arguments of `ibv_reg_mr_ex`.
struct Registration {
    mask: u64,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    fd: c_int,
    fd_offset: u64,
    flags: u32,
    dmah: *mut IbvDmah,
    buf: *mut IbvBuf,
}

impl Registration {
    // Reads only the fields that are given: of an older program, the structure ends before the last.
    unsafe fn read(attr: *const IbvMrInitAttr) -> Result<Self, Errno> {
        if attr.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: as the caller promises.
        unsafe {
            let mask = (*attr).comp_mask;
            if mask & !mr_init_attr::ALL != 0 {
                return Err(Errno::OPNOTSUPP);
            }
            Ok(Self {
                mask,
                addr: (*attr).addr,
                length: (*attr).length,
                iova: (*attr).iova,
                fd: (*attr).fd,
                fd_offset: (*attr).fd_offset,
                flags: (*attr).access as u32,
                dmah: (*attr).dmah,
                buf: match mask & mr_init_attr::BUF {
                    0 => std::ptr::null_mut(),
                    _ => (*attr).buf,
                },
            })
        }
    }

    const fn has(&self, field: u64) -> bool {
        self.mask & field != 0
    }

    unsafe fn register(&self, pd: *mut IbvPd) -> Result<*mut IbvMr, Errno> {
        // SAFETY: as the caller promises.
        unsafe {
            pd::own(pd)?;
            let hints = match self.has(mr_init_attr::DMAH) {
                true => Some(dmah::Use::begin(self.dmah, (*pd).context)?),
                false => None,
            };
            // The memory is named once: by an address, by a file with an offset, or by a buffer with an address.
            let named = self.mask & (mr_init_attr::ADDR | FILE | mr_init_attr::BUF);
            let is_mapped = self.has(mr_init_attr::IOVA);
            match named {
                mr_init_attr::ADDR => {
                    let iova = match is_mapped {
                        true => self.iova,
                        false => self.addr as u64,
                    };
                    register(pd, self.addr, self.length, iova, self.flags, hints)
                }
                FILE if is_mapped => {
                    let (offset, iova) = (self.fd_offset, self.iova);
                    register_dmabuf(pd, self.fd, offset, self.length, iova, self.flags, hints)
                }
                ADDR_IN_BUF if !is_mapped => register_buf(pd, self, hints),
                _ => Err(Errno::INVAL),
            }
        }
    }
}

const FILE: u64 = mr_init_attr::FD | mr_init_attr::FD_OFFSET;
const ADDR_IN_BUF: u64 = mr_init_attr::ADDR | mr_init_attr::BUF;
const PAGE: u64 = 4096;

/// Implements `ibv_reg_mr_ex`.
///
/// # Safety
/// `attr` is null or readable, as far as its mask says, and what it names belongs to the program until the region is deregistered.
pub unsafe extern "C-unwind" fn reg_ex(pd: *mut IbvPd, attr: *const IbvMrInitAttr) -> *mut IbvMr {
    // SAFETY: as the caller promises.
    pointer(unsafe { Registration::read(attr).and_then(|attr| attr.register(pd)) })
}

/// Implements `ibv_reg_buf_mr`.
///
/// # Safety
/// Neither the domain nor the buffer is freed during the call.
pub unsafe extern "C-unwind" fn reg_buf(
    pd: *mut IbvPd,
    buf: *mut IbvBuf,
    addr: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut IbvMr {
    let attr = Registration {
        mask: ADDR_IN_BUF,
        addr,
        length,
        iova: 0,
        fd: -1,
        fd_offset: 0,
        flags: flags as u32,
        dmah: std::ptr::null_mut(),
        buf,
    };
    // SAFETY: as the caller promises.
    pointer(unsafe { attr.register(pd) })
}

/// Implements `ibv_reg_mr`.
///
/// # Safety
/// `length` bytes from `addr` belong to the program until the region is deregistered.
pub unsafe extern "C-unwind" fn reg(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut IbvMr {
    // SAFETY: as the caller promises.
    pointer(unsafe { register(pd, addr, length, addr as u64, flags as u32, None) })
}

/// Implements `ibv_reg_mr_iova`.
///
/// # Safety
/// As for [`reg`].
pub unsafe extern "C-unwind" fn reg_iova(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_int,
) -> *mut IbvMr {
    // SAFETY: as the caller promises.
    pointer(unsafe { register(pd, addr, length, iova, flags as u32, None) })
}

/// Implements `ibv_reg_mr_iova2`.
///
/// # Safety
/// As for [`reg`].
pub unsafe extern "C-unwind" fn reg_iova2(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> *mut IbvMr {
    // SAFETY: as the caller promises.
    pointer(unsafe { register(pd, addr, length, iova, flags, None) })
}

/// Implements `ibv_dereg_mr`.
///
/// # Safety
/// The program does not use the structure after this call.
pub unsafe extern "C-unwind" fn dereg(mr: *mut IbvMr) -> c_int {
    let end = |state: &State| {
        if !state.is_imported {
            state.mr.clone().deregister().wait()?;
            // SAFETY: live, as was seen; a region is live, so its device is.
            let device = unsafe { context::own((*mr).context) }?;
            device.shared.mrs.lock().remove(&state.mr.id().index);
            // SAFETY: live, as was seen.
            device.shared.on_demand.remove(unsafe { (*mr).lkey });
            if let (Some(sinks), Some(sink)) = (&device.shared.sinks, state.sink.lock().mr.take()) {
                // SAFETY: live, as was seen.
                sinks.remove(unsafe { (*mr).lkey });
                let (sink, _kept) = sink;
                sink.deregister().wait()?;
            }
        }
        Ok(())
    };
    // SAFETY: as the caller promises.
    code(unsafe { MrObject::end(mr, end) })
}

/// Implements `ibv_import_mr`: another structure for the MR with this handle. Its address and length are not reported.
///
/// # Safety
/// The domain is not freed during the call.
pub unsafe extern "C-unwind" fn import(pd: *mut IbvPd, handle: u32) -> *mut IbvMr {
    // SAFETY: as the caller promises.
    pointer(unsafe { pd::own(pd) }.and_then(|_| {
        // SAFETY: the domain is live, as was seen.
        let context = unsafe { (*pd).context };
        // SAFETY: a domain is live, so its device is.
        let device = unsafe { context::own(context) }?;
        let known = device.shared.mrs.lock().get(&handle).cloned();
        let mr = known.ok_or(Errno(libc::ENOENT))?;
        let c = IbvMr {
            context,
            pd,
            addr: std::ptr::null_mut(),
            length: mr.len(),
            handle,
            lkey: mr.lkey().value(),
            rkey: mr.lkey().value(),
        };
        let is_imported = true;
        let sink = Mutex::new(Sink::NONE);
        let state = State {
            mr,
            is_imported,
            sink,
            kept: Mutex::new(None),
            memory: Mutex::new(None),
            _dmah: None,
            is_on_demand: AtomicBool::new(false),
        };
        Ok(MrObject::create(c, state))
    }))
}

/// Implements `ibv_unimport_mr`.
///
/// # Safety
/// The program does not use the structure after this call.
pub unsafe extern "C-unwind" fn unimport(mr: *mut IbvMr) {
    // SAFETY: as the caller promises.
    if unsafe { MrObject::own(mr) }.is_ok_and(|state| state.is_imported) {
        // SAFETY: as the caller promises.
        unsafe { MrObject::destroy(mr) };
    }
}

const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 1 << 1;
const CHANGE_ACCESS: c_int = 1 << 2;
// Results of `ibv_rereg_mr`: an argument is invalid and the region is unchanged, or the device has failed.
const WRONG_ARGUMENT: c_int = -1;
const FAILED: c_int = -4;

/// Implements `ibv_rereg_mr`.
///
/// # Safety
/// As for [`reg`], and the region is not deregistered during the call.
pub unsafe extern "C-unwind" fn rereg(
    mr: *mut IbvMr,
    flags: c_int,
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    access_flags: c_int,
) -> c_int {
    let change = || {
        if flags & !(CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS) != 0 || flags == 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: as the caller promises.
        let (state, public) = unsafe { (MrObject::own(mr)?, &*mr) };
        let own = &state.mr;
        let mut change = MrReregister::new();
        let (mut memory, mut granted) = ((public.addr, public.length), state.sink.lock().rights);
        if flags & CHANGE_TRANSLATION != 0 {
            if addr.is_null() || length == 0 || addr.addr().checked_add(length).is_none() {
                return Err(Errno::INVAL);
            }
            // SAFETY: the program keeps the memory until it has deregistered it.
            change = unsafe { change.borrowed(addr.cast(), length) }.iova(addr as u64);
            memory = (addr, length);
        }
        if flags & CHANGE_PD != 0 {
            // SAFETY: as the caller promises.
            change = change.pd(unsafe { pd::own(pd) }?);
        }
        if flags & CHANGE_ACCESS != 0 {
            granted = rights(access_flags as u32)?;
            change = change.access(granted);
        }
        let is_programs = flags & CHANGE_TRANSLATION != 0 || state.kept.lock().is_some();
        if is_programs && access_flags as u32 & access::ON_DEMAND == 0 {
            check_pages(memory.0, memory.1, granted)?;
        }
        Ok((own, change))
    };
    let (own, change) = match change() {
        Ok(change) => change,
        Err(errno) => {
            errno.set();
            return WRONG_ARGUMENT;
        }
    };
    if let Err(error) = own.rereg(change).wait() {
        let errno = Errno::from(error);
        errno.set();
        return if errno == Errno::INVAL {
            WRONG_ARGUMENT
        } else {
            FAILED
        };
    }
    // SAFETY: live, as was seen.
    let public = unsafe { &mut *mr };
    let before = public.lkey;
    (public.lkey, public.rkey) = (own.lkey().value(), own.lkey().value());
    if flags & CHANGE_TRANSLATION != 0 {
        (public.addr, public.length) = (addr, length);
    }
    if flags & CHANGE_PD != 0 {
        public.pd = pd;
    }
    // SAFETY: live, as was seen.
    if let (true, Ok(state)) = (flags & CHANGE_TRANSLATION != 0, unsafe {
        MrObject::own(mr)
    }) {
        *state.memory.lock() = None;
    }
    // SAFETY: live, as was seen.
    unsafe {
        let changed = flags & CHANGE_ACCESS != 0;
        let granted = changed.then(|| rights(access_flags as u32).ok()).flatten();
        change_on_demand(mr, before, granted);
    }
    // SAFETY: as the caller promises.
    let changed = unsafe { change_sink(mr, before, flags, access_flags) };
    if flags & CHANGE_TRANSLATION != 0 {
        // SAFETY: live, as was seen.
        let state = unsafe { MrObject::own(mr) };
        if let Ok(state) = state {
            *state.kept.lock() = Some(Kept::new(addr, length, &state.mr));
        }
    }
    match changed {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            FAILED
        }
    }
}

// Notes what a region on demand is after its access, its memory or its domain has changed.
unsafe fn change_on_demand(mr: *mut IbvMr, before: u32, rights: Option<Access>) {
    // SAFETY: as the caller promises; a region is live, so its device is.
    let (public, state, device) = unsafe {
        let Ok(state) = MrObject::own(mr) else { return };
        let Ok(device) = context::own((*mr).context) else {
            return;
        };
        (&*mr, state, device)
    };
    if state.is_on_demand.load(Ordering::Relaxed) {
        device.shared.on_demand.remove(before);
        let rights = rights.unwrap_or(state.sink.lock().rights);
        let reach = match public.length {
            usize::MAX => ADDRESS_SPACE,
            length => length,
        };
        // SAFETY: as the caller promises. The region is live, so this cannot fail.
        let _ = unsafe { note_on_demand(mr, reach, rights) };
    }
}

// Replaces the second key of a region for the destinations of RDMA reads, after its access or memory has changed.
unsafe fn change_sink(
    mr: *mut IbvMr,
    before: u32,
    flags: c_int,
    access: c_int,
) -> Result<(), Errno> {
    // SAFETY: as the caller promises; a region is live, so its device is.
    let (state, device) = unsafe { (MrObject::own(mr)?, context::own((*mr).context)?) };
    if let Some(sinks) = &device.shared.sinks {
        sinks.remove(before);
    }
    let given = state.sink.lock().rights;
    let rights = if flags & CHANGE_ACCESS != 0 {
        rights(access as u32)?
    } else {
        given
    };
    // SAFETY: as the caller promises.
    unsafe { add_sink(mr, rights) }
}

/// Implements the slot `advise_mr` of `verbs_context`: makes pages of regions on demand present. With the flag
/// `IBV_ADVISE_MR_FLAG_FLUSH` the call reports pages that are not there; without it, prefetching is best effort.
///
/// # Safety
/// `count` entries from `list` are readable.
pub unsafe extern "C-unwind" fn advise(
    pd: *mut IbvPd,
    advice: c_int,
    flags: u32,
    list: *const IbvSge,
    count: u32,
) -> c_int {
    const FLUSH: u32 = 1;
    // SAFETY: as the caller promises.
    code(unsafe { pd::own(pd) }.and_then(|own| {
        let advice = match advice {
            0 => Advice::Read,
            1 => Advice::Write,
            2 => Advice::Present,
            _ => return Err(Errno::OPNOTSUPP),
        };
        if flags & !FLUSH != 0 || list.is_null() || count == 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: the domain is live, as was seen; a domain is live, so its device is.
        let device = unsafe { context::own((*pd).context) }?;
        // SAFETY: as the caller promises.
        let entries = unsafe { std::slice::from_raw_parts(list, count as usize) };
        let find = |sge: &IbvSge| {
            let at = device.shared.on_demand.find(sge, own.id(), advice)?;
            Ok((at, sge.length))
        };
        // Nothing is prefetched if an entry is wrong.
        let found: Vec<_> = entries.iter().map(find).collect::<Result<_, Errno>>()?;
        for (at, length) in found {
            let prefetched = odp::prefetch(at, length, advice);
            if flags & FLUSH != 0 {
                prefetched?;
            }
        }
        Ok(())
    }))
}

/// Notes a region on demand, for [`advise`].
unsafe fn note_on_demand(mr: *mut IbvMr, reach: usize, rights: Access) -> Result<(), Errno> {
    // SAFETY: as the caller promises; a region is live, so its domain and its device are.
    let (public, state) = unsafe { (&*mr, MrObject::own(mr)?) };
    // SAFETY: as above.
    let (device, pd) = unsafe { (context::own(public.context)?, pd::own(public.pd)?) };
    let region = odp::Region {
        pd: pd.id(),
        iova: state.mr.iova(),
        start: public.addr.expose_provenance(),
        length: reach,
        rights,
    };
    device.shared.on_demand.insert(public.lkey, region);
    state.is_on_demand.store(true, Ordering::Relaxed);
    Ok(())
}

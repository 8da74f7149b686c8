//! Keeps memory that a program unmaps or frees while it is registered, until its MRs are deregistered, as a kernel does
//! that has pinned the pages.
//!
//! The functions here interpose those of the C library in programs that are linked with the library. If they would remove
//! memory of an MR, they postpone that until the deregistration. Until then peers read the old content, and no other memory
//! is mapped at these addresses. If the program maps something at an address that it chooses, the MR there gets memory of
//! its own instead.
//!
//! These functions notice neither the memory that the C library unmaps by itself nor a free of less than a page. Accesses
//! of the library to such memory fail and do not end the process
//! ([`outlive_faults`](verbs_api::memory::copy::outlive_faults)).
// Each function has the contract of the C function of its name.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use verbs_api::memory::MrReregister;
use verbs_api::memory::copy::copy;
use verbs_api::provider::{Mutex, PerProcess};
use verbs_api::{Access, Memory, Mr, VerbError};

use crate::errno::Errno;

/// The registered memory of a process, and the memory whose removal is postponed. A child of a fork begins with none,
/// because peers cannot reach its memory.
#[derive(Default)]
struct Keeps {
    /// The number of MRs. While it is 0, no function looks into the table.
    regions: AtomicUsize,
    /// The number of ranges whose removal is postponed.
    waiting: AtomicUsize,
    table: Mutex<Table>,
}

static KEEPS: PerProcess<Keeps> = PerProcess::new(Keeps::default);

// The nodes of these maps are smaller than `LARGE`, so that freeing one does not need the table.
#[derive(Default)]
struct Table {
    /// The MRs by their start address and a unique number.
    regions: BTreeMap<(usize, u64), Region>,
    /// The length of the longest MR that there ever was, in bytes.
    longest: usize,
    made: u64,
    /// The addresses of MRs that have moved with their memory, by number.
    moved: BTreeMap<u64, usize>,
    /// The ranges whose removal is postponed: by start address, with the end address and how they are removed.
    waiting: BTreeMap<usize, (usize, Way)>,
}

struct Region {
    end: usize,
    mr: Mr,
}

/// How the program has removed memory: by `munmap`, `free`, or `shmdt`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Unmap,
    Free,
    /// By `shmdt`: it is a System V shared memory segment.
    Detach,
}

impl Table {
    fn has_region_in(&self, range: &Range<usize>) -> bool {
        self.region_in(range).is_some()
    }

    fn region_in(&self, range: &Range<usize>) -> Option<((usize, u64), &Region)> {
        let first = range.start.saturating_sub(self.longest);
        let mut near = self.regions.range((first, 0)..(range.end, 0));
        let found = near.find(|(_, region)| region.end > range.start);
        found.map(|(place, region)| (*place, region))
    }

    // Whether no MR lies partly in `range` and partly outside.
    fn are_whole_in(&self, range: &Range<usize>) -> bool {
        let first = range.start.saturating_sub(self.longest);
        let mut near = self.regions.range((first, 0)..(range.end, 0));
        near.all(|(&(start, _), region)| {
            region.end <= range.start || start >= range.start && region.end <= range.end
        })
    }

    // Notes that an MR in `range` has moved with its memory to `to`. Returns its new address and length.
    fn move_one(&mut self, range: &Range<usize>, to: usize) -> Option<(usize, usize, Mr)> {
        let (place, _) = self.region_in(range)?;
        let mut region = self.regions.remove(&place)?;
        let (start, length) = (to + (place.0 - range.start), region.end - place.0);
        let mr = region.mr.clone();
        region.end = start + length;
        self.regions.insert((start, place.1), region);
        self.moved.insert(place.1, start);
        Some((start, length, mr))
    }

    // Takes a postponed range that overlaps `range` and no longer has an MR, so that it can be removed now.
    fn take_ready(&mut self, range: &Range<usize>) -> Option<(Range<usize>, Way)> {
        let mut ready = self.waiting.iter().filter(|(start, (end, _))| {
            **start < range.end && *end > range.start && !self.has_region_in(&(**start..*end))
        });
        let (&start, &(end, way)) = ready.next()?;
        self.waiting.remove(&start);
        Some((start..end, way))
    }

    // Ends the postponed unmapping of this range, because the program maps other memory there.
    fn take_over(&mut self, range: &Range<usize>) {
        while let Some((&start, &(end, way))) = self.waiting.iter().find(|(start, (end, way))| {
            *way == Way::Unmap && **start < range.end && *end > range.start
        }) {
            self.waiting.remove(&start);
            for (start, end) in [(start, end.min(range.start)), (start.max(range.end), end)] {
                if start < end {
                    self.waiting.insert(start, (end, way));
                }
            }
        }
    }
}

/// Keeps the memory of an MR: as long as this exists, the memory is not removed.
pub struct Kept {
    range: Range<usize>,
    number: u64,
}

impl Kept {
    /// Keeps the `length` bytes at `start`, which `mr` has registered.
    pub fn new(start: *const c_void, length: usize, mr: &Mr) -> Self {
        let keeps = &*KEEPS;
        let mut table = keeps.table.lock();
        table.made += 1;
        table.longest = table.longest.max(length);
        let kept = Self {
            range: start.addr()..start.addr().saturating_add(length),
            number: table.made,
        };
        let region = Region {
            end: kept.range.end,
            mr: mr.clone(),
        };
        let place = (kept.range.start, kept.number);
        table.regions.insert(place, region);
        keeps.regions.store(table.regions.len(), Ordering::Relaxed);
        kept
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let keeps = &*KEEPS;
        let moved = keeps.table.lock().moved.remove(&self.number);
        let start = moved.unwrap_or(self.range.start);
        let range = start..start.saturating_add(self.range.len());
        keeps.forget((start, self.number));
        loop {
            let mut table = keeps.table.lock();
            let ready = table.take_ready(&range);
            keeps.waiting.store(table.waiting.len(), Ordering::Relaxed);
            drop(table);
            let Some((range, way)) = ready else { return };
            let start = ptr::with_exposed_provenance_mut(range.start);
            // SAFETY: the program has given it up, by this function, and no region has it.
            unsafe {
                match way {
                    Way::Unmap => _ = libc::syscall(libc::SYS_munmap, start, range.len()),
                    Way::Free => real_free(start),
                    Way::Detach => _ = libc::syscall(libc::SYS_shmdt, start),
                }
            }
        }
    }
}

impl Keeps {
    fn forget(&self, place: (usize, u64)) {
        let mut table = self.table.lock();
        let region = table.regions.remove(&place);
        self.regions.store(table.regions.len(), Ordering::Relaxed);
        drop(table);
        // Dropping an MR may free memory, which takes the lock again.
        drop(region);
    }

    // Lets the MRs in `range` follow their memory, which has moved to `to`.
    fn follow(&self, range: &Range<usize>, to: usize) {
        loop {
            let moved = self.table.lock().move_one(range, to);
            let Some((start, length, mr)) = moved else {
                return;
            };
            let memory = ptr::with_exposed_provenance_mut(start);
            // SAFETY: the program has registered this memory at its old address, and gives it up only after the MR.
            let change = unsafe { MrReregister::new().borrowed(memory, length) };
            // It fails only if another thread has deregistered the MR in the meantime.
            let _ = mr.rereg(change.iova(mr.iova()).keep_keys()).wait();
        }
    }

    // Prepares for other memory to be mapped at these addresses: gives each MR there memory of its own with the same
    // content, which peers access from then on, as they do with pages that a kernel has pinned. Returns `false` if an MR
    // cannot be changed.
    fn make_way(&self, range: &Range<usize>) -> bool {
        loop {
            let table = self.table.lock();
            let Some((place, Region { end, mr })) = table.region_in(range) else {
                return true;
            };
            let (region, mr) = (place.0..*end, mr.clone());
            drop(table);
            if !part(&mr, &region, range) {
                return false;
            }
            self.forget(place);
        }
    }
}

// Moves an MR to memory of its own. If `taken` covers only a part of it, the MR loses all access instead, and peers are
// refused, because they would write to memory that the program does not read.
fn part(mr: &Mr, region: &Range<usize>, taken: &Range<usize>) -> bool {
    let is_whole = taken.start <= region.start && region.end <= taken.end;
    let length = if is_whole { region.len() } else { 1 };
    let Ok(memory) = Memory::zeroed(length) else {
        return false;
    };
    let mut change = MrReregister::new().memory(&memory).iova(mr.iova());
    if is_whole {
        let to = ptr::with_exposed_provenance_mut(memory.address() as usize);
        // SAFETY: as long as that, and registered; an access to memory that is not there outlives its fault.
        unsafe { copy(to, ptr::with_exposed_provenance(region.start), length) };
    } else {
        change = change.access(Access::empty());
    }
    match mr.rereg(change.keep_keys()).wait() {
        // Another thread has deregistered the MR in the meantime.
        Ok(()) | Err(VerbError::InvalidHandle(_)) => true,
        Err(_) => false,
    }
}

// Postpones the removal of a range if an MR has a part of it. Returns whether it was postponed.
fn waits(keeps: &Keeps, start: *mut c_void, length: usize, way: Way) -> bool {
    let start = start.expose_provenance();
    let range = start..start.saturating_add(length);
    let mut table = keeps.table.lock();
    let waits = table.has_region_in(&range);
    if waits {
        let before = table.waiting.get(&start).map_or(0, |(end, _)| *end);
        table.waiting.insert(start, (range.end.max(before), way));
        keeps.waiting.store(table.waiting.len(), Ordering::Relaxed);
    }
    waits
}

// The table of this process, if it has an MR.
fn keeps_regions() -> Option<&'static Keeps> {
    let keeps = KEEPS.made()?;
    (keeps.regions.load(Ordering::Relaxed) > 0).then_some(keeps)
}

/// The page size in bytes.
pub fn page() -> usize {
    // SAFETY: it asks for a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Interposes `munmap`, and postpones it while an MR has a part of the range.
pub unsafe extern "C" fn munmap(start: *mut c_void, length: usize) -> c_int {
    if let Some(keeps) = keeps_regions() {
        let pages = length.checked_next_multiple_of(page()).unwrap_or(length);
        if start.addr().is_multiple_of(page()) && waits(keeps, start, pages, Way::Unmap) {
            return 0;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { libc::syscall(libc::SYS_munmap, start, length) as c_int }
}

// The length in bytes of the mapping that begins at this address; `None` if there is none.
fn mapping_at(start: usize) -> Option<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut found = maps.lines().filter_map(|line| {
        let (first, rest) = line.split_once('-')?;
        let is_it = usize::from_str_radix(first, 16) == Ok(start);
        let end = rest.split(' ').next().filter(|_| is_it)?;
        usize::from_str_radix(end, 16).ok()
    });
    found.next().map(|end| end - start)
}

/// Interposes `shmdt`, and postpones it while an MR has a part of the segment.
pub unsafe extern "C" fn shmdt(start: *const c_void) -> c_int {
    if let Some(keeps) = keeps_regions()
        && let Some(length) = mapping_at(start.addr())
        && waits(keeps, start.cast_mut(), length, Way::Detach)
    {
        return 0;
    }
    // SAFETY: as the caller promises.
    unsafe { libc::syscall(libc::SYS_shmdt, start) as c_int }
}

/// Interposes `mremap`: MRs move with their memory. If one has only a part of it, the memory grows or shrinks in place, or the
/// call fails with ENOMEM.
pub unsafe extern "C" fn mremap(
    start: *mut c_void,
    before: usize,
    after: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let range = start.addr()..start.addr().saturating_add(before);
    // Without a length the call maps shared memory a second time, and moves nothing.
    let keeps = keeps_regions().filter(|_| before > 0);
    let keeps = keeps.filter(|keeps| keeps.table.lock().has_region_in(&range));
    if flags & libc::MREMAP_FIXED != 0 && !has_way(to, after) {
        return libc::MAP_FAILED;
    }
    let is_chosen = flags == libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    match (keeps, flags) {
        (None, _) => system_mremap(start, before, after, flags, to),
        (Some(_), 0 | libc::MREMAP_MAYMOVE) if after < before => {
            // SAFETY: as the caller promises.
            let cut = unsafe { munmap(start.wrapping_byte_add(after), before - after) };
            if cut == 0 { start } else { libc::MAP_FAILED }
        }
        (Some(keeps), 0 | libc::MREMAP_MAYMOVE) => {
            let grown = system_mremap(start, before, after, 0, to);
            if grown != libc::MAP_FAILED || flags == 0 {
                return grown;
            }
            move_with_regions(keeps, &range, after, flags, to)
        }
        (Some(keeps), _) if is_chosen && after >= before => {
            move_with_regions(keeps, &range, after, flags, to)
        }
        // The call would keep the old mapping, or remove a part of the memory.
        (Some(_), _) => {
            Errno::NOMEM.set();
            libc::MAP_FAILED
        }
    }
}

// Moves memory, and its MRs with it, unless one has only a part of it.
fn move_with_regions(
    keeps: &Keeps,
    range: &Range<usize>,
    after: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    if !keeps.table.lock().are_whole_in(range) {
        Errno::NOMEM.set();
        return libc::MAP_FAILED;
    }
    let start = ptr::with_exposed_provenance_mut(range.start);
    let moved = system_mremap(start, range.len(), after, flags, to);
    if moved != libc::MAP_FAILED {
        keeps.follow(range, moved.expose_provenance());
    }
    moved
}

fn system_mremap(
    start: *mut c_void,
    before: usize,
    after: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    // SAFETY: the program has asked for it, and no MR has memory that it removes.
    unsafe { libc::syscall(libc::SYS_mremap, start, before, after, flags, to) as *mut c_void }
}

// Moves MRs away from a range at which the program wants to map other memory. Returns false, with ENOMEM in `errno`, if one
// cannot be moved.
fn has_way(start: *mut c_void, length: usize) -> bool {
    let pages = length.checked_next_multiple_of(page()).unwrap_or(length);
    let range = start.addr()..start.addr().saturating_add(pages);
    if keeps_regions().is_some_and(|keeps| !keeps.make_way(&range)) {
        Errno::NOMEM.set();
        return false;
    }
    if let Some(keeps) = KEEPS.made()
        && keeps.waiting.load(Ordering::Relaxed) > 0
    {
        let mut table = keeps.table.lock();
        table.take_over(&range);
        keeps.waiting.store(table.waiting.len(), Ordering::Relaxed);
    }
    true
}

/// Interposes `mmap` and `mmap64`: MRs at an address that the program has chosen (`MAP_FIXED`) are moved to other memory
/// first.
pub unsafe extern "C" fn mmap(
    start: *mut c_void,
    length: usize,
    rights: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    if flags & libc::MAP_FIXED != 0 && !has_way(start, length) {
        return libc::MAP_FAILED;
    }
    // SAFETY: as the caller promises.
    unsafe {
        libc::syscall(libc::SYS_mmap, start, length, rights, flags, file, offset) as *mut c_void
    }
}

/// Interposes `shmat`: with `SHM_REMAP` it maps a segment over other memory, of which registered regions keep their content.
pub unsafe extern "C" fn shmat(segment: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    let is_rounded = flags & libc::SHM_RND != 0;
    let start = at.map_addr(|at| if is_rounded { at - at % page() } else { at });
    if flags & libc::SHM_REMAP != 0 && !has_way(start.cast_mut(), bytes_of(segment)) {
        return libc::MAP_FAILED;
    }
    // SAFETY: as the caller promises.
    unsafe { libc::syscall(libc::SYS_shmat, segment, at, flags) as *mut c_void }
}

// Bytes of a segment of System V's shared memory; 0 where there is none, which cannot be mapped.
fn bytes_of(segment: c_int) -> usize {
    let mut about = std::mem::MaybeUninit::<libc::shmid_ds>::zeroed();
    // SAFETY: there is room for the answer, and zero is a value of it.
    unsafe {
        libc::shmctl(segment, libc::IPC_STAT, about.as_mut_ptr());
        about.assume_init().shm_segsz
    }
}

/// The smallest length in bytes of freed memory that is compared with the MRs.
const LARGE: usize = 4096;

// The table and the length in bytes of memory that is about to be freed; `None` if there are no MRs or it is too small to
// be compared with them.
unsafe fn large(at: *mut c_void) -> Option<(&'static Keeps, usize)> {
    let keeps = keeps_regions().filter(|_| !at.is_null())?;
    // SAFETY: the caller has it of `malloc`.
    let length = unsafe { libc::malloc_usable_size(at) };
    (length >= LARGE).then_some((keeps, length))
}

/// Interposes `free`, and postpones it while an MR has a part of the memory.
pub unsafe extern "C" fn free(at: *mut c_void) {
    // SAFETY: as the caller promises.
    unsafe {
        if !large(at).is_some_and(|(keeps, length)| waits(keeps, at, length, Way::Free)) {
            real_free(at);
        }
    }
}

/// Interposes `realloc`. Memory of an MR is copied to a new place, and its free is postponed.
pub unsafe extern "C" fn realloc(at: *mut c_void, length: usize) -> *mut c_void {
    // SAFETY: as the caller promises.
    unsafe {
        let before = large(at).filter(|(keeps, before)| {
            let start = at.addr();
            keeps
                .table
                .lock()
                .has_region_in(&(start..start.saturating_add(*before)))
        });
        let Some((_, before)) = before else {
            return real_realloc(at, length);
        };
        let new = libc::malloc(length);
        if !new.is_null() {
            verbs_api::memory::copy::copy(new.cast(), at.cast(), before.min(length));
            free(at);
        }
        new
    }
}

/// The function of this name in the libraries that are loaded after this one, looked up when first needed.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicPtr::new(ptr::null_mut()),
        }
    }

    pub(crate) fn find(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a text.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

unsafe fn real_free(at: *mut c_void) {
    static NEXT: Next = Next::new(c"free");
    // SAFETY: the function of this name, which every C library has.
    unsafe {
        let next: unsafe extern "C" fn(*mut c_void) = std::mem::transmute(NEXT.find());
        next(at);
    }
}

unsafe fn real_realloc(at: *mut c_void, length: usize) -> *mut c_void {
    static NEXT: Next = Next::new(c"realloc");
    // SAFETY: as for `real_free`.
    unsafe {
        let next: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void =
            std::mem::transmute(NEXT.find());
        next(at, length)
    }
}

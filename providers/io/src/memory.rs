//! Memory that several processes map.
// This module creates and ends mappings, and returns them as spans and atomics, which tolerate writes of other processes.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, SeekFrom, fallocate, fcntl_add_seals, fcntl_get_seals,
    fstat, ftruncate, memfd_create, seek,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, getrlimit};
use verbs_api::memory::Span;

use crate::fork::Unshared;

/// Memory without a name (a memfd). Each process that receives its descriptor can map it. Untouched pages occupy no memory.
#[derive(Debug)]
pub(crate) struct SharedMemory(Unshared);

/// The seals of the memory: its length is fixed, so a mapping never loses pages.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

impl SharedMemory {
    /// Creates shared memory of `bytes` zero bytes.
    ///
    /// # Errors
    /// The system does not support such memory, or has not enough of it.
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        // A file that exceeds the limit would end the process with a signal.
        if getrlimit(Resource::Fsize)
            .current
            .is_some_and(|most| most < bytes)
        {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let descriptor = Unshared::made(|| Ok(memfd_create("polyverbs", flags)?))?;
        ftruncate(&descriptor, bytes)?;
        fcntl_add_seals(&descriptor, SEALS)?;
        Ok(Self(descriptor))
    }

    /// Takes the memory whose descriptor another process passed; `None` if the descriptor is not sealed memory of `bytes`
    /// bytes.
    pub(crate) fn of(descriptor: Unshared, bytes: u64) -> Option<Self> {
        let is_sealed = fcntl_get_seals(&descriptor).is_ok_and(|seals| seals.contains(SEALS));
        let size = fstat(&descriptor).ok()?.st_size;
        (is_sealed && u64::try_from(size) == Ok(bytes)).then_some(Self(descriptor))
    }

    /// Returns the position, at or after `from`, of the next page that a process has touched; `None` if there is none.
    pub(crate) fn next_touched(&self, from: u64) -> Option<u64> {
        // The offset of the descriptor has no other use.
        seek(&self.0, SeekFrom::Data(from)).ok()
    }

    /// Returns a part of the memory, of whole pages, to the system. The pages read as zeros afterwards.
    pub(crate) fn release(&self, offset: u64, length: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // If the system refuses, the pages stay until the last process has ended.
        let _ = fallocate(&self.0, flags, offset, length);
    }

    /// Maps `length` bytes at `offset`; both are multiples of the page size.
    ///
    /// # Errors
    /// The process has no address space for it.
    pub(crate) fn map(&self, offset: u64, length: usize) -> io::Result<Mapping> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: this is a new mapping, which replaces no other one. Its file is sealed, so its pages exist as long as the
        // mapping.
        let start = unsafe {
            mmap(
                null_mut(),
                length,
                access,
                MapFlags::SHARED,
                &self.0,
                offset,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, length })
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A mapped part of shared memory. It gives access only through atomics and spans, because other processes may write to it
/// at any time.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory belongs to no thread, and is accessed through atomics and spans only.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`: it is accessed through atomics and spans only.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(
            offset <= self.length && length <= self.length - offset,
            "{length} bytes at {offset} of a mapping of {}",
            self.length
        );
        // SAFETY: the assertion has checked that this is within the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// The 32-bit word at an offset, which must be a multiple of four.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "a word at {offset}");
        // SAFETY: the memory is mapped as long as `self` exists; page and offset are aligned; every process uses atomics.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// The 64-bit word at an offset, which must be a multiple of eight.
    pub(crate) fn long(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a long word at {offset}");
        // SAFETY: as for `word`.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// Asks the processor to load the cache line at an offset that will be read soon.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: this is a hint, which reads nothing.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.at(offset, 1).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// The bytes at an offset, as a span from which or to which the caller copies.
    pub(crate) fn span(&self, offset: usize, length: usize) -> Span<'_> {
        // SAFETY: the memory is mapped as long as `self` exists, and is accessed through atomics and spans only.
        unsafe { Span::new(self.at(offset, length), length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and all borrows of it have ended. If the system refuses, the mapping stays
        // until the process ends.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// A word of shared memory that is odd while its owner, the process that reads records, sleeps. Each sleep has another odd
/// number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SleepWord<'m>(pub(crate) &'m AtomicU32);

impl SleepWord<'_> {
    /// Marks the owner as asleep. A record may have arrived already, so the owner checks for records again after this call.
    pub(crate) fn begin(self) {
        let number = next_odd(self.0.load(Ordering::Relaxed));
        self.0.store(number, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Returns the number of the owner's sleep; `None` if the owner is awake. A writer calls this after it has published a
    /// record and executed a fence: then either the writer sees the sleep or the owner sees the record.
    pub(crate) fn number(self) -> Option<u32> {
        let sleep = self.0.load(Ordering::SeqCst);
        is_odd(sleep).then_some(sleep)
    }

    /// Marks the owner as awake, unless its sleep with this number has ended and another has begun.
    pub(crate) fn woken(self, sleep: u32) {
        let (awake, relaxed) = (sleep.wrapping_add(1), Ordering::Relaxed);
        let _ = (self.0).compare_exchange(sleep, awake, Ordering::SeqCst, relaxed);
    }
}

pub(crate) const fn is_odd(number: u32) -> bool {
    number & 1 == 1
}

/// Returns the odd number after the last one.
pub(crate) const fn next_odd(number: u32) -> u32 {
    (number | 1).wrapping_add(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    #[test]
    fn bytes_written_to_one_mapping_appear_in_another() {
        let memory = SharedMemory::new(2 * PAGE as u64).unwrap();
        let [one, other] = [(); 2].map(|()| memory.map(PAGE as u64, PAGE).unwrap());
        one.span(5, 3).write(b"abc");
        let mut found = [0; 3];
        other.span(5, 3).read(&mut found);
        assert_eq!(&found, b"abc");
    }

    #[test]
    fn only_sealed_memory_is_accepted_from_other_processes() {
        let memory = SharedMemory::new(PAGE as u64).unwrap();
        assert!(ftruncate(&memory, 0).is_err());
        let passed =
            |memory: &dyn AsFd| Unshared::made(|| memory.as_fd().try_clone_to_owned()).unwrap();
        assert!(SharedMemory::of(passed(&memory), PAGE as u64).is_some());
        assert!(SharedMemory::of(passed(&memory), 2 * PAGE as u64).is_none());
        let open = memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, PAGE as u64).unwrap();
        assert!(SharedMemory::of(passed(&open), PAGE as u64).is_none());
    }

    #[test]
    #[should_panic(expected = "8 bytes at 4095")]
    fn nothing_reaches_beyond_a_mapping() {
        let memory = SharedMemory::new(PAGE as u64).unwrap();
        memory.map(0, PAGE).unwrap().span(PAGE - 1, 8);
    }
}

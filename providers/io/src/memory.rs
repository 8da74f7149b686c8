//! Memory that several processes map.
// Mappings are made and ended here, and given out as spans and atomics, which bear what other processes do.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, SeekFrom, fallocate, fcntl_add_seals, fcntl_get_seals,
    fstat, ftruncate, memfd_create, seek,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, getrlimit};
use verbs_api::memory::Span;

/// Memory without a name, for whoever is given its descriptor. Pages that nobody has touched take no room.
#[derive(Debug)]
pub(crate) struct SharedMemory(OwnedFd);

/// Its length is what it is: a mapping never loses what lies behind it.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

impl SharedMemory {
    /// So many bytes of zeros.
    ///
    /// # Errors
    /// The system has none, or does not give as much.
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        // Longer files than the limit would end the process by a signal.
        if getrlimit(Resource::Fsize)
            .current
            .is_some_and(|most| most < bytes)
        {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let descriptor =
            memfd_create("polyverbs", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&descriptor, bytes)?;
        fcntl_add_seals(&descriptor, SEALS)?;
        Ok(Self(descriptor))
    }

    /// What another process passed; `None` if it is something else.
    pub(crate) fn of(descriptor: OwnedFd, bytes: u64) -> Option<Self> {
        let is_sealed = fcntl_get_seals(&descriptor).is_ok_and(|seals| seals.contains(SEALS));
        let size = fstat(&descriptor).ok()?.st_size;
        (is_sealed && u64::try_from(size) == Ok(bytes)).then_some(Self(descriptor))
    }

    /// Where the next page is that somebody has touched.
    pub(crate) fn next_touched(&self, from: u64) -> Option<u64> {
        // The offset of the descriptor is of no other use.
        seek(&self.0, SeekFrom::Data(from)).ok()
    }

    /// Gives pages back to the system: they are zeros again.
    pub(crate) fn release(&self, offset: u64, length: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Where the system refuses, they stay until the last process is gone.
        let _ = fallocate(&self.0, flags, offset, length);
    }

    /// Maps a part, of whole pages.
    ///
    /// # Errors
    /// The process has no room for it.
    pub(crate) fn map(&self, offset: u64, length: usize) -> io::Result<Mapping> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which takes no place of another. Its file is sealed, so that it stays as long.
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

/// A part of shared memory: nothing of it is ever borrowed but atomics.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: memory that belongs to no thread, accessed through atomics and spans only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(
            offset <= self.length && length <= self.length - offset,
            "{length} bytes at {offset} of a mapping of {}",
            self.length
        );
        // SAFETY: within the mapping, as was just asserted.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// A word at a multiple of four.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "a word at {offset}");
        // SAFETY: mapped as long as `self`, aligned as a page is and the offset; every process uses atomics.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// A long word at a multiple of eight.
    pub(crate) fn long(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a long word at {offset}");
        // SAFETY: as for `word`.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// Fetches the cache line at an offset: something there will be read soon.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which reads nothing.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.at(offset, 1).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// Bytes, to be copied.
    pub(crate) fn span(&self, offset: usize, length: usize) -> Span<'_> {
        // SAFETY: mapped as long as `self`; nobody refers to it but through atomics and spans.
        unsafe { Span::new(self.at(offset, length), length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and what borrowed from it has ended. Refused, it stays until the process ends.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// A word that tells whether its owner sleeps: odd while he does, and another number for each sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SleepWord<'m>(pub(crate) &'m AtomicU32);

impl SleepWord<'_> {
    /// The owner is about to sleep. A record may be there already: the owner looks once more.
    pub(crate) fn begin(self) {
        let number = next_odd(self.0.load(Ordering::Relaxed));
        self.0.store(number, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The number of the sleep, if there is one. Whoever has put something down asks behind a fence: of two that look at
    /// what the other has just written, one at least sees it.
    pub(crate) fn number(self) -> Option<u32> {
        let sleep = self.0.load(Ordering::SeqCst);
        is_odd(sleep).then_some(sleep)
    }

    /// The owner has been woken from this sleep; he may sleep again by now.
    pub(crate) fn woken(self, sleep: u32) {
        let (awake, relaxed) = (sleep.wrapping_add(1), Ordering::Relaxed);
        let _ = (self.0).compare_exchange(sleep, awake, Ordering::SeqCst, relaxed);
    }
}

pub(crate) const fn is_odd(number: u32) -> bool {
    number & 1 == 1
}

/// Another than all before.
pub(crate) const fn next_odd(number: u32) -> u32 {
    (number | 1).wrapping_add(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    #[test]
    fn what_one_mapping_is_written_another_has() {
        let memory = SharedMemory::new(2 * PAGE as u64).unwrap();
        let [one, other] = [(); 2].map(|()| memory.map(PAGE as u64, PAGE).unwrap());
        one.span(5, 3).write(b"abc");
        let mut found = [0; 3];
        other.span(5, 3).read(&mut found);
        assert_eq!(&found, b"abc");
    }

    #[test]
    fn only_memory_that_nobody_can_shorten_is_taken_from_others() {
        let memory = SharedMemory::new(PAGE as u64).unwrap();
        assert!(ftruncate(&memory, 0).is_err());
        let passed = |memory: &dyn AsFd| memory.as_fd().try_clone_to_owned().unwrap();
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

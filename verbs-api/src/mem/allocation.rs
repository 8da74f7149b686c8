//! Page-aligned, zeroed memory that the library owns.
// Allocation and the pointer that comes of it.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const PAGE: usize = 4096;

/// Allocations of at least this many bytes get pages from the operating system only as they are first touched.
const MAPPED: usize = 128 * 1024;

/// Page-aligned, zeroed memory, freed when dropped.
#[derive(Debug)]
pub(crate) struct Allocation {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the allocation is plain memory; all access goes through `copy`, which tolerates concurrent access,
// or holds a `Buffer`, which is exclusive.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Allocates `length` zeroed bytes at a page boundary; `None` if the operating system has not enough memory.
    pub(crate) fn zeroed(length: usize) -> Option<Self> {
        let start = match length {
            0 => NonNull::dangling(),
            MAPPED.. => {
                let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
                // SAFETY: a new mapping, at a place of the system's choice.
                let mapping = unsafe { mmap_anonymous(null_mut(), length, rights, flags) };
                NonNull::new(mapping.ok()?.cast())?
            }
            _ => {
                let layout = Layout::from_size_align(length, PAGE).ok()?;
                // SAFETY: the layout has a non-zero size.
                NonNull::new(unsafe { alloc_zeroed(layout) })?
            }
        };
        Some(Self { start, length })
    }

    /// Returns a pointer to the first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the number of bytes of the memory.
    pub(crate) fn len(&self) -> usize {
        self.length
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        match self.length {
            0 => {}
            MAPPED.. => {
                // SAFETY: the mapping that `zeroed` made, whole, and unused by now.
                let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
                debug_assert!(unmapped.is_ok());
            }
            length => {
                let layout =
                    Layout::from_size_align(length, PAGE).expect("the layout that was allocated");
                // SAFETY: `start` came from `alloc_zeroed` with this layout and is freed once.
                unsafe { dealloc(self.start.as_ptr(), layout) };
            }
        }
    }
}

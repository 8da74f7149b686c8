//! Page-aligned, zeroed memory that the library owns.
// Allocation and the pointer that comes of it.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

const PAGE: usize = 4096;

/// Page-aligned, zeroed memory, freed when dropped.
#[derive(Debug)]
pub struct Allocation {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the allocation is plain memory; whoever touches it goes through `copy`, which tolerates concurrent access,
// or holds a `Buffer`, which is exclusive.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// `length` zeroed octets at a page boundary, or `None` where the system has no such memory.
    pub fn zeroed(length: usize) -> Option<Self> {
        if length == 0 {
            return Some(Self {
                start: NonNull::dangling(),
                length,
            });
        }
        let layout = Layout::from_size_align(length, PAGE).ok()?;
        // SAFETY: the layout has a non-zero size.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, length })
    }

    /// The first octet.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Octets.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.length != 0 {
            let layout =
                Layout::from_size_align(self.length, PAGE).expect("the layout that was allocated");
            // SAFETY: `start` came from `alloc_zeroed` with this layout and is freed once.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

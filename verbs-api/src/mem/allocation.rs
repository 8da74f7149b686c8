//! Page-aligned memory that the library owns: zeroed memory, and mappings of files.
// Allocation and the pointer that comes of it.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;

const PAGE: usize = 4096;

/// Allocations of at least this many bytes get pages from the operating system only as they are first touched.
const MAPPED: usize = 128 * 1024;

/// Memory that is freed or unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Allocation {
    start: NonNull<u8>,
    length: usize,
    /// The mapping that contains the memory; `None` if it is of the allocator.
    mapping: Option<Mapping>,
}

/// A mapping, which is unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    start: NonNull<c_void>,
    length: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: a whole mapping, which nothing uses by now.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

// SAFETY: the allocation is plain memory; all access goes through `copy`, which tolerates concurrent access,
// or holds a `Buffer`, which is exclusive.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Allocates `length` zeroed bytes at a page boundary; `None` if the operating system has not enough memory.
    pub(crate) fn zeroed(length: usize) -> Option<Self> {
        let mut mapping = None;
        let start = match length {
            0 => NonNull::dangling(),
            MAPPED.. => {
                let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
                // SAFETY: a new mapping, at a place of the system's choice.
                let mapped = unsafe { mmap_anonymous(null_mut(), length, rights, flags) };
                let start = NonNull::new(mapped.ok()?)?;
                mapping = Some(Mapping { start, length });
                start.cast()
            }
            _ => {
                let layout = Layout::from_size_align(length, PAGE).ok()?;
                // SAFETY: the layout has a non-zero size.
                NonNull::new(unsafe { alloc_zeroed(layout) })?
            }
        };
        Some(Self {
            start,
            length,
            mapping,
        })
    }

    /// Maps `length` bytes of a file from `offset` on, shared with every process that maps it.
    ///
    /// # Errors
    /// `EINVAL`: there are no bytes to map, they are not all in the file, or it has no bytes of its own, as a pipe or a socket. Else
    /// those of `mmap`: `ENODEV` for a file that cannot be mapped.
    pub(crate) fn of_file(file: BorrowedFd<'_>, offset: u64, length: usize) -> Result<Self, Errno> {
        let found = fstat(file)?;
        // The inode of a dmabuf has no type.
        let has_type = found.st_mode & libc::S_IFMT != 0;
        if has_type && FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        let end = offset.checked_add(length as u64).ok_or(Errno::INVAL)?;
        if length == 0 || end > u64::try_from(found.st_size).unwrap_or(0) {
            return Err(Errno::INVAL);
        }
        let before = offset % page_size() as u64;
        let whole = length.checked_add(before as usize).ok_or(Errno::INVAL)?;
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at a place of the system's choice.
        let mapped = unsafe { mmap(null_mut(), whole, rights, flags, file, offset - before) }?;
        let start = NonNull::new(mapped).ok_or(Errno::NOMEM)?;
        let mapping = Mapping {
            start,
            length: whole,
        };
        Ok(Self {
            // SAFETY: less than a page is before it, and at least a byte after it.
            start: unsafe { start.cast::<u8>().add(before as usize) },
            length,
            mapping: Some(mapping),
        })
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
            _ if self.mapping.is_some() => {}
            length => {
                let layout =
                    Layout::from_size_align(length, PAGE).expect("the layout that was allocated");
                // SAFETY: `start` came from `alloc_zeroed` with this layout and is freed once.
                unsafe { dealloc(self.start.as_ptr(), layout) };
            }
        }
    }
}

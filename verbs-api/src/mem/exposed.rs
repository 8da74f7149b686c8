//! Memory that a peer may read and write: accessible by copying only.
// Makes spans over memory it owns.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::ftruncate;
use rustix::io::Errno;
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Allocation, Span, make_resident};

/// Memory that may be registered with remote rights or by fast-register. A clone refers to the same memory.
///
/// ```
/// use verbs_api::Memory;
/// let memory = Memory::zeroed(64)?;
/// memory.write(8, b"hello")?;
/// assert_eq!(memory.to_vec(8, 5)?, b"hello");
/// assert!(memory.write(60, b"hello").is_err(), "5 bytes from 60 on, of 64");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A peer may write it at any moment, so there is no way to a `&[u8]`: copy in and out.
///
/// ```compile_fail
/// let memory = verbs_api::Memory::zeroed(64).unwrap();
/// let slice: &[u8] = &memory;
/// ```
#[derive(Clone, Debug)]
pub struct Memory {
    allocation: Arc<Allocation>,
}

/// The operating system has no memory of this size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no memory for {length} bytes")]
pub struct OutOfMemory {
    /// How many bytes were asked for.
    pub length: usize,
}

/// An access went beyond the end of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("bytes {offset} to {offset} + {length} lie outside a memory of {size} bytes")]
pub struct OutOfRange {
    /// Offset of the first byte that was to be accessed.
    pub offset: usize,
    /// How many bytes were to be accessed.
    pub length: usize,
    /// How many bytes the memory has.
    pub size: usize,
}

/// Makes an empty file without a name.
#[cfg(target_os = "linux")]
fn unnamed_file() -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(memfd_create("rdma", flags)?)
}

/// Makes an empty file, and takes its name away.
#[cfg(not(target_os = "linux"))]
fn unnamed_file() -> io::Result<OwnedFd> {
    let name = format!("rdma-{:016x}", crate::random::random());
    let path = std::env::temp_dir().join(name);
    let mut options = std::fs::OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file.into())
}

impl Memory {
    /// Allocates `length` zeroed bytes at a page boundary.
    ///
    /// # Errors
    /// The system has no such memory.
    pub fn zeroed(length: usize) -> Result<Self, OutOfMemory> {
        let allocation = Allocation::zeroed(length).ok_or(OutOfMemory { length })?;
        Ok(Self {
            allocation: Arc::new(allocation),
        })
    }

    /// Allocates `length` zeroed bytes in a file of their own, which another process that gets the descriptor can
    /// [map](Self::map_file) too. The memory does not need the descriptor, which the program may close.
    ///
    /// ```
    /// use std::os::fd::AsFd;
    /// use verbs_api::Memory;
    /// let (memory, file) = Memory::shared(8192)?;
    /// let second_page = Memory::map_file(file.as_fd(), 4096, 4096)?;
    /// memory.write(4096, b"seen by both")?;
    /// assert_eq!(second_page.to_vec(0, 12)?, b"seen by both");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: `length` is 0. Else the system has no such memory, or refuses such files.
    #[doc(alias = "ibv_alloc_buf")]
    pub fn shared(length: usize) -> io::Result<(Self, OwnedFd)> {
        let file = unnamed_file()?;
        ftruncate(&file, length as u64)?;
        let memory = Self::map_file(file.as_fd(), 0, length)?;
        Ok((memory, file))
    }

    /// Maps `length` bytes from `offset` on of a file that can be mapped for reading and writing: of a dmabuf (as udmabuf makes them),
    /// of a memfd, or of any other. The mapping is shared, as the memory of a device. If the file becomes shorter while it is
    /// mapped, an access of the program to the lost part ends it by SIGBUS.
    ///
    /// # Errors
    /// `EINVAL`: `length` is 0, the bytes are not all in the file, or it is a pipe, a socket or a device. `ENODEV`: the file cannot be
    /// mapped, as a dmabuf of memory that processors cannot reach. `EACCES`: it is not open for reading and writing.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn map_file(file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<Self> {
        let allocation = Allocation::of_file(file, offset, length)?;
        Ok(Self {
            allocation: Arc::new(allocation),
        })
    }

    /// Makes the pages of a range present, so that requests on memory that is registered [on demand](crate::MrOptions::on_demand)
    /// need not wait for them.
    ///
    /// # Errors
    /// `EINVAL`: the range is out of bounds. `EFAULT`: the file of the memory has become shorter.
    #[doc(alias = "ibv_advise_mr")]
    pub fn prefetch(&self, offset: usize, length: usize) -> io::Result<()> {
        let failed = |errno: Errno| Err(errno.into());
        if self.span(offset, length).is_err() {
            return failed(Errno::INVAL);
        }
        let start = self.allocation.as_ptr().wrapping_add(offset);
        match make_resident(start, length, true) {
            true => Ok(()),
            false => failed(Errno::FAULT),
        }
    }

    /// Returns the number of bytes of the memory.
    pub fn len(&self) -> usize {
        self.allocation.len()
    }

    /// Whether the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address of the first byte, as verbs and peers name it.
    pub fn address(&self) -> u64 {
        self.allocation.as_ptr().expose_provenance() as u64
    }

    /// Returns a range of this memory, which keeps the memory alive.
    ///
    /// # Errors
    /// The range is out of bounds.
    pub fn range(&self, offset: usize, length: usize) -> Result<MemoryRange, OutOfRange> {
        self.span(offset, length)?;
        Ok(MemoryRange {
            memory: self.clone(),
            offset,
            length,
        })
    }

    /// Copies the bytes from `offset` on into `target`, as many as it has.
    ///
    /// # Errors
    /// The range is out of bounds.
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), OutOfRange> {
        self.span(offset, target.len())?.read(target);
        Ok(())
    }

    /// Copies the bytes of `source` to `offset`.
    ///
    /// # Errors
    /// The range is out of bounds.
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<(), OutOfRange> {
        self.span(offset, source.len())?.write(source);
        Ok(())
    }

    /// Returns a copy of the bytes in a range.
    ///
    /// # Errors
    /// The range is out of bounds.
    pub fn to_vec(&self, offset: usize, length: usize) -> Result<Vec<u8>, OutOfRange> {
        let span = self.span(offset, length)?;
        let mut copy = vec![0; length];
        span.read(&mut copy);
        Ok(copy)
    }

    /// Returns a copy of the value at `offset`, aligned or not. If a peer writes at the same moment, the copy may contain a
    /// part of what it writes.
    ///
    /// ```
    /// use verbs_api::Memory;
    /// use zerocopy::byteorder::network_endian::{U32, U64};
    /// use zerocopy::{FromBytes, Immutable, IntoBytes, Unaligned};
    ///
    /// #[derive(FromBytes, IntoBytes, Immutable, Unaligned)]
    /// #[repr(C)]
    /// struct Header {
    ///     sequence: U64,
    ///     length: U32,
    /// }
    ///
    /// let memory = Memory::zeroed(64)?;
    /// memory.write_from(20, &Header { sequence: 7.into(), length: 5.into() })?;
    /// let header: Header = memory.read_as(20)?;
    /// assert_eq!((header.sequence.get(), header.length.get()), (7, 5));
    /// assert!(memory.read_as::<Header>(53).is_err(), "12 bytes from 53 on, of 64");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The value extends beyond the end of the memory.
    pub fn read_as<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T, OutOfRange> {
        let mut value = T::new_zeroed();
        self.read(offset, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Copies a value to `offset`, aligned or not.
    ///
    /// # Errors
    /// The value extends beyond the end of the memory.
    pub fn write_from<T: IntoBytes + Immutable>(
        &self,
        offset: usize,
        value: &T,
    ) -> Result<(), OutOfRange> {
        self.write(offset, value.as_bytes())
    }

    /// Reads one byte with acquire ordering: a program that spins on the last byte of a message then sees all earlier ones.
    ///
    /// # Errors
    /// The byte is beyond the end of the memory.
    pub fn load_u8(&self, offset: usize) -> Result<u8, OutOfRange> {
        let mut byte = [0];
        self.read(offset, &mut byte)?;
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        Ok(byte[0])
    }

    /// Atomically reads eight bytes as a native integer; `offset` must be a multiple of eight.
    ///
    /// # Errors
    /// The bytes extend beyond the end of the memory, or are misaligned.
    pub fn load_u64(&self, offset: usize) -> Result<u64, OutOfRange> {
        self.span(offset, 8)?
            .load_u64()
            .ok_or_else(|| self.out_of_range(offset, 8))
    }

    /// Atomically writes eight bytes; `offset` must be a multiple of eight.
    ///
    /// # Errors
    /// The bytes extend beyond the end of the memory, or are misaligned.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), OutOfRange> {
        self.span(offset, 8)?
            .store_u64(value)
            .ok_or_else(|| self.out_of_range(offset, 8))
    }

    pub(crate) const fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }

    fn span(&self, offset: usize, length: usize) -> Result<Span<'_>, OutOfRange> {
        if offset
            .checked_add(length)
            .is_none_or(|end| end > self.len())
        {
            return Err(self.out_of_range(offset, length));
        }
        // SAFETY: the range lies inside the allocation, which `self` keeps; exposed memory is never borrowed.
        Ok(unsafe { Span::new(self.allocation.as_ptr().add(offset), length) })
    }

    fn out_of_range(&self, offset: usize, length: usize) -> OutOfRange {
        OutOfRange {
            offset,
            length,
            size: self.len(),
        }
    }
}

/// A range of a [`Memory`] that keeps it alive.
#[derive(Clone, Debug)]
pub struct MemoryRange {
    memory: Memory,
    offset: usize,
    length: usize,
}

impl MemoryRange {
    /// Returns the memory that the range is a part of.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the offset of the first byte from the start of the memory.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of bytes in the range.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the address of the first byte, as verbs and peers name it.
    pub fn address(&self) -> u64 {
        self.memory.address() + self.offset as u64
    }
}

impl From<Memory> for MemoryRange {
    fn from(memory: Memory) -> Self {
        let length = memory.len();
        Self {
            memory,
            offset: 0,
            length,
        }
    }
}

impl From<&Memory> for MemoryRange {
    fn from(memory: &Memory) -> Self {
        memory.clone().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(file: BorrowedFd<'_>, offset: u64, length: usize) -> Option<i32> {
        Memory::map_file(file, offset, length)
            .unwrap_err()
            .raw_os_error()
    }

    #[test]
    fn a_mapping_of_a_file_has_its_bytes_and_outlives_it() {
        let (memory, file) = Memory::shared(3 * 4096).unwrap();
        let part = Memory::map_file(file.as_fd(), 4100, 4096).unwrap();
        drop(file);
        memory.write(4100, b"first").unwrap();
        part.write(4091, b"last.").unwrap();
        assert_eq!(part.to_vec(0, 5).unwrap(), b"first");
        assert_eq!(memory.to_vec(8191, 5).unwrap(), b"last.");
        assert_eq!((part.len(), part.address() % 4096), (4096, 4));
    }

    #[test]
    fn bytes_beyond_the_end_of_a_file_are_not_mapped() {
        let (_memory, file) = Memory::shared(4096).unwrap();
        let file = file.as_fd();
        assert_eq!(refused(file, 0, 4097), Some(libc::EINVAL));
        assert_eq!(refused(file, 4096, 1), Some(libc::EINVAL));
        assert_eq!(refused(file, u64::MAX, 2), Some(libc::EINVAL));
        assert_eq!(refused(file, 0, 0), Some(libc::EINVAL));
        let (pipe, _writer) = io::pipe().unwrap();
        assert_eq!(refused(pipe.as_fd(), 0, 1), Some(libc::EINVAL));
        let read_only = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(refused(read_only.as_fd(), 0, 1), Some(libc::EACCES));
        assert!(Memory::shared(0).is_err());
    }

    #[test]
    fn more_than_the_system_has_is_an_error_that_says_how_much() {
        let error = Memory::zeroed(usize::MAX).unwrap_err();
        assert_eq!(error, OutOfMemory { length: usize::MAX });
        assert!(error.to_string().contains(&usize::MAX.to_string()));
    }
}

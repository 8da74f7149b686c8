//! Memory that a peer may read and write: accessible by copying only.
// Makes spans over memory it owns.
#![allow(unsafe_code)]

use std::sync::Arc;

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Allocation, Span};

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

    #[test]
    fn more_than_the_system_has_is_an_error_that_says_how_much() {
        let error = Memory::zeroed(usize::MAX).unwrap_err();
        assert_eq!(error, OutOfMemory { length: usize::MAX });
        assert!(error.to_string().contains(&usize::MAX.to_string()));
    }
}

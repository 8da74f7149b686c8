//! The memory of a region.

use std::sync::Arc;

use super::{Allocation, MemoryRange};

/// The memory of a region: a [`MemoryRange`], which this keeps alive, or memory that the program itself keeps valid.
///
/// A provider may copy to and from it, as [`memory::copy`](crate::memory::copy) does, until it has completed the
/// deregistration, or the change to other memory.
///
/// Using memory that the program itself keeps valid is unsafe:
///
/// ```
/// let mut words = [0u64; 8];
/// // SAFETY: no region is made of it.
/// unsafe { verbs_api::provider::RegionMemory::borrowed(words.as_mut_ptr().cast(), 64) };
/// ```
///
/// ```compile_fail
/// let mut words = [0u64; 8];
/// verbs_api::provider::RegionMemory::borrowed(words.as_mut_ptr().cast(), 64);
/// ```
#[derive(Clone, Debug)]
pub struct RegionMemory {
    address: usize,
    length: usize,
    // None: of the program.
    _allocation: Option<Arc<Allocation>>,
}

impl RegionMemory {
    /// Creates it from `length` bytes of the program's memory at `address`.
    ///
    /// # Safety
    /// As for [`Pd::register_borrowed`](crate::Pd::register_borrowed), for every region made of this or of a clone.
    #[allow(unsafe_code)]
    pub unsafe fn borrowed(address: *mut u8, length: usize) -> Self {
        Self {
            address: address.expose_provenance(),
            length,
            _allocation: None,
        }
    }

    /// Creates it from `length` bytes of `allocation` from `offset` on.
    ///
    /// # Panics
    /// The bytes are not all in `allocation`.
    pub(crate) fn owned(allocation: Arc<Allocation>, offset: usize, length: usize) -> Self {
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= allocation.len()),
            "{length} bytes from {offset} lie outside an allocation of {}",
            allocation.len()
        );
        Self {
            address: allocation.as_ptr().expose_provenance() + offset,
            length,
            _allocation: Some(allocation),
        }
    }

    /// Returns the number of bytes of the memory.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether the memory has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the address of the first byte in this process.
    pub const fn address(&self) -> usize {
        self.address
    }
}

impl From<&MemoryRange> for RegionMemory {
    fn from(range: &MemoryRange) -> Self {
        let allocation = Arc::clone(range.memory().allocation());
        Self::owned(allocation, range.offset(), range.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_of_a_range_is_its_bytes_and_keeps_them() {
        let memory = crate::Memory::zeroed(64).unwrap();
        let (address, range) = (memory.address(), memory.range(8, 40).unwrap());
        let weak = Arc::downgrade(memory.allocation());
        let region = RegionMemory::from(&range);
        drop((memory, range));
        assert_eq!((region.address() as u64, region.len()), (address + 8, 40));
        assert!(weak.upgrade().is_some());
        drop(region);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn no_region_reaches_outside_of_its_allocation() {
        let allocation = Arc::new(Allocation::zeroed(64).unwrap());
        let is_made = |offset, length| {
            let allocation = Arc::clone(&allocation);
            std::panic::catch_unwind(|| RegionMemory::owned(allocation, offset, length)).is_ok()
        };
        assert!(is_made(0, 64) && is_made(64, 0) && is_made(63, 1));
        assert!(!is_made(0, 65) && !is_made(64, 1) && !is_made(65, 0));
        assert!(!is_made(usize::MAX, 2) && !is_made(1, usize::MAX));
    }
}

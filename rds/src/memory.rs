//! Memory of the program for RDMA operations: owned by Rust, or borrowed under the rules of a C program. This is the only
//! unsafe code of the crate.
#![allow(unsafe_code)]

use polyverbs::memory::MemoryRange;
use polyverbs::{Mr, MrOptions, Pd, Started};
use rustix::mm::{Advice, madvise};

/// The page size of cookies: the offset in a cookie counts from the beginning of a page of this size.
pub(crate) const PAGE: u64 = 4096;

/// Memory of this program that an RDMA operation reads or writes, or that peers may access.
#[derive(Clone, Debug)]
pub struct LocalMemory(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Owned(MemoryRange),
    Borrowed { address: usize, length: usize },
}

impl From<MemoryRange> for LocalMemory {
    fn from(range: MemoryRange) -> Self {
        Self(Kind::Owned(range))
    }
}

impl LocalMemory {
    /// Borrows `length` bytes at `address` without a lifetime.
    ///
    /// # Safety
    /// The bytes stay mapped, readable and writable for as long as an operation or a cookie names them, and the program
    /// accesses them only as it would access memory that another program may change at any time.
    pub unsafe fn borrowed(address: *mut u8, length: usize) -> Self {
        let address = address.expose_provenance();
        Self(Kind::Borrowed { address, length })
    }

    /// The address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        match &self.0 {
            Kind::Owned(range) => range.address(),
            Kind::Borrowed { address, .. } => *address as u64,
        }
    }

    /// The length of the memory, in bytes.
    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            Kind::Owned(range) => range.len(),
            Kind::Borrowed { length, .. } => *length,
        }
    }

    /// Whether the whole memory is mapped and readable or, if `is_written`, writable. Without this check, the device's
    /// access on behalf of a peer would end the process with a signal.
    pub(crate) fn is_there(&self, is_written: bool) -> bool {
        let Kind::Borrowed { address, length } = self.0 else {
            return true;
        };
        let begin = address & !(PAGE as usize - 1);
        let Some(end) = address.checked_add(length) else {
            return false;
        };
        let advice = match is_written {
            true => Advice::LinuxPopulateWrite,
            false => Advice::LinuxPopulateRead,
        };
        let populate = |begin: usize, end: usize| {
            let begin = std::ptr::with_exposed_provenance_mut(begin);
            // SAFETY: the advice faults pages in as an access would, and changes no byte.
            unsafe { madvise(begin, end - begin.addr(), advice) }
        };
        // Kernels before 5.14 reject this advice for any memory. If the kernel rejects it for a page of this stack too, the
        // memory counts as accessible.
        let own = (&raw const begin).expose_provenance() & !(PAGE as usize - 1);
        populate(begin, end).is_ok() || populate(own, own + 1).is_err()
    }

    pub(crate) fn register(&self, pd: &Pd, options: MrOptions) -> Started<Mr> {
        match &self.0 {
            Kind::Owned(range) => pd.register_with(range.clone(), options),
            Kind::Borrowed { address, length } => {
                let address = std::ptr::with_exposed_provenance_mut(*address);
                // SAFETY: the caller of `borrowed` promised it for as long as operations and cookies name the memory; the region
                // is deregistered with the last of them.
                unsafe { pd.register_borrowed(address, *length, options) }
            }
        }
    }
}

//! Memory that a program hands to RDMA operations: its own, or borrowed by a C program's rules. The only unsafe code of this crate.
#![allow(unsafe_code)]

use polyverbs::memory::MemoryRange;
use polyverbs::{Mr, MrOptions, Pd, Started};
use rustix::mm::{Advice, madvise};

/// A page: cookies count from the beginning of one.
pub(crate) const PAGE: u64 = 4096;

/// Memory of this program.
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
    /// `length` bytes from `address`.
    ///
    /// # Safety
    /// They stay mapped, readable and writable for as long as an operation or a cookie names them, and the program reads and writes them
    /// only as it would memory that another program may change at any time.
    pub unsafe fn borrowed(address: *mut u8, length: usize) -> Self {
        let address = address.expose_provenance();
        Self(Kind::Borrowed { address, length })
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> u64 {
        match &self.0 {
            Kind::Owned(range) => range.address(),
            Kind::Borrowed { address, .. } => *address as u64,
        }
    }

    /// How long it is.
    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            Kind::Owned(range) => range.len(),
            Kind::Borrowed { length, .. } => *length,
        }
    }

    /// Whether the memory is mapped, and readable or, if `is_written`, writable. A later access on behalf of a peer could report no error
    /// and would end the process.
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
            // SAFETY: the advice faults pages in, as an access would, and changes no byte.
            unsafe { madvise(begin, end - begin.addr(), advice) }
        };
        // Kernels before 5.14 reject this advice for any memory, also for a page of the stack: then the memory counts as usable.
        let own = (&raw const begin).expose_provenance() & !(PAGE as usize - 1);
        populate(begin, end).is_ok() || populate(own, own + 1).is_err()
    }

    pub(crate) fn register(&self, pd: &Pd, options: MrOptions) -> Started<Mr> {
        match &self.0 {
            Kind::Owned(range) => pd.register_with(range.clone(), options),
            Kind::Borrowed { address, length } => {
                let address = std::ptr::with_exposed_provenance_mut(*address);
                // SAFETY: whoever made this promised it for as long as operations and cookies name the memory; the region is
                // deregistered with the last of them.
                unsafe { pd.register_borrowed(address, *length, options) }
            }
        }
    }
}

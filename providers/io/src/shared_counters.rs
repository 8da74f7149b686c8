//! Counters to which several processes add.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use crate::fork::Unshared;
use crate::memory::{Mapping, SharedMemory};

/// Counters in memory that several processes map. What a process has counted stays when it ends.
#[derive(Debug)]
pub struct SharedCounters {
    memory: SharedMemory,
    numbers: Mapping,
}

impl SharedCounters {
    /// Creates counters, all of which are 0.
    ///
    /// # Errors
    /// The system does not support such memory, or has not enough of it.
    pub fn new() -> io::Result<Self> {
        Self::with(SharedMemory::new(LENGTH as u64)?)
    }

    /// Takes the counters whose descriptor another process has passed; `None` if it is something else or cannot be mapped.
    pub fn of(descriptor: OwnedFd) -> Option<Self> {
        let descriptor = Unshared::made(|| Ok(descriptor)).ok()?;
        Self::with(SharedMemory::of(descriptor, LENGTH as u64)?).ok()
    }

    fn with(memory: SharedMemory) -> io::Result<Self> {
        let numbers = memory.map(0, LENGTH)?;
        Ok(Self { memory, numbers })
    }

    /// Returns the counter with this index. There are 512.
    ///
    /// # Panics
    /// There is no such counter.
    #[inline]
    pub fn counter(&self, index: usize) -> &AtomicU64 {
        self.numbers.long(index * size_of::<u64>())
    }
}

impl AsFd for SharedCounters {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// A page.
const LENGTH: usize = 4096;

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn both_holders_of_counters_see_the_same_numbers() {
        let one = SharedCounters::new().unwrap();
        let other = SharedCounters::of(one.as_fd().try_clone_to_owned().unwrap()).unwrap();
        one.counter(3).fetch_add(7, Ordering::Relaxed);
        drop(one);
        assert_eq!(other.counter(3).load(Ordering::Relaxed), 7);
        assert_eq!(other.counter(511).load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_descriptor_of_something_else_is_refused() {
        let file = File::open("/dev/null").unwrap();
        assert!(SharedCounters::of(file.into()).is_none());
    }
}

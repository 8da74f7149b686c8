//! Numbers that the process assigns to operations and attributes of extensions. They are never sent.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::fork::ForkLock;

/// The number of one `static`, assigned when it is first asked for.
#[derive(Debug)]
pub(super) struct Number(AtomicU8);

impl Number {
    pub(super) const fn new() -> Self {
        Self(AtomicU8::new(0))
    }
}

/// The `static`s of one kind that have a number, by number.
pub(super) struct Numbers<T: 'static, const N: usize> {
    // A child of a fork has the numbers of its parent.
    taken: ForkLock<u8>,
    table: [OnceLock<&'static T>; N],
}

impl<T: Sync, const N: usize> Numbers<T, N> {
    pub(super) const fn new() -> Self {
        Self {
            taken: ForkLock::new(0),
            table: [const { OnceLock::new() }; N],
        }
    }

    pub(super) fn at(&self, number: usize) -> Option<&'static T> {
        self.table.get(number)?.get().copied()
    }

    /// Returns the number of `it`, which `number` caches, and assigns one if it has none; `None` if all numbers are taken.
    #[inline]
    pub(super) fn of(&'static self, it: &'static T, number: &Number) -> Option<u8> {
        match number.0.load(Ordering::Acquire) {
            0 => self.take(it, number),
            known => Some(known - 1),
        }
    }

    #[cold]
    fn take(&'static self, it: &'static T, number: &Number) -> Option<u8> {
        let mut taken = self.taken.lock();
        let known = number.0.load(Ordering::Acquire);
        if known != 0 {
            return Some(known - 1);
        }
        let free = *taken;
        self.table.get(usize::from(free))?.set(it).ok()?;
        *taken += 1;
        number.0.store(free + 1, Ordering::Release);
        Some(free)
    }
}

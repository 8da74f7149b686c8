//! A lock that is held for nanoseconds, as those of the library's own queues are.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// How often a waiting thread checks the lock before it yields the processor.
const SPINS: u32 = 64;

/// A spin lock, which is released by one store.
pub(crate) struct SpinLock<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives the value to one thread at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// Access to the value while the lock is held.
pub(crate) struct SpinGuard<'l, T>(&'l SpinLock<T>);

impl<T> SpinLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            is_held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        if self.is_held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        SpinGuard(self)
    }

    #[cold]
    fn wait(&self) {
        while self.is_held.swap(true, Ordering::Acquire) {
            let mut looks = 0;
            while self.is_held.load(Ordering::Relaxed) {
                looks += 1;
                match looks < SPINS {
                    true => std::hint::spin_loop(),
                    false => thread::yield_now(),
                }
            }
        }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.is_held.store(false, Ordering::Release);
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and this guard is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_do_not_hold_the_lock_at_once() {
        const TURNS: u64 = if cfg!(miri) { 20 } else { 2_000 };
        let counted = SpinLock::new(0_u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..TURNS {
                        let mut counted = counted.lock();
                        let before = *counted;
                        thread::yield_now();
                        *counted = before + 1;
                    }
                });
            }
        });
        assert_eq!(*counted.lock(), 4 * TURNS);
    }
}

//! A lock that spins, then yields.
//!
//! It takes half the time of a lock that can park its waiters. With more threads than processors a waiter stalls for
//! milliseconds, where a pure spin lock stalls for half a second. So it suits state that is held for nanoseconds on a data
//! path. A holder makes no blocking call and runs no handler of the program. A panic releases the lock; there is no
//! poisoning.

// The guard makes references to the content of the lock's cell.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};
#[cfg(not(loom))]
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

/// A lock that spins, then yields, around its value. The flag comes first, on the cache line of the fields that are used
/// first.
#[repr(C)]
pub struct SpinLock<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the flag serialises all access to the value, which moves between threads with it.
unsafe impl<T: Send> Send for SpinLock<T> {}
// SAFETY: the flag serialises all access; a shared lock lends one reference at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// Creates a free lock.
    pub fn new(value: T) -> Self {
        Self {
            is_held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until the lock is free and takes it.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        if !self.acquire() {
            self.wait();
        }
        SpinGuard {
            lock: self,
            not_send: PhantomData,
        }
    }

    #[inline]
    fn acquire(&self) -> bool {
        self.is_held
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[cold]
    fn wait(&self) {
        loop {
            for _ in 0..SPINS {
                if !self.is_held.load(Ordering::Relaxed) && self.acquire() {
                    return;
                }
                std::hint::spin_loop();
            }
            thread::yield_now();
        }
    }
}

/// Access to the value of a [`SpinLock`]. Dropping it releases the lock, on the thread that took it.
pub struct SpinGuard<'l, T> {
    lock: &'l SpinLock<T>,
    not_send: PhantomData<*mut ()>,
}

// SAFETY: a shared guard lends `&T` only.
unsafe impl<T: Sync> Sync for SpinGuard<'_, T> {}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so no other thread writes; the borrow ends before the guard.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed exclusively.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.is_held.store(false, Ordering::Release);
    }
}

/// A cell with the interface of the model checker's: access is by closure.
#[cfg(not(loom))]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline]
    fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Attempts before a waiter yields its processor. The model checker needs only one.
const SPINS: u32 = if cfg!(loom) { 1 } else { 64 };

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn two_threads_do_not_hold_the_lock_at_once() {
        const TURNS: u64 = if cfg!(miri) { 20 } else { 200 };
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

    #[test]
    fn a_panic_releases_the_lock() {
        let lock = SpinLock::new(1);
        thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _guard = lock.lock();
                panic!("expected");
            });
            assert!(panics.join().is_err());
        });
        assert_eq!(*lock.lock(), 1);
    }
}

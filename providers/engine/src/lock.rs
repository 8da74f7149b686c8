//! The lock of the fast path: it spins briefly, then yields.
//!
//! It takes half the time of a lock that can park its waiters. With more threads than processors a waiter stalls for
//! milliseconds, where a pure spin lock stalls for half a second. No blocking call and no handler of the program runs while
//! a thread holds one. A panic releases the lock; there is no poisoning.
//!
//! # Order
//! Every lock has a [`LockClass`]. A thread takes classes only in ascending order and holds at most one of each, which
//! excludes deadlock. Debug builds assert this at every `lock`.

// The guard makes references to the content of the lock's cell.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicBool, Ordering, UnsafeCell, relax};

/// The class of a lock: which data it protects. The order of the variants is the order in which a thread takes locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LockClass {
    /// The sending half of a QP, which threads that post lock.
    Requester,
    /// The receiving half of a QP, which the thread that carries out a peer's request locks.
    Responder,
    /// The producer of a QP's receive ring, or a whole shared receive queue.
    Receive,
    /// The producer side of a completion ring, where completions are pushed.
    CqProducer,
    /// The consumer side of a completion ring, where threads poll.
    CqConsumer,
    /// State of control verbs, which is never locked for long.
    Control,
    /// State of a link, which is locked for one frame at a time.
    Link,
}

/// A lock that spins, then yields, around its value. The flag comes first, on the cache line of the fields that are used
/// first.
#[repr(C)]
pub struct Lock<T> {
    held: AtomicBool,
    #[cfg(debug_assertions)]
    class: LockClass,
    value: UnsafeCell<T>,
}

// SAFETY: the flag serialises all access to the value, which moves between threads with it.
unsafe impl<T: Send> Send for Lock<T> {}
// SAFETY: the flag serialises all access; a shared lock lends one reference at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Creates a lock of this class around `value`. It is free at first.
    pub fn new(class: LockClass, value: T) -> Self {
        let _ = class;
        Self {
            held: AtomicBool::new(false),
            #[cfg(debug_assertions)]
            class,
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until the lock is free and takes it.
    ///
    /// # Panics
    /// Debug builds: if the thread holds a lock of this class or of a later one.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_, T> {
        #[cfg(debug_assertions)]
        order::enter(self.class);
        if !self.acquire() {
            self.wait();
        }
        LockGuard {
            lock: self,
            not_send: PhantomData,
        }
    }

    /// Prefetches the cache lines of the lock and of the beginning of its value.
    #[inline]
    pub fn prefetch(&self) {
        crate::sync::prefetch(std::ptr::from_ref(self).cast());
        crate::sync::prefetch(std::ptr::from_ref(self).cast::<u8>().wrapping_add(64));
    }

    #[inline]
    fn acquire(&self) -> bool {
        self.held
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[cold]
    fn wait(&self) {
        loop {
            for _ in 0..SPINS {
                if !self.held.load(Ordering::Relaxed) && self.acquire() {
                    return;
                }
                std::hint::spin_loop();
            }
            relax();
        }
    }
}

/// Access to the value of a lock. Dropping it releases the lock, on the thread that took it.
pub struct LockGuard<'a, T> {
    lock: &'a Lock<T>,
    not_send: PhantomData<*mut ()>,
}

// SAFETY: a shared guard lends `&T` only.
unsafe impl<T: Sync> Sync for LockGuard<'_, T> {}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so no other thread writes; the borrow ends before the guard.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed exclusively.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for LockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.held.store(false, Ordering::Release);
        #[cfg(debug_assertions)]
        order::leave(self.lock.class);
    }
}

/// Asserts, in debug builds, that this thread holds no lock. The engine calls this before it calls a handler of the
/// program.
///
/// # Panics
/// Debug builds: if the thread holds a lock.
#[inline]
pub fn assert_unlocked() {
    #[cfg(debug_assertions)]
    order::assert_unlocked();
}

/// The classes of the locks that a thread holds, as bits.
#[cfg(debug_assertions)]
mod order {
    use std::cell::Cell;

    use super::LockClass;

    thread_local! {
        static HELD: Cell<u8> = const { Cell::new(0) };
    }

    pub(super) fn enter(class: LockClass) {
        let held = HELD.get();
        assert!(
            held >> class as u8 == 0,
            "lock order: {class:?} while holding {held:#08b}"
        );
        HELD.set(held | 1 << class as u8);
    }

    pub(super) fn leave(class: LockClass) {
        HELD.set(HELD.get() & !(1 << class as u8));
    }

    pub(super) fn assert_unlocked() {
        assert!(HELD.get() == 0, "locks held: {:#08b}", HELD.get());
    }
}

/// How often a waiter checks the lock before it yields its processor. The model checker needs only one check.
const SPINS: u32 = if cfg!(loom) { 1 } else { 64 };

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn counts_every_increment() {
        let lock = Lock::new(LockClass::Requester, 0u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 80_000);
    }

    #[test]
    fn a_panic_releases_the_lock() {
        let lock = Lock::new(LockClass::Control, 1);
        thread::scope(|scope| {
            let result = scope.spawn(|| {
                let _guard = lock.lock();
                panic!("expected");
            });
            assert!(result.join().is_err());
        });
        assert_eq!(*lock.lock(), 1);
    }

    #[test]
    fn ascending_classes_are_accepted() {
        let first = Lock::new(LockClass::Requester, ());
        let second = Lock::new(LockClass::CqProducer, ());
        drop((first.lock(), second.lock()));
        assert_unlocked();
        let _again = first.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order")]
    fn a_descending_class_is_refused() {
        let first = Lock::new(LockClass::Requester, ());
        let second = Lock::new(LockClass::CqProducer, ());
        let _second = second.lock();
        let _first = first.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order")]
    fn two_of_a_class_are_refused() {
        let (a, b) = (
            Lock::new(LockClass::Responder, ()),
            Lock::new(LockClass::Responder, ()),
        );
        let _a = a.lock();
        let _b = b.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "locks held")]
    fn a_handler_under_a_lock_is_refused() {
        let lock = Lock::new(LockClass::Control, ());
        let _guard = lock.lock();
        assert_unlocked();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;
    use crate::sync::thread;

    #[test]
    fn excludes_and_publishes() {
        loom::model(|| {
            let lock = Arc::new(Lock::new(LockClass::Requester, 0));
            let other = lock.clone();
            let thread = thread::spawn(move || *other.lock() += 1);
            *lock.lock() += 1;
            thread.join().unwrap();
            assert_eq!(*lock.lock(), 2);
        });
    }
}

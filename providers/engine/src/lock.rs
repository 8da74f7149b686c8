//! The lock of the fast path: a [`SpinLock`] with a place in an order. No blocking call and no handler of the program runs while
//! a thread holds one.
//!
//! # Order
//! Every lock has a [`LockClass`]. A thread takes classes only in ascending order and holds at most one of each, which
//! excludes deadlock. Debug builds assert this at every `lock`.

use std::ops::{Deref, DerefMut};

use verbs_api::provider::{SpinGuard, SpinLock};

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
    spin: SpinLock<T>,
    #[cfg(debug_assertions)]
    class: LockClass,
}

impl<T> Lock<T> {
    /// Creates a lock of this class around `value`. It is free at first.
    pub fn new(class: LockClass, value: T) -> Self {
        let _ = class;
        Self {
            spin: SpinLock::new(value),
            #[cfg(debug_assertions)]
            class,
        }
    }

    /// Waits until the lock is free and takes it.
    ///
    /// # Panics
    /// Debug builds: if the thread holds a lock of this class or of a later one.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_, T> {
        #[cfg(debug_assertions)]
        let entered = order::Entered::new(self.class);
        LockGuard {
            spin: self.spin.lock(),
            #[cfg(debug_assertions)]
            _entered: entered,
        }
    }

    /// Prefetches the cache lines of the lock and of the beginning of its value.
    #[inline]
    pub fn prefetch(&self) {
        crate::sync::prefetch(std::ptr::from_ref(self).cast());
        crate::sync::prefetch(std::ptr::from_ref(self).cast::<u8>().wrapping_add(64));
    }
}

/// Access to the value of a lock. Dropping it releases the lock, on the thread that took it.
pub struct LockGuard<'a, T> {
    spin: SpinGuard<'a, T>,
    #[cfg(debug_assertions)]
    _entered: order::Entered,
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.spin
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.spin
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

    /// A class that the thread holds as long as this exists.
    pub(super) struct Entered(LockClass);

    impl Entered {
        pub(super) fn new(class: LockClass) -> Self {
            let held = HELD.get();
            assert!(
                held >> class as u8 == 0,
                "lock order: {class:?} while holding {held:#08b}"
            );
            HELD.set(held | 1 << class as u8);
            Self(class)
        }
    }

    impl Drop for Entered {
        fn drop(&mut self) {
            HELD.set(HELD.get() & !(1 << self.0 as u8));
        }
    }

    pub(super) fn assert_unlocked() {
        assert!(HELD.get() == 0, "locks held: {:#08b}", HELD.get());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_leaves_the_class_of_the_lock() {
        let lock = Lock::new(LockClass::Control, 1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("expected");
        }));
        assert!(panicked.is_err());
        assert_unlocked();
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

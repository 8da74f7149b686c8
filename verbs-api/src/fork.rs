//! Process-wide values, and what a forked child has of its parent's.
//!
//! A child has its parent's memory, and of its parent's threads the one that forked. A lock that another thread held at that moment
//! stays locked in the child, and the threads, sockets and devices of the parent do not exist there. So a static of a provider or a
//! library that changes is one of two kinds:
//!
//! * [`PerProcess`]: the child begins anew, and neither locks nor drops what its parent has;
//! * [`ForkLock`]: the child needs what its parent has, so the thread that forks holds the lock over the fork.
//!
//! A value that is made once and never changed is a [`MadeOnce`]: a thread that makes the value of a `OnceLock` has that locked.
//!
//! The C library reports a fork to handlers, and `vfork` to none: a child of `vfork` borrows its parent's memory and must change
//! nothing there. That is why these types do not compare numbers of processes.
// The C library calls the handlers.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::lock::Mutex;

/// A value that each process makes for itself when it first needs it; a forked child makes a new one.
///
/// Access takes no lock, so a signal handler may use a value that has [been made](Self::made).
pub struct PerProcess<T: Send + Sync> {
    make: fn() -> T,
    made: AtomicPtr<Made<T>>,
}

struct Made<T> {
    forks: u64,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// Creates a cell without a value. Threads that need the first value at the same moment may each call `make`; one
    /// result is kept.
    pub const fn new(make: fn() -> T) -> Self {
        Self {
            make,
            made: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Returns this process's value; `None` if it has not been made.
    pub fn made(&self) -> Option<&T> {
        self.of_this_process(self.made.load(Ordering::Acquire))
    }

    #[cold]
    fn make(&self) -> &T {
        let new = Box::into_raw(Box::new(Made {
            forks: forks(),
            value: (self.make)(),
        }));
        let mut before = self.made.load(Ordering::Acquire);
        loop {
            if let Some(made) = self.of_this_process(before) {
                // SAFETY: it was allocated above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                return made;
            }
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            // The parent's value is not freed: locks in it may be held for ever.
            match (self.made).compare_exchange(before, new, success, failure) {
                // SAFETY: allocated above, and freed only when `self` is dropped.
                Ok(_) => return unsafe { &(*new).value },
                Err(other) => before = other,
            }
        }
    }

    fn of_this_process(&self, made: *mut Made<T>) -> Option<&T> {
        // SAFETY: null, or allocated by `make` and freed only when `self` is dropped.
        let made = unsafe { made.as_ref() }?;
        (made.forks == forks()).then_some(&made.value)
    }
}

impl<T: Send + Sync> Deref for PerProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.made().unwrap_or_else(|| self.make())
    }
}

impl<T: Send + Sync> Drop for PerProcess<T> {
    fn drop(&mut self) {
        if self.made().is_some() {
            // SAFETY: `make` allocated it, and no borrow of `self` is left.
            drop(unsafe { Box::from_raw(*self.made.get_mut()) });
        }
    }
}

impl<T: Send + Sync + fmt::Debug> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PerProcess").field(&self.made()).finish()
    }
}

/// A value that a process makes when it first needs it, and that its forked children share.
///
/// No thread waits for another one that makes it, so a child does not either: threads that need it at the same moment may each make
/// one, and the first is kept.
pub struct MadeOnce<T: Send + Sync>(AtomicPtr<T>);

impl<T: Send + Sync> MadeOnce<T> {
    /// Creates a cell without a value.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Returns the value; `None` if it has not been made.
    pub fn made(&self) -> Option<&T> {
        // SAFETY: null, or allocated by `get_or_make` and freed only when `self` is dropped.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the value, and makes it with `make` if there is none.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(made) = self.made() {
            return made;
        }
        let new = Box::into_raw(Box::new(make()));
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        match (self.0).compare_exchange(std::ptr::null_mut(), new, success, failure) {
            // SAFETY: as above.
            Ok(_) => unsafe { &*new },
            Err(made) => {
                // SAFETY: it was allocated above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: not null, and so as above.
                unsafe { &*made }
            }
        }
    }
}

impl<T: Send + Sync> Default for MadeOnce<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Send + Sync> Drop for MadeOnce<T> {
    fn drop(&mut self) {
        let made = *self.0.get_mut();
        if !made.is_null() {
            // SAFETY: `get_or_make` allocated it, and no borrow of `self` is left.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

impl<T: Send + Sync + fmt::Debug> fmt::Debug for MadeOnce<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MadeOnce").field(&self.made()).finish()
    }
}

/// Returns how many forks separate this process from the first process of the program. An object that remembers the number
/// of its creation can detect that a parent process made it.
pub fn forks() -> u64 {
    watch();
    FORKS.load(Ordering::Relaxed)
}

/// A lock for a value that a forked child needs in a consistent state: the thread that forks holds the lock over the fork,
/// so that in the child it is free and the value complete.
///
/// A thread that holds such a lock must not take another one, and must not fork.
pub struct ForkLock<T: Send + 'static> {
    value: Mutex<T>,
    in_child: fn(&mut T),
    is_listed: AtomicBool,
}

impl<T: Send + 'static> ForkLock<T> {
    /// Creates a free lock. A forked child keeps the value as it is.
    pub const fn new(value: T) -> Self {
        Self::with_change(value, |_| ())
    }

    /// Creates a free lock. In each forked child `in_child` changes the value before the fork returns, while the child has
    /// only this thread.
    pub const fn with_change(value: T, in_child: fn(&mut T)) -> Self {
        Self {
            value: Mutex::new(value),
            in_child,
            is_listed: AtomicBool::new(false),
        }
    }

    /// Waits until the lock is free and takes it, even if a holder has panicked.
    pub fn lock(&'static self) -> MutexGuard<'static, T> {
        if !self.is_listed.load(Ordering::Acquire) {
            self.list();
        }
        self.value.lock()
    }

    #[cold]
    fn list(&'static self) {
        watch();
        let mut all = ALL.lock();
        if !self.is_listed.swap(true, Ordering::AcqRel) {
            all.push(self);
        }
    }
}

impl<T: Send + fmt::Debug> fmt::Debug for ForkLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ForkLock").field(&self.value).finish()
    }
}

/// A [`ForkLock`] whose value may be of any type.
trait HeldOverForks: Sync {
    fn hold(&'static self) -> Box<dyn Hold>;
}

/// A [`ForkLock`] that the forking thread holds.
trait Hold {
    fn begin_child(&mut self);
}

struct Held<T: 'static>(MutexGuard<'static, T>, fn(&mut T));

impl<T: Send + 'static> HeldOverForks for ForkLock<T> {
    fn hold(&'static self) -> Box<dyn Hold> {
        Box::new(Held(self.value.lock(), self.in_child))
    }
}

impl<T> Hold for Held<T> {
    fn begin_child(&mut self) {
        (self.1)(&mut self.0);
    }
}

/// The locks that a thread holds while it forks.
struct Fork {
    locks: Vec<Box<dyn Hold>>,
    _all: MutexGuard<'static, Vec<&'static dyn HeldOverForks>>,
}

static FORKS: AtomicU64 = AtomicU64::new(0);
/// All [`ForkLock`]s that were ever taken. This mutex too is held over a fork, so that forks of several threads exclude
/// each other.
static ALL: Mutex<Vec<&'static dyn HeldOverForks>> = Mutex::new(Vec::new());
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static FORK: RefCell<Option<Fork>> = const { RefCell::new(None) };
}

/// Registers the fork handlers with the C library, once.
#[inline]
fn watch() {
    // Miri has no forks.
    if !IS_WATCHED.load(Ordering::Acquire) && !cfg!(miri) {
        // SAFETY: the handlers take no argument, and exist until the process ends or this library is unloaded; the C library forgets
        // them then. Threads that do this at the same moment register them twice, which the handlers allow. Where there
        // is no room for them, a child takes its parent's values for its own.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        IS_WATCHED.store(true, Ordering::Release);
    }
}

extern "C" fn before() {
    // A thread that is ending has no place for the locks, and forks without them.
    let _ = FORK.try_with(|fork| {
        fork.borrow_mut().get_or_insert_with(|| {
            let all = ALL.lock();
            Fork {
                locks: all.iter().map(|lock| lock.hold()).collect(),
                _all: all,
            }
        });
    });
}

extern "C" fn in_parent() {
    drop(end());
}

extern "C" fn in_child() {
    // Registered twice, they are called twice, and the second call finds the locks released. A number that grows by two is as new.
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Some(mut fork) = end() {
        for lock in &mut fork.locks {
            lock.begin_child();
        }
    }
}

/// Takes the locks that this thread has held for the fork, which has ended; dropping them releases the locks.
fn end() -> Option<Fork> {
    FORK.try_with(RefCell::take).ok().flatten()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc;
    use std::thread;

    use test_kit::waiting::{forked_beside, in_a_child};

    use super::*;

    /// Forks many times while two threads call `busy` repeatedly. Returns whether each child ended with `true`.
    fn in_children_beside(busy: fn(), body: impl Fn() -> bool) -> bool {
        forked_beside(2, busy, || in_a_child(&body))
    }

    #[test]
    fn a_child_makes_its_own_value_while_its_parents_is_locked() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new(Mutex::default);
        let mut held = VALUE.lock();
        *held = 7;
        assert!(in_a_child(|| {
            let is_new = VALUE.made().is_none();
            *VALUE.lock() += 1;
            is_new && *VALUE.lock() == 1
        }));
        drop(held);
        assert_eq!(*VALUE.lock(), 7);
    }

    #[test]
    fn a_child_of_a_child_makes_its_own_value_too() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new(Mutex::default);
        *VALUE.lock() = 1;
        assert!(in_a_child(|| {
            *VALUE.lock() = 2;
            in_a_child(|| *VALUE.lock() == 0) && *VALUE.lock() == 2
        }));
    }

    #[test]
    fn threads_agree_on_one_value_and_the_others_are_dropped() {
        static LIVE: AtomicU32 = AtomicU32::new(0);
        struct Counted;
        impl Drop for Counted {
            fn drop(&mut self) {
                LIVE.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let make = || {
            LIVE.fetch_add(1, Ordering::SeqCst);
            Counted
        };
        for _ in 0..100 {
            let (value, once) = (PerProcess::new(make), MadeOnce::new());
            let places: Vec<[usize; 2]> = thread::scope(|scope| {
                let place = || {
                    [&*value, once.get_or_make(make)].map(|one| std::ptr::from_ref(one) as usize)
                };
                let threads: Vec<_> = (0..3).map(|_| scope.spawn(place)).collect();
                threads.into_iter().map(|one| one.join().unwrap()).collect()
            });
            assert!(places.iter().all(|place| *place == places[0]));
            assert_eq!(LIVE.load(Ordering::SeqCst), 2);
            drop((value, once));
            assert_eq!(LIVE.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn a_child_makes_a_value_that_a_thread_of_its_parent_is_making() {
        static VALUE: MadeOnce<u32> = MadeOnce::new();
        let (made, is_made) = mpsc::channel();
        let (makes, is_making) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                let make = || {
                    makes.send(()).unwrap();
                    is_made.recv().unwrap();
                    1
                };
                assert_eq!(*VALUE.get_or_make(make), 1);
            });
            is_making.recv().unwrap();
            assert!(in_a_child(|| *VALUE.get_or_make(|| 2) == 2));
            made.send(()).unwrap();
        });
        assert!(in_a_child(|| *VALUE.get_or_make(|| 2) == 1));
    }

    #[test]
    fn a_child_finds_locks_free_and_values_whole() {
        static PAIR: ForkLock<(u64, u64)> = ForkLock::new((0, 0));
        static OTHER: ForkLock<u64> = ForkLock::with_change(0, |value| *value = u64::MAX);
        let busy = || {
            let mut pair = PAIR.lock();
            pair.0 += 1;
            thread::yield_now();
            pair.1 += 1;
            drop(pair);
            *OTHER.lock() += 1;
        };
        busy();
        assert!(in_children_beside(busy, || {
            let pair = *PAIR.lock();
            pair.0 == pair.1 && pair.0 > 0 && *OTHER.lock() == u64::MAX
        }));
        assert_ne!(*OTHER.lock(), u64::MAX);
    }

    #[test]
    fn threads_that_fork_at_the_same_time_wait_for_each_other() {
        static COUNT: ForkLock<u64> = ForkLock::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        *COUNT.lock() += 1;
                        assert!(in_a_child(|| *COUNT.lock() > 0));
                    }
                });
            }
        });
        assert_eq!(*COUNT.lock(), 150);
    }

    #[test]
    fn a_child_that_borrows_its_parents_memory_changes_nothing() {
        static VALUE: PerProcess<u32> = PerProcess::new(|| 5);
        let (before, place) = (forks(), std::ptr::from_ref(&*VALUE));
        let status = std::process::Command::new("true").status().unwrap();
        assert!(status.success());
        assert_eq!((forks(), std::ptr::from_ref(&*VALUE)), (before, place));
    }
}

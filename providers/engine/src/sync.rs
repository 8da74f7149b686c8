//! Atomics, cells and threads: those of the standard library, or loom's under `cfg(loom)`.
//!
//! The lock, the rings and the pins import from here only, so that the model checker sees the code that runs. Read `lock`
//! next.

// This module wraps one instruction of assembly and the raw pointer of a cell.
#![allow(unsafe_code)]

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Mutex as Parking, MutexGuard},
    thread,
};
use std::sync::PoisonError;
#[cfg(not(loom))]
pub use std::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Mutex as Parking, MutexGuard},
    thread,
};
#[cfg(not(loom))]
pub use verbs_api::provider::ForkLock;

/// A lock whose waiters sleep, for state that the data path does not use. A panic releases the lock, and its value stays
/// usable.
#[derive(Debug, Default)]
pub struct Mutex<T>(Parking<T>);

impl<T> Mutex<T> {
    /// Creates a free lock.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Self(Parking::new(value))
    }

    /// Creates a free lock.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Self(Parking::new(value))
    }

    /// Waits until the lock is free and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the place of the lock for forks: the threads of the model checker do not fork.
#[cfg(loom)]
pub type ForkLock<T> = Mutex<T>;

/// A cell with loom's interface: access is by closure.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// Wraps a value in a cell.
    pub const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `read` with a pointer to the value, which it may read.
    #[inline]
    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Calls `write` with a pointer to the value, which it may write.
    #[inline]
    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Prefetches the cache line of an address.
#[inline]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch accesses nothing, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// A value on cache lines of its own: two, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Line<T>(pub T);

impl<T> std::ops::Deref for Line<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A value on one cache line of its own, for values that are written too rarely to need two.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct CacheLine<T>(pub T);

/// Executes a sequentially consistent fence.
///
/// On x86-64 this is a locked instruction on the stack, which takes half the time of `mfence` and orders ordinary loads and
/// stores equally well.
#[inline]
pub fn full_fence() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: this adds 0 to the word at the stack pointer, which belongs to this thread. It is not `nomem`, so that the
    // compiler moves no access across it.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp], 0");
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    fence(Ordering::SeqCst);
}

/// Yields the processor to another thread. The engine's waiting threads yield only here.
#[cold]
pub fn relax() {
    thread::yield_now();
}

/// Tries every interleaving of `f`, up to three preemptions.
#[cfg(all(test, loom))]
pub(crate) fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

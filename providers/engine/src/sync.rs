//! Atomics, locks and threads: those of the standard library, or loom's under `cfg(loom)`.
//!
//! The rings and the pins import from here only, so that the model checker sees the code that runs. The spin lock is
//! verbs-api's, which chooses in the same way. Read `lock` next.

// This module wraps two instructions of assembly.
#![allow(unsafe_code)]

#[cfg(loom)]
pub use loom::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread,
};
#[cfg(not(loom))]
pub use std::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread,
};
#[cfg(not(loom))]
pub use verbs_api::provider::{ForkLock, Mutex};

/// The model checker's lock, with the interface of [`verbs_api::provider::Mutex`].
#[cfg(loom)]
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> Mutex<T> {
    /// Creates a free lock.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Waits until the lock is free and takes it.
    pub fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

/// Takes the place of the lock for forks: the threads of the model checker do not fork.
#[cfg(loom)]
pub type ForkLock<T> = Mutex<T>;

/// Fetches the cache line of an address before it is used.
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

//! Calls of signal handlers.
//!
//! A handler may have interrupted a call of its own thread, which holds a lock of a socket or of the allocator then. A call of the
//! handler would wait for that lock for ever. So a thread has a mark while it is inside a call, which costs no system call, and a
//! handler's call that finds the mark does nothing and fails. While a call sleeps it holds no lock, and its thread has no mark.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

thread_local! {
    // For this thread and its signal handlers. They have no destructors, so a handler may look at any time.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    /// What closes a descriptor, where a handler has closed one.
    static CLOSE: Cell<Option<fn(RawFd)>> = const { Cell::new(None) };
}

/// A bit for each descriptor that a handler has closed, until the call ends that the handler has interrupted.
static CLOSED: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// The calling thread is inside a call as long as there is this.
pub(crate) struct Inside(());

impl Inside {
    /// `None` in a signal handler that has interrupted a call.
    pub(crate) fn enter() -> Option<Self> {
        (!enter()).then(|| Self(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        leave();
    }
}

/// Has a call sleep, which holds no lock: handlers may call meanwhile.
pub(crate) fn asleep<T>(sleep: impl FnOnce() -> T) -> T {
    leave();
    let woken = sleep();
    enter();
    woken
}

/// Has `close` close a descriptor when the call ends that the handler has interrupted.
pub(crate) fn close_later(descriptor: RawFd, close: fn(RawFd)) {
    let number = descriptor as usize;
    CLOSED[number / 64].fetch_or(1 << (number % 64), Ordering::SeqCst);
    CLOSE.set(Some(close));
}

/// Sets the mark. Returns whether it was set.
fn enter() -> bool {
    let was_inside = IS_INSIDE.replace(true);
    compiler_fence(Ordering::SeqCst);
    was_inside
}

fn leave() {
    loop {
        while let Some(close) = CLOSE.take() {
            closed().for_each(close);
        }
        compiler_fence(Ordering::SeqCst);
        IS_INSIDE.set(false);
        compiler_fence(Ordering::SeqCst);
        // A handler may have closed one between the two.
        if CLOSE.get().is_none() {
            return;
        }
        enter();
    }
}

/// The descriptors that are to be closed, each once.
fn closed() -> impl Iterator<Item = RawFd> {
    let words = CLOSED.iter().zip(0..);
    words.flat_map(|(word, place)| {
        let word = word.swap(0, Ordering::SeqCst);
        (0..64)
            .filter(move |bit| word >> bit & 1 != 0)
            .map(move |bit| place * 64 + bit)
    })
}

//! Calls from signal handlers.
//!
//! A handler may have interrupted a call of its own thread while that call held a lock of a socket or of the allocator. A call of
//! the handler would wait for that lock forever. So each thread has a mark while it is inside a call, which costs no system call,
//! and a call of a handler that finds the mark fails without effect. While a call sleeps, it holds no lock and its thread has no
//! mark.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

thread_local! {
    // These are for the thread and its signal handlers. They have no destructors, so that a handler may read them at any time.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The function that closes a descriptor, if a handler has closed one.
    static CLOSE: Cell<Option<fn(RawFd)>> = const { Cell::new(None) };
}

/// A bit for each descriptor that a handler has closed. The interrupted call closes it when it ends.
static CLOSED: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// While this exists, the calling thread is inside a call.
pub(crate) struct Inside(());

impl Inside {
    /// Returns `None` in a signal handler that has interrupted a call.
    pub(crate) fn enter() -> Option<Self> {
        (!enter()).then(|| Self(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        leave();
    }
}

/// Runs a call that sleeps and holds no lock: handlers may make calls in the meantime.
pub(crate) fn asleep<T>(sleep: impl FnOnce() -> T) -> T {
    leave();
    let woken = sleep();
    enter();
    woken
}

/// Leaves it to the interrupted call to close the descriptor with `close` when it ends.
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
        // A handler may have closed a descriptor before the mark was removed.
        if CLOSE.get().is_none() {
            return;
        }
        enter();
    }
}

/// Takes the descriptors that have to be closed, each once.
fn closed() -> impl Iterator<Item = RawFd> {
    let words = CLOSED.iter().zip(0..);
    words.flat_map(|(word, place)| {
        let word = word.swap(0, Ordering::SeqCst);
        (0..64)
            .filter(move |bit| word >> bit & 1 != 0)
            .map(move |bit| place * 64 + bit)
    })
}

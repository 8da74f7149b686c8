//! Calls from signal handlers.
//!
//! A signal handler may have interrupted a call of its own thread while that call held a lock of a socket or of the
//! allocator, and a call of the handler would wait for that lock forever. So each thread has a mark while it is inside a
//! call, which costs no system call. A call of a handler that finds the mark fails without effect. While a call sleeps, it
//! holds no lock and its thread has no mark.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

thread_local! {
    // Whether the thread is inside a call. Only the thread and its signal handlers access these variables, which have no
    // destructors, so that a handler may read them at any time.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The function that closes a descriptor, for the interrupted call to run; `None` if no handler has closed a
    /// descriptor.
    static CLOSE: Cell<Option<fn(RawFd)>> = const { Cell::new(None) };
}

/// A bit for each descriptor that a signal handler has closed and that the interrupted call has to close when it ends.
static CLOSED: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Marks the calling thread as inside a call for as long as this exists.
pub(crate) struct Inside(());

impl Inside {
    /// Marks the calling thread. Returns `None` if it is marked already: then the caller runs in a signal handler that has
    /// interrupted a call.
    pub(crate) fn enter() -> Option<Self> {
        (!enter()).then(|| Self(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        leave();
    }
}

/// Runs the part of a call that sleeps and holds no lock, without the mark: signal handlers may make calls in the meantime.
pub(crate) fn asleep<T>(sleep: impl FnOnce() -> T) -> T {
    leave();
    let woken = sleep();
    enter();
    woken
}

/// Has the interrupted call close the descriptor, by `close`, when it ends. Called by a signal handler.
pub(crate) fn close_later(descriptor: RawFd, close: fn(RawFd)) {
    let number = descriptor as usize;
    CLOSED[number / 64].fetch_or(1 << (number % 64), Ordering::SeqCst);
    CLOSE.set(Some(close));
}

/// Sets the mark of the calling thread. Returns whether it was set already.
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
        // A signal handler may have closed a descriptor just before the mark was removed.
        if CLOSE.get().is_none() {
            return;
        }
        enter();
    }
}

/// Takes the descriptors that signal handlers have closed, each once.
fn closed() -> impl Iterator<Item = RawFd> {
    let words = CLOSED.iter().zip(0..);
    words.flat_map(|(word, place)| {
        let word = word.swap(0, Ordering::SeqCst);
        (0..64)
            .filter(move |bit| word >> bit & 1 != 0)
            .map(move |bit| place * 64 + bit)
    })
}

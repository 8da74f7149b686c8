//! Waiting of a test for another thread, another process or the kernel: for a condition, never for a fixed time.
//!
//! A test that waits states an order of events. [`PATIENCE`] only ends a test that would hang. No test may assert that
//! something took less time, because it takes longer on a busy machine.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

pub use crate::children::{forked_beside, in_a_child};

/// The time after which a waiting test fails. Tests also pass it to calls that take a timeout.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// A deadline [`PATIENCE`] from now, for calls that take a deadline.
pub fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// Waits until `found` returns a value, and returns the value.
///
/// # Panics
/// `found` returns `None` for longer than [`PATIENCE`].
#[track_caller]
pub fn until_some<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    for polls in 0_u32.. {
        if let Some(value) = found() {
            return value;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "the test waited {PATIENCE:?} for a condition that did not come true"
        );
        // A thread that only yields waits for all others on a busy machine; a thread that sleeps is woken before them.
        if polls >= 10 {
            thread::sleep(Duration::from_micros(polls.clamp(20, 200).into()));
        }
    }
    unreachable!("the loop has no other end")
}

/// Waits until `is_true` returns `true`.
///
/// # Panics
/// `is_true` returns `false` for longer than [`PATIENCE`].
#[track_caller]
pub fn until(mut is_true: impl FnMut() -> bool) {
    until_some(|| is_true().then_some(()));
}

/// A thread of this process whose state another thread checks.
pub struct WatchedThread(String);

impl WatchedThread {
    /// The calling thread.
    ///
    /// # Panics
    /// `/proc` is not mounted.
    #[must_use]
    pub fn current() -> Self {
        let thread = fs::read_link("/proc/thread-self").expect("/proc is mounted");
        Self(format!("/proc/{}/stat", thread.display()))
    }

    /// Whether the thread is suspended by the kernel until it is woken, for example while it waits for a lock, a message or
    /// a timeout.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        let stat = fs::read_to_string(&self.0).unwrap_or_default();
        // The name of the thread, in parentheses, may contain anything.
        stat.rsplit_once(") ")
            .is_some_and(|(_, state)| state.starts_with('S'))
    }
}

//! Threads of the program that sleep until something changes at a socket.
//!
//! While programs poll, the threads of nodes leave the completion queues to them, and look only now and then whether they still do.
//! A thread that sleeps in a call of its own, as in `poll`, therefore says so.

use std::hint;
use std::ops::RangeInclusive;
use std::os::unix::process::parent_id;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::node;

/// So many system calls that do nothing take about as long as to sleep and to be woken.
const SPIN_CALLS: u32 = 1000;
const SPIN: RangeInclusive<Duration> = Duration::from_micros(50)..=Duration::from_millis(2);

/// How long a thread looks by itself before it sleeps.
pub(crate) static SPIN_TIME: LazyLock<Duration> = LazyLock::new(|| {
    let calls = (0..8).map(|_| {
        let began = Instant::now();
        (0..16).for_each(|_| _ = hint::black_box(parent_id()));
        began.elapsed() / 16
    });
    let shortest = calls.min().unwrap_or_default();
    (shortest * SPIN_CALLS).clamp(*SPIN.start(), *SPIN.end())
});

/// A sleep that ends within so many times that time would better have been none.
const LONGER: u32 = 4;

/// How long the calls of a socket look by themselves before they sleep: longer after a sleep that was short, as those are of a program
/// that is answered again and again.
#[derive(Default)]
pub(crate) struct Spin {
    is_longer: AtomicBool,
    /// When the wait began that came to a sleep, in nanoseconds; 0 where there is none.
    since: AtomicU64,
}

impl Spin {
    pub(crate) fn time(&self) -> Duration {
        match self.is_longer.load(Ordering::Relaxed) {
            true => *SPIN_TIME * LONGER,
            false => *SPIN_TIME,
        }
    }

    /// A wait that began at this time comes to a sleep.
    pub(crate) fn sleeps(&self, began: Duration) {
        self.since.store(began.as_nanos() as u64, Ordering::Relaxed);
    }

    /// There is what was waited for, if anything was.
    pub(crate) fn is_awake(&self, now: impl FnOnce() -> Duration) {
        if self.since.load(Ordering::Relaxed) != 0 {
            let since = Duration::from_nanos(self.since.swap(0, Ordering::Relaxed));
            let is_short = now().saturating_sub(since) < *SPIN_TIME * LONGER;
            self.is_longer.store(is_short, Ordering::Relaxed);
        }
    }
}

static SLEEPING: AtomicUsize = AtomicUsize::new(0);

/// A thread that sleeps, or is about to: as long as there is one, each change at a socket is told at once
/// ([`RdsSocket::on_change`](crate::RdsSocket::on_change)). Making one takes no lock, so that a signal handler may.
#[derive(Debug)]
#[must_use = "changes are told at once as long as it is there"]
pub struct Sleeping(());

impl Sleeping {
    /// Before the last look: what changes after it is told.
    #[expect(clippy::new_without_default, reason = "making one has an effect")]
    pub fn new() -> Self {
        SLEEPING.fetch_add(1, Ordering::SeqCst);
        node::look_at_once();
        Self(())
    }

    /// Ends one that was forgotten ([`std::mem::forget`]): for those who can keep none.
    pub fn forgotten_is_over() {
        drop(Self(()));
    }

    /// Whether there is one in this process.
    pub(crate) fn is_any() -> bool {
        SLEEPING.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        SLEEPING.fetch_sub(1, Ordering::SeqCst);
    }
}

//! How long a thread polls before it sleeps.

use std::hint;
use std::ops::RangeInclusive;
use std::os::unix::process::parent_id;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polyverbs::provider::PerProcess;

/// This many trivial system calls take about as long as a sleep and a wake-up.
const SPIN_CALLS: u32 = 1000;
const SPIN: RangeInclusive<Duration> = Duration::from_micros(50)..=Duration::from_millis(2);

/// The time that a sleep and a wake-up take, estimated once for each process.
pub(crate) static SPIN_TIME: PerProcess<Duration> = PerProcess::new(|| {
    let calls = (0..8).map(|_| {
        let began = Instant::now();
        (0..16).for_each(|_| _ = hint::black_box(parent_id()));
        began.elapsed() / 16
    });
    let shortest = calls.min().unwrap_or_default();
    (shortest * SPIN_CALLS).clamp(*SPIN.start(), *SPIN.end())
});

/// A sleep that is shorter than this many spin times should have been replaced by polling.
const LONGER: u32 = 4;

/// How long the calls of a socket poll before they sleep. They poll longer after a sleep that was short, as the sleeps of a
/// program are that receives one answer after the other.
#[derive(Default)]
pub(crate) struct Spin {
    is_longer: AtomicBool,
    /// When the wait began that ended in a sleep, in nanoseconds; 0 if none did.
    since: AtomicU64,
}

impl Spin {
    pub(crate) fn time(&self) -> Duration {
        match self.is_longer.load(Ordering::Relaxed) {
            true => *SPIN_TIME * LONGER,
            false => *SPIN_TIME,
        }
    }

    /// Notes that a wait, which began at this time, ends in a sleep.
    pub(crate) fn sleeps(&self, began: Duration) {
        self.since.store(began.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Notes that the wait is over, if one ended in a sleep.
    pub(crate) fn is_awake(&self, now: impl FnOnce() -> Duration) {
        if self.since.load(Ordering::Relaxed) != 0 {
            let since = Duration::from_nanos(self.since.swap(0, Ordering::Relaxed));
            let is_short = now().saturating_sub(since) < *SPIN_TIME * LONGER;
            self.is_longer.store(is_short, Ordering::Relaxed);
        }
    }
}

//! How long a thread polls for a message or completion before it sleeps.

use std::hint;
use std::ops::RangeInclusive;
use std::os::unix::process::parent_id;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polyverbs::provider::PerProcess;

/// The number of trivial system calls that take about as long as putting a thread to sleep and waking it again.
const SPIN_CALLS: u32 = 1000;
const SPIN: RangeInclusive<Duration> = Duration::from_micros(50)..=Duration::from_millis(2);

/// The time that putting a thread to sleep and waking it takes, estimated once per process by timing system calls.
pub(crate) static SPIN_TIME: PerProcess<Duration> = PerProcess::new(|| {
    let calls = (0..8).map(|_| {
        let began = Instant::now();
        (0..16).for_each(|_| _ = hint::black_box(parent_id()));
        began.elapsed() / 16
    });
    let shortest = calls.min().unwrap_or_default();
    (shortest * SPIN_CALLS).clamp(*SPIN.start(), *SPIN.end())
});

/// The factor by which polling is extended, in multiples of `SPIN_TIME`. A sleep shorter than that should have been avoided
/// by polling.
const LONGER: u32 = 4;

/// How long the calls of one socket poll before they sleep. After a short sleep they poll longer, because the program is
/// likely to wait for one answer after another.
#[derive(Default)]
pub(crate) struct Spin {
    is_longer: AtomicBool,
    /// When the wait began that led to the present sleep, in nanoseconds; 0 if no thread sleeps.
    since: AtomicU64,
}

impl Spin {
    pub(crate) fn time(&self) -> Duration {
        match self.is_longer.load(Ordering::Relaxed) {
            true => *SPIN_TIME * LONGER,
            false => *SPIN_TIME,
        }
    }

    /// Notes that a wait that began at this time leads to a sleep.
    pub(crate) fn sleeps(&self, began: Duration) {
        self.since.store(began.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Notes the end of a wait. If it included a sleep, decides by its length how long later waits poll.
    pub(crate) fn is_awake(&self, now: impl FnOnce() -> Duration) {
        if self.since.load(Ordering::Relaxed) != 0 {
            let since = Duration::from_nanos(self.since.swap(0, Ordering::Relaxed));
            let is_short = now().saturating_sub(since) < *SPIN_TIME * LONGER;
            self.is_longer.store(is_short, Ordering::Relaxed);
        }
    }
}

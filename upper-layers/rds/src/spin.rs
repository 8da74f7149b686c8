//! How long a thread looks by itself before it sleeps.

use std::hint;
use std::ops::RangeInclusive;
use std::os::unix::process::parent_id;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polyverbs::provider::PerProcess;

/// So many system calls that do nothing take about as long as to sleep and to be woken.
const SPIN_CALLS: u32 = 1000;
const SPIN: RangeInclusive<Duration> = Duration::from_micros(50)..=Duration::from_millis(2);

/// About as long as a sleep and a wake-up take.
pub(crate) static SPIN_TIME: PerProcess<Duration> = PerProcess::new(|| {
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

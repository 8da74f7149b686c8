//! Yardsticks: the times that this machine takes for the primitives of which posting and polling consist.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::partner::Partner;
use crate::sample::nanoseconds;
use crate::side::Spin;

/// Aligns a value to 128 bytes, two cache lines, so that the value shares these lines with no other value: processors
/// fetch cache lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Alone<T>(T);

/// Measures an uncontended read-modify-write: a compare-exchange that sets a flag, and the release store that clears
/// the flag. Returns the mean time of `turns` such pairs in nanoseconds. Taking and releasing a lock on the fast path
/// costs one such pair.
pub fn read_modify_write(turns: u64) -> f64 {
    let flag = Alone(AtomicBool::new(false));
    let flag = black_box(&flag);
    nanoseconds(turns, || {
        let taken = flag
            .0
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        assert!(taken.is_ok());
        flag.0.store(false, Ordering::Release);
    })
}

/// Measures a bare `fetch_add` on a cache line of its own; returns the mean time of `turns` calls in nanoseconds. The
/// result shows whether the figure of [`read_modify_write`], which is defined by this project, is plausible.
pub fn fetch_add(turns: u64) -> f64 {
    let count = Alone(AtomicU64::new(0));
    let count = black_box(&count);
    nanoseconds(turns, || {
        count.0.fetch_add(1, Ordering::AcqRel);
    })
}

/// Measures the time that a cache line takes from the calling thread's processor to the partner thread's: the two
/// threads set one flag in turn, each after it has seen the value that the other thread has set. Returns half of the
/// mean time of `round_trips` round trips, in nanoseconds.
pub fn line_crossing(partner: &Partner, round_trips: u64) -> f64 {
    let flag = Arc::new(Alone(AtomicU64::new(0)));
    let theirs = Arc::clone(&flag);
    let echo = move || {
        for trip in 0..round_trips {
            wait_for(&theirs.0, 2 * trip + 1);
            theirs.0.store(2 * trip + 2, Ordering::Release);
        }
    };
    let mut sent = 0;
    let trip = || {
        flag.0.store(sent + 1, Ordering::Release);
        sent += 2;
        wait_for(&flag.0, sent);
    };
    let ((), each) = partner.with(echo, || nanoseconds(round_trips, trip));
    each / 2.0
}

#[inline]
fn wait_for(flag: &AtomicU64, value: u64) {
    let mut spin = Spin::default();
    while flag.load(Ordering::Acquire) != value {
        spin.once();
    }
}

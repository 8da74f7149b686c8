//! The time that the machine takes for the primitives of which the fast path is made.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::partner::Partner;
use crate::sample::nanoseconds;
use crate::side::Spin;

/// A value that shares no pair of cache lines with another: processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Alone<T>(T);

/// An uncontended read-modify-write in nanoseconds: a compare-exchange that takes a free flag, and the release store
/// that frees it. Every lock of the fast path is one of these.
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

/// A bare `fetch_add` on a cache line of its own, in nanoseconds: a check of [`read_modify_write`] that does not
/// depend on its definition.
pub fn fetch_add(turns: u64) -> f64 {
    let count = Alone(AtomicU64::new(0));
    let count = black_box(&count);
    nanoseconds(turns, || {
        count.0.fetch_add(1, Ordering::AcqRel);
    })
}

/// The time that a cache line takes to the partner's processor, in nanoseconds: half of a round trip of one flag,
/// which each thread waits for and then sets.
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

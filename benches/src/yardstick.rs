//! The time that the machine takes for the primitives of which the fast path is made.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::partner::Partner;
use crate::sample::nanoseconds;

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
    partner.with(echo, || nanoseconds(round_trips, trip)) / 2.0
}

/// Places in memory, each of which holds the index of the next: no two share a cache line, and there are too many for any cache.
pub struct Misses {
    next: Vec<u32>,
    at: usize,
}

impl Misses {
    // The distance in `u32`s, so that places are 1 KiB apart.
    const APART: usize = 256;

    /// Makes `count` places in an order without pattern.
    ///
    /// # Panics
    /// If there are none, or more than 2^24.
    pub fn new(count: u32) -> Self {
        assert!((1..=1 << 24).contains(&count));
        let order = shuffled(count);
        let mut next = vec![0; count as usize * Self::APART];
        for (from, to) in order.iter().zip(order.iter().cycle().skip(1)) {
            next[*from as usize * Self::APART] = to * Self::APART as u32;
        }
        Self { next, at: 0 }
    }

    /// The time of a load that misses every cache and on which the next load depends, in nanoseconds.
    pub fn miss(&mut self, turns: u64) -> f64 {
        let mut at = self.at;
        let each = nanoseconds(turns, || at = self.next[at] as usize);
        self.at = black_box(at);
        each
    }
}

/// The numbers below `count` in an order without pattern: that of Fisher and Yates, the same in every run.
pub fn shuffled(count: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(last, (state % (last as u64 + 1)) as usize);
    }
    order
}

fn wait_for(flag: &AtomicU64, value: u64) {
    while flag.load(Ordering::Acquire) != value {
        spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_without_pattern_names_each_number_once() {
        let mut order = shuffled(1000);
        let near = order
            .windows(2)
            .filter(|two| two[0].abs_diff(two[1]) < 4)
            .count();
        assert!(near < 50, "{near}");
        order.sort_unstable();
        assert!(order.iter().copied().eq(0..1000));
    }

    #[test]
    fn every_place_is_visited_before_the_first_again() {
        let mut misses = Misses::new(100);
        let visited: std::collections::HashSet<_> = (0..100)
            .map(|_| {
                misses.miss(1);
                misses.at
            })
            .collect();
        assert_eq!((visited.len(), misses.at), (100, 0));
    }
}

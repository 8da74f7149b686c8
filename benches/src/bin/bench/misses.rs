//! Loads that miss every cache.

use std::hint::black_box;

use polyverbs_benches::sample::nanoseconds;

/// Places in memory, each of which holds the index of the next: no two share a cache line, and there are too many for any cache.
pub(crate) struct Misses {
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
    pub(crate) fn new(count: u32) -> Self {
        assert!((1..=1 << 24).contains(&count));
        let order = shuffled(count);
        let mut next = vec![0; count as usize * Self::APART];
        for (from, to) in order.iter().zip(order.iter().cycle().skip(1)) {
            next[*from as usize * Self::APART] = to * Self::APART as u32;
        }
        Self { next, at: 0 }
    }

    /// The time of a load that misses every cache and on which the next load depends, in nanoseconds.
    pub(crate) fn miss(&mut self, turns: u64) -> f64 {
        let mut at = self.at;
        let each = nanoseconds(turns, || at = self.next[at] as usize);
        self.at = black_box(at);
        each
    }
}

/// The numbers below `count` in an order without pattern: that of Fisher and Yates, the same in every run.
pub(crate) fn shuffled(count: u32) -> Vec<u32> {
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

//! A yardstick: the time of a load from memory that misses every cache of the processor.

use std::hint::black_box;

use polyverbs_benches::sample::nanoseconds;

/// A chain of places in memory, each of which holds the index of the next place. No two places share a cache line, and with
/// enough places (100,000 are 100 MiB) no cache holds the chain.
pub(crate) struct Misses {
    next: Vec<u32>,
    at: usize,
}

impl Misses {
    // The distance of two places, in `u32`s: 1 KiB.
    const APART: usize = 256;

    /// Makes a chain of `count` places, which visits all of them in a pseudo-random order and then begins again.
    ///
    /// # Panics
    /// If `count` is 0, or more than 2^24.
    pub(crate) fn new(count: u32) -> Self {
        assert!((1..=1 << 24).contains(&count));
        let order = shuffled(count);
        let mut next = vec![0; count as usize * Self::APART];
        for (from, to) in order.iter().zip(order.iter().cycle().skip(1)) {
            next[*from as usize * Self::APART] = to * Self::APART as u32;
        }
        Self { next, at: 0 }
    }

    /// Follows the chain for `turns` loads, each of which needs the result of the load before; returns the mean time of a
    /// load in nanoseconds.
    pub(crate) fn miss(&mut self, turns: u64) -> f64 {
        let mut at = self.at;
        let each = nanoseconds(turns, || at = self.next[at] as usize);
        self.at = black_box(at);
        each
    }
}

/// Returns the numbers below `count` in a pseudo-random order (a Fisher-Yates shuffle), which is the same in every run.
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

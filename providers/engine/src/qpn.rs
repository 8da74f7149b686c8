//! Queue pair numbers.

use std::collections::{HashSet, VecDeque};

use crate::sync::Mutex;

/// Allocates queue pair numbers of a range. A freed number is allocated again only after all that were never used and all
/// that were freed earlier.
pub struct QpnPool {
    state: Mutex<State>,
}

struct State {
    first: u32,
    end: u32,
    next: u32,
    /// How many numbers have never been allocated.
    fresh: u32,
    freed: VecDeque<u32>,
    used: HashSet<u32>,
}

impl QpnPool {
    /// Creates a pool of the numbers from `first` to `end`, exclusive; 0 and 1 are never in it. The first number that it
    /// allocates is `first + after`, modulo the size of the range. The number after the last one is `first`.
    pub fn new(first: u32, end: u32, after: u32) -> Self {
        let (first, end) = (first.max(2), end.min(0xff_ffff));
        let fresh = end.saturating_sub(first);
        let state = State {
            first,
            end,
            next: first + after.checked_rem(fresh).unwrap_or_default(),
            fresh,
            freed: VecDeque::new(),
            used: HashSet::new(),
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// Allocates a number: one that was never used if there is any, otherwise the one that was freed first. `None` if all
    /// are in use.
    pub fn allocate(&self) -> Option<u32> {
        let mut state = self.state.lock();
        let qpn = state.fresh().or_else(|| state.freed.pop_front())?;
        state.used.insert(qpn);
        Some(qpn)
    }

    /// Frees a number. One that is not in use is ignored.
    pub fn free(&self, qpn: u32) {
        let mut state = self.state.lock();
        if state.used.remove(&qpn) {
            state.freed.push_back(qpn);
        }
    }
}

impl State {
    fn fresh(&mut self) -> Option<u32> {
        self.fresh = self.fresh.checked_sub(1)?;
        let qpn = self.next;
        let is_last = qpn + 1 == self.end;
        self.next = if is_last { self.first } else { qpn + 1 };
        Some(qpn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers 6.13
    #[test]
    fn the_number_that_rested_longest_is_reused_first() {
        let pool = QpnPool::new(0, 10, 0);
        let all: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(all, (2..10).collect::<Vec<_>>());
        assert_eq!(pool.allocate(), None);
        pool.free(5);
        pool.free(3);
        pool.free(3);
        assert!(std::iter::from_fn(|| pool.allocate()).eq([5, 3]));
    }

    #[test]
    fn a_range_that_begins_in_the_middle_wraps() {
        let ranges = [(3, [5, 6, 2, 3, 4]), (5, [2, 3, 4, 5, 6])];
        for (after, expected) in ranges {
            let pool = QpnPool::new(0, 7, after);
            assert!(std::iter::from_fn(|| pool.allocate()).eq(expected));
        }
        assert_eq!(QpnPool::new(7, 7, 1).allocate(), None);
    }
}

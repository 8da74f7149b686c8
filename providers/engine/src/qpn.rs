//! Queue pair numbers.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers of a range. A freed number rests before it is used again.
pub struct QpnPool {
    state: Mutex<State>,
}

struct State {
    next: u32,
    end: u32,
    freed: VecDeque<u32>,
    used: HashSet<u32>,
}

impl QpnPool {
    /// Numbers from `first` up to `end`, which is not among them. 0 and 1 are never ordinary.
    pub fn new(first: u32, end: u32) -> Self {
        let state = State {
            next: first.max(2),
            end: end.min(0xff_ffff),
            freed: VecDeque::new(),
            used: HashSet::new(),
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// The next number: one never used while there is any, else the one that has rested longest.
    pub fn allocate(&self) -> Option<u32> {
        let mut state = self.state();
        let qpn = if state.next < state.end {
            state.next += 1;
            state.next - 1
        } else {
            state.freed.pop_front()?
        };
        state.used.insert(qpn);
        Some(qpn)
    }

    /// Gives a number back.
    pub fn free(&self, qpn: u32) {
        let mut state = self.state();
        if state.used.remove(&qpn) {
            state.freed.push_back(qpn);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers 6.13
    #[test]
    fn a_small_range_is_used_up_and_refilled_with_the_number_that_rested_longest() {
        let pool = QpnPool::new(0, 10);
        let all: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(all, (2..10).collect::<Vec<_>>());
        assert_eq!(pool.allocate(), None);
        pool.free(5);
        pool.free(3);
        pool.free(3);
        assert_eq!(
            (pool.allocate(), pool.allocate(), pool.allocate()),
            (Some(5), Some(3), None)
        );
    }
}

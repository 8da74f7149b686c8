//! Slots of a send queue that are freed as hardware frees them: a request holds its slot until the program has polled its
//! completion or that of a later request.

use std::collections::VecDeque;

use crate::sync::Mutex;

/// Numbers of slots of a send queue, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) ordinary: u32,
    /// Slots that are reserved for portable operations, which the library makes of one or two requests.
    pub(crate) reserved: u32,
}

impl Held {
    pub(crate) fn add(&mut self, is_reserved: bool) {
        match is_reserved {
            true => self.reserved += 1,
            false => self.ordinary += 1,
        }
    }
}

/// The slots of one send queue that requests hold.
#[derive(Default)]
pub(crate) struct Slots(Mutex<State>);

#[derive(Default)]
struct State {
    held: Held,
    // Slots of requests that completed after the newest completion that the program can poll.
    completed: Held,
    // The slots that each unpolled completion frees, oldest first.
    unpolled: VecDeque<Held>,
}

impl Slots {
    pub(crate) fn held(&self) -> Held {
        self.0.lock().held
    }

    /// Notes that a posted request holds a slot, and whether that slot is a reserved one.
    pub(crate) fn take(&self, is_reserved: bool) {
        self.0.lock().held.add(is_reserved);
    }

    /// Notes that the oldest request has completed; `is_told` says whether it has a completion to poll.
    pub(crate) fn complete(&self, is_reserved: bool, is_told: bool) {
        let mut state = self.0.lock();
        state.completed.add(is_reserved);
        if is_told {
            let freed = std::mem::take(&mut state.completed);
            state.unpolled.push_back(freed);
        }
    }

    /// Frees the slots that the oldest unpolled completion frees, because the program has polled it.
    pub(crate) fn polled(&self) {
        let mut state = self.0.lock();
        let freed = state.unpolled.pop_front().unwrap_or_default();
        state.held.ordinary = state.held.ordinary.saturating_sub(freed.ordinary);
        state.held.reserved = state.held.reserved.saturating_sub(freed.reserved);
    }

    /// Frees all slots, because the queue was reset and is empty.
    pub(crate) fn reset(&self) {
        *self.0.lock() = State::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_polled_completion_frees_what_completed_before_it() {
        let slots = Slots::default();
        (0..3).for_each(|_| slots.take(false));
        slots.take(true);
        slots.complete(false, false);
        slots.complete(false, true);
        slots.complete(false, false);
        let all = Held {
            ordinary: 3,
            reserved: 1,
        };
        assert_eq!(slots.held(), all, "no completion was polled");
        slots.polled();
        let left = Held { ordinary: 1, ..all };
        assert_eq!(slots.held(), left);
        slots.complete(true, true);
        slots.polled();
        assert_eq!(slots.held(), Held::default());
    }
}

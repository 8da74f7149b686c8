//! Slots of a send queue that are freed as hardware frees them: a request holds its slot until the program has polled its
//! completion or that of a later request.

use std::collections::VecDeque;

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
#[derive(Debug, Default)]
pub(crate) struct Slots {
    held: Held,
    // Slots of requests that completed after the newest completion that the program can poll.
    completed: Held,
    // The completions that the program had not polled when this was last compared with the completion queue, oldest first: the
    // position of each in that queue, and the slots that its poll frees.
    unpolled: VecDeque<(u64, Held)>,
}

impl Slots {
    /// The slots that were held when completions were last [freed](Self::free).
    pub(crate) fn held(&self) -> Held {
        self.held
    }

    /// Frees the slots of completions that the program has polled: those whose position in the completion queue is below
    /// `polled`.
    pub(crate) fn free(&mut self, polled: u64) {
        let count = self.unpolled.partition_point(|(at, _)| *at < polled);
        for (_, freed) in self.unpolled.drain(..count) {
            self.held.ordinary -= freed.ordinary;
            self.held.reserved -= freed.reserved;
        }
    }

    /// Notes that a posted request holds a slot, and whether that slot is a reserved one.
    pub(crate) fn take(&mut self, is_reserved: bool) {
        self.held.add(is_reserved);
    }

    /// Notes that the oldest request has completed, and the position of its completion in the completion queue; `None` if
    /// there is none to poll.
    pub(crate) fn complete(&mut self, is_reserved: bool, at: Option<u64>) {
        self.completed.add(is_reserved);
        if let Some(at) = at {
            let freed = std::mem::take(&mut self.completed);
            self.unpolled.push_back((at, freed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_polled_completion_frees_what_completed_before_it() {
        let mut slots = Slots::default();
        (0..3).for_each(|_| slots.take(false));
        slots.take(true);
        slots.complete(false, None);
        slots.complete(false, Some(7));
        slots.complete(false, None);
        let all = Held {
            ordinary: 3,
            reserved: 1,
        };
        slots.free(7);
        assert_eq!(slots.held(), all, "the completion was not polled");
        slots.free(8);
        let left = Held { ordinary: 1, ..all };
        assert_eq!(slots.held(), left);
        slots.complete(true, Some(9));
        slots.free(10);
        assert_eq!(slots.held(), Held::default());
    }
}

//! Whether to ask for the traffic class of a message.
//!
//! It comes in a control message, and to read one with those costs a twentieth of a conversation's half round trip; another
//! hundredth is what the kernel does for a socket that asks, whoever reads. Where a reader only wants to know whether the
//! network marks what meets congestion (RFC 3168), a few messages of many tell that.

use std::sync::atomic::{AtomicU32, Ordering};

/// Of which messages of a socket the class is read, where not all are asked. One thread at a time notes.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    /// Messages since the last round began.
    at: AtomicU32,
    /// The kernel is asked for so many more, as several came at once.
    several: AtomicU32,
}

/// The first messages of a round, which are read with their class.
pub(crate) const WINDOW: u32 = 64;
/// All messages of a round.
pub(crate) const ROUND: u32 = 1024;

impl Classes {
    /// Whether the kernel is asked.
    pub(crate) fn asks(&self) -> bool {
        self.reads() || self.several.load(Ordering::Relaxed) > 0
    }

    /// Whether the next message is read with its class even if it comes by itself.
    pub(crate) fn reads(&self) -> bool {
        self.at.load(Ordering::Relaxed) < WINDOW
    }

    /// Begins a round.
    pub(crate) fn begin(&self) {
        self.at.store(0, Ordering::Relaxed);
    }

    /// Notes so many messages that came at once, and the class of the first, 0 where it was not read.
    pub(crate) fn note(&self, messages: usize, class: u8) {
        let at = match class & MARKED {
            MARKED => 0,
            _ => (self.at.load(Ordering::Relaxed) + messages as u32) % ROUND,
        };
        self.at.store(at, Ordering::Relaxed);
        let several = match messages {
            1 => self.several.load(Ordering::Relaxed).saturating_sub(1),
            _ => WINDOW,
        };
        self.several.store(several, Ordering::Relaxed);
    }
}

/// Congestion was met.
const MARKED: u8 = 0b11;

#[cfg(test)]
mod tests {
    use super::*;

    /// For how many of so many messages of this class, which come one by one, the kernel is asked, and how many are read with
    /// it.
    fn asked(classes: &Classes, messages: u32, class: u8) -> (u32, u32) {
        let (mut asked, mut read) = (0, 0);
        for _ in 0..messages {
            let reads = classes.reads();
            asked += u32::from(classes.asks());
            read += u32::from(reads);
            classes.note(1, if reads { class } else { 0 });
        }
        (asked, read)
    }

    #[test]
    fn a_window_of_each_round_is_asked_where_none_is_marked() {
        for class in [0b10, 0b01] {
            let classes = Classes::default();
            for _ in 0..3 {
                assert_eq!(asked(&classes, WINDOW, class), (WINDOW, WINDOW));
                assert_eq!(asked(&classes, ROUND - WINDOW, class), (0, 0));
            }
        }
    }

    #[test]
    fn all_are_asked_while_some_are_marked() {
        let classes = Classes::default();
        let others = WINDOW - 1;
        for _ in 0..ROUND {
            assert_eq!(asked(&classes, 1, MARKED), (1, 1));
            assert_eq!(asked(&classes, others, 0b10), (others, others));
        }
        assert_eq!(asked(&classes, ROUND - others, 0b10), (1, 1));
    }

    #[test]
    fn the_kernel_is_asked_for_what_follows_several_at_once() {
        let classes = Classes::default();
        asked(&classes, WINDOW, 0b10);
        for _ in 0..3 {
            classes.note(2, 0b10);
            assert_eq!(asked(&classes, WINDOW + 1, 0b10), (WINDOW, 0));
        }
        // They are messages of a round all the same.
        (0..ROUND / 4).for_each(|_| classes.note(4, 0b10));
        assert_eq!(asked(&classes, ROUND, 0b10).1, WINDOW);
    }

    #[test]
    fn several_at_once_of_which_the_first_is_marked_begin_a_round() {
        let classes = Classes::default();
        asked(&classes, WINDOW, 0b10);
        classes.note(2, MARKED);
        assert_eq!(asked(&classes, WINDOW + 1, 0b10), (WINDOW, WINDOW));
    }
}

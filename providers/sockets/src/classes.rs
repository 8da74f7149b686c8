//! Whether to ask for the traffic class of a message.
//!
//! It comes in a control message, and to read one with those costs a twentieth of a conversation's half round trip. Where a
//! reader only wants to know whether the network marks what meets congestion (RFC 3168), one message of many tells that.

/// What a reader has learned.
#[derive(Debug)]
pub(crate) struct Classes {
    /// Messages that are asked before any is not.
    asked: u32,
    /// Messages that are not asked before one is.
    unasked: u32,
}

/// Messages that are asked one after another, at first and after one that is marked.
const ATTENTIVE: u32 = 64;
/// Otherwise one of so many is.
const EVERY: u32 = 16;

impl Default for Classes {
    fn default() -> Self {
        Self {
            asked: ATTENTIVE,
            unasked: 0,
        }
    }
}

impl Classes {
    /// Whether the next message is asked.
    pub(crate) fn asks(&self) -> bool {
        self.unasked == 0
    }

    /// Notes what came of it: the class that was told, if it was asked.
    pub(crate) fn note(&mut self, told: Option<u8>) {
        match told {
            None => self.unasked = self.unasked.saturating_sub(1),
            Some(class) if class & MARKED == MARKED => *self = Self::default(),
            Some(_) => {
                self.asked = self.asked.saturating_sub(1);
                if self.asked == 0 {
                    self.unasked = EVERY - 1;
                }
            }
        }
    }
}

/// Congestion was met.
const MARKED: u8 = 0b11;

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many messages are asked that have this class.
    fn asked(classes: &mut Classes, messages: u32, class: u8) -> u32 {
        let ask = |_| {
            let asks = classes.asks();
            classes.note(asks.then_some(class));
            u32::from(asks)
        };
        (0..messages).map(ask).sum()
    }

    #[test]
    fn one_of_many_is_asked_where_none_is_marked() {
        let mut classes = Classes::default();
        for class in [0b10, 0b01] {
            assert_eq!(asked(&mut classes, ATTENTIVE, class), ATTENTIVE);
            assert_eq!(asked(&mut classes, 10 * EVERY, class), 10);
            classes = Classes::default();
        }
    }

    #[test]
    fn all_are_asked_while_some_are_marked() {
        let mut classes = Classes::default();
        for _ in 0..3 {
            asked(&mut classes, ATTENTIVE + EVERY, 0b10);
            assert!(asked(&mut classes, EVERY, MARKED) > 0);
            assert_eq!(asked(&mut classes, 10, MARKED), 10);
            assert_eq!(asked(&mut classes, ATTENTIVE - 1, 0b10), ATTENTIVE - 1);
            assert_eq!(asked(&mut classes, 1, MARKED), 1);
            assert_eq!(asked(&mut classes, ATTENTIVE, 0b10), ATTENTIVE);
        }
    }
}

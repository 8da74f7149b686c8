//! Whether to ask the kernel to join what arrives (GRO).
//!
//! Joined datagrams cost a fraction of as many single ones. But for a socket that joins the kernel looks at each message
//! whether it is joined, in a cache line that the sender's processor has: a sixteenth of a conversation's half round trip.
//! So it is asked only as long as something comes joined.

/// What a reader has learned.
#[derive(Debug)]
pub(crate) struct Joining {
    /// Messages, one after another, that speak for a change.
    against: u32,
    /// How many in a crowd it takes to ask again.
    patience: u32,
}

/// What one call brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brought {
    /// A message by itself.
    Single,
    /// So many messages at once, or with no empty call between them.
    Crowd(u32),
    /// Datagrams that were joined.
    Joined,
}

/// Messages that come as they are before the kernel is asked no more.
const IN_VAIN: u32 = 64;
/// Each time in vain it takes four times as many to ask again.
const IMPATIENT: u32 = 4;
const PATIENT: u32 = 1 << 14;

impl Default for Joining {
    fn default() -> Self {
        Self {
            against: 0,
            patience: IMPATIENT,
        }
    }
}

impl Joining {
    /// Notes what a call of a socket brought that asks, or does not; whether it should from now on do the other.
    pub(crate) fn note(&mut self, asks: bool, brought: Brought) -> bool {
        match (asks, brought) {
            (true, Brought::Joined) => *self = Self::default(),
            (true, Brought::Single) => self.against += 1,
            (_, Brought::Crowd(messages)) => self.against += messages,
            (false, _) => {}
        }
        let changes = self.against >= if asks { IN_VAIN } else { self.patience };
        if changes {
            self.against = 0;
            if asks {
                self.patience = (self.patience * 4).min(PATIENT);
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many times `brought` comes before the kernel is asked the other way.
    fn times(joining: &mut Joining, asks: bool, brought: Brought) -> u32 {
        (1..=PATIENT)
            .find(|_| joining.note(asks, brought))
            .expect("a change")
    }

    #[test]
    fn the_kernel_is_asked_less_and_less_often_as_long_as_nothing_is_joined() {
        let mut joining = Joining::default();
        for crowd in [16, 64, 256, 1024, 4096, PATIENT, PATIENT] {
            assert_eq!(times(&mut joining, true, Brought::Single), IN_VAIN);
            assert_eq!(times(&mut joining, false, Brought::Crowd(2)), crowd / 2);
        }
    }

    #[test]
    fn what_is_joined_is_joined_on_and_is_asked_for_soon_when_it_was_not() {
        let mut joining = Joining::default();
        for _ in 0..5 {
            times(&mut joining, true, Brought::Single);
            times(&mut joining, false, Brought::Crowd(2));
        }
        for _ in 0..10 * IN_VAIN {
            assert!(!joining.note(true, Brought::Crowd(IN_VAIN - 1)));
            assert!(!joining.note(true, Brought::Joined));
        }
        assert_eq!(times(&mut joining, true, Brought::Single), IN_VAIN);
        assert_eq!(times(&mut joining, false, Brought::Crowd(2)), 8);
    }

    #[test]
    fn a_conversation_gives_no_reason_to_ask() {
        let mut joining = Joining::default();
        times(&mut joining, true, Brought::Single);
        assert!((0..10 * PATIENT).all(|_| !joining.note(false, Brought::Single)));
    }
}

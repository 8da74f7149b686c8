//! Flow control by credits: a sender has one credit for each receive that its peer has posted.

/// Credits that one header advertises at most.
const MOST_ADVERTISED: u32 = u8::MAX as u32;

/// A peer is told of new receives by a message of its own when there are this many.
const WORTH_A_MESSAGE: u32 = 16;

/// More than any peer posts: one that advertises without an end is not believed.
const MOST: u32 = 0x3fff;

/// Both sides' receives, as far as this side knows. The last credit is used only to advertise new ones, so that two sides never wait for
/// each other without any.
#[derive(Debug)]
pub(crate) struct Credits {
    /// Receives of the peer that nothing has been sent to.
    available: u32,
    /// Own receives that the peer does not know of.
    posted: u32,
}

impl Credits {
    pub(crate) fn new(available: u32, posted: u32) -> Self {
        Self {
            available: available.min(MOST),
            posted,
        }
    }

    pub(crate) fn add(&mut self, credit: u8) {
        self.available = (self.available + u32::from(credit)).min(MOST);
    }

    pub(crate) fn post(&mut self, receives: u32) {
        self.posted += receives;
    }

    /// Whether new receives are worth a message of their own.
    pub(crate) fn is_update_due(&self) -> bool {
        self.posted >= WORTH_A_MESSAGE
    }

    pub(crate) fn can_send(&self) -> bool {
        self.available > u32::from(self.posted == 0)
    }

    /// Sends one message: what its header advertises. `None` where there is no credit for it.
    pub(crate) fn take(&mut self) -> Option<u8> {
        if !self.can_send() {
            return None;
        }
        self.available -= 1;
        let advertised = self.posted.min(MOST_ADVERTISED);
        self.posted -= advertised;
        u8::try_from(advertised).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers 8.48
    #[test]
    fn the_last_credit_advertises_receives() {
        let mut credits = Credits::new(2, 0);
        assert_eq!(credits.take(), Some(0));
        assert_eq!(credits.take(), None);
        credits.post(3);
        assert_eq!(credits.take(), Some(3));
        assert_eq!(credits.take(), None);
    }

    // covers 8.48
    #[test]
    fn a_header_advertises_255_receives_at_most() {
        let mut credits = Credits::new(10, 300);
        assert_eq!(credits.take(), Some(255));
        assert_eq!(credits.take(), Some(45));
    }

    #[test]
    fn a_peer_that_advertises_without_an_end_is_not_believed() {
        let mut credits = Credits::new(u32::MAX, 0);
        for _ in 0..1000 {
            credits.add(255);
        }
        assert_eq!(credits.available, MOST);
    }
}

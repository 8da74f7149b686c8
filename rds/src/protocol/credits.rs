//! Flow control by credits: a sender has one credit for each receive that its peer has posted.

/// The most credits that one header advertises.
const MOST_ADVERTISED: u32 = u8::MAX as u32;

/// A message of its own advertises new receives when there are this many.
const WORTH_A_MESSAGE: u32 = 16;

/// The most credits that a peer can give: more than any peer posts, so that endless advertisements cannot overflow the count.
const MOST: u32 = 0x3fff;

/// The receives of both sides, as far as this side knows. The last credit is used only to advertise new receives, so that the two
/// sides never wait for each other without credits.
#[derive(Debug)]
pub(crate) struct Credits {
    /// Receives of the peer that are free for messages.
    available: u32,
    /// Own receives that were not advertised to the peer yet.
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

    /// Whether there are enough new receives for a message of their own.
    pub(crate) fn is_update_due(&self) -> bool {
        self.posted >= WORTH_A_MESSAGE
    }

    pub(crate) fn can_send(&self) -> bool {
        self.available > u32::from(self.posted == 0)
    }

    /// Uses a credit for one message. Returns the receives that its header advertises; `None` if there is no credit for it.
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
    fn endless_advertisements_do_not_exceed_the_most_credits() {
        let mut credits = Credits::new(u32::MAX, 0);
        for _ in 0..1000 {
            credits.add(255);
        }
        assert_eq!(credits.available, MOST);
    }
}

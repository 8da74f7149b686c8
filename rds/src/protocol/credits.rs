//! Flow control by credits: each RDS header tops up the credits of its receiver, and a side may send one fragment for each
//! receive work request that its peer has posted and advertised.

/// The most credits that one header can advertise: its credit field has 8 bits.
const MOST_ADVERTISED: u32 = u8::MAX as u32;

/// The number of posted but unadvertised receives at which this side sends a message only to advertise them.
const WORTH_A_MESSAGE: u32 = 16;

/// The cap on the credits that a peer can grant: more than any peer posts, so that endless advertisements cannot overflow
/// the count.
const MOST: u32 = 0x3fff;

/// The credits of one connection in both directions, as far as this side knows them. The last credit is spent only on a
/// header that advertises new receives; otherwise both sides could run out of credits and wait for each other forever.
#[derive(Debug)]
pub(crate) struct Credits {
    /// Credits for sending: receives that the peer has advertised and this side has not used yet.
    available: u32,
    /// Receives that this side has posted and not yet advertised to the peer.
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

    /// Whether so many receives are unadvertised that this side should send a message only to advertise them.
    pub(crate) fn is_update_due(&self) -> bool {
        self.posted >= WORTH_A_MESSAGE
    }

    pub(crate) fn can_send(&self) -> bool {
        self.available > u32::from(self.posted == 0)
    }

    /// Spends one credit on one fragment. Returns the number of receives that its header advertises to the peer; `None` if
    /// there is no credit to spend, so that the fragment has to wait.
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

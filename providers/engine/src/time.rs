//! Time as the engine knows it: a number that its host hands in.

use std::time::Duration;

/// Nanoseconds since some fixed moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// Never.
    pub const NEVER: Self = Self(u64::MAX);

    /// This moment and `delay` after it.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

/// What carries an engine: tells the time, and calls back when some has passed.
///
/// The engine has no clock and no thread. Real devices run on a timer thread; tests run in virtual time.
pub trait Host: Send + Sync + 'static {
    /// Now. Called once per driver call that needs it, never per request.
    fn now(&self) -> Time;

    /// A moment that is not before now, unless the system is late with its ticks, and some milliseconds after it at most:
    /// for what may be so late, and happens so often that a clock would be dear.
    fn soon(&self) -> Time {
        self.now()
    }

    /// `at` is the next moment at which something is due ([`Time::NEVER`] is never passed): call `handle_timeout` then.
    /// Called often, from any thread, possibly with locks held: only note it.
    fn wake_at(&self, at: Time);

    /// A number that peers cannot guess; where runs are to be repeated, one that follows from a seed.
    fn random(&self) -> u64;
}

/// Acknowledge timeout: 4.096 µs x 2^code; `None` for 0, which never times out (IBTA 9.7.6.1.3).
pub fn ack_timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096 << code.min(31)))
}

/// Delay of an RNR NAK by timer code, in units of 10 µs (IBTA 9.7.5.2.8): 0 is the longest, not none.
const RNR_DELAY: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// How long a requester waits after an RNR NAK with this timer code.
pub fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(u64::from(RNR_DELAY[usize::from(code & 31)]) * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_codes_mean_what_the_standard_says() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(25), Duration::from_micros(61_440));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
    }
}

//! The time of the engine: a number that its host supplies.

use std::time::Duration;

use verbs_api::VerbError;

/// A moment: nanoseconds since a fixed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The moment that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the moment `delay` after this one.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

/// The host of an engine: it supplies the time, and calls the network's `handle_timeout` when a job is due.
///
/// The engine has no clock and no thread. Real devices run on a timer thread; tests run in virtual time.
pub trait Host: Send + Sync + 'static {
    /// Returns the current time. The engine calls this once per driver call that needs it, never per request.
    fn now(&self) -> Time;

    /// Returns a time that is not before now (unless the system's ticks are late) and at most some milliseconds later. It
    /// is for timers that may be that late and are set so often that reading a clock would cost too much.
    fn soon(&self) -> Time {
        self.now()
    }

    /// Notes that a job is due at `at` ([`Time::NEVER`] is never passed). The host then calls the network's
    /// `handle_timeout`. The engine calls this often, from any thread, possibly with locks held, so the host must only note
    /// the time.
    fn wake_at(&self, at: Time);

    /// Makes sure that jobs will be run when they are due. The engine calls this before it creates a queue pair.
    ///
    /// # Errors
    /// The host cannot run jobs, for example because it cannot start a thread.
    fn prepare(&self) -> Result<(), VerbError> {
        Ok(())
    }

    /// Returns a random number that peers cannot guess. In runs that must be repeatable it follows from a seed.
    fn random(&self) -> u64;
}

/// Returns the acknowledge timeout for this code: 4.096 µs x 2^code. `None` for code 0, which never times out (IBTA
/// 9.7.6.1.3).
pub fn ack_timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096 << code.min(31)))
}

/// The delay of an RNR NAK for each timer code, in units of 10 µs (IBTA 9.7.5.2.8). Code 0 is the longest delay, not none.
const RNR_DELAY: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Returns how long a requester waits after an RNR NAK with this timer code.
pub fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(u64::from(RNR_DELAY[usize::from(code & 31)]) * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_codes_have_their_standard_durations() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(25), Duration::from_micros(61_440));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
    }
}

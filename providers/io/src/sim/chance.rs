//! Seeded random decisions about which faults are injected into a frame.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::sim::fault::{Between, Rate};

/// The random number generator of one direction of a link.
///
/// Each direction has its own generator, so that traffic in one direction changes no fault in another.
#[derive(Debug)]
pub struct Chance(SmallRng);

impl Chance {
    /// Creates the generator of the direction with the number `direction`. Links count directions from 0, in the order of
    /// their first frames.
    pub fn new(seed: u64, direction: usize) -> Self {
        // The factor is odd, so that two seeds or two directions never begin alike.
        let direction = (direction as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(SmallRng::seed_from_u64(seed ^ direction))
    }

    /// Returns `true` with the probability `rate`. Draws one random number, whatever the rate is.
    pub fn strikes(&mut self, rate: Rate) -> bool {
        self.0.random_range(0..Rate::ALWAYS.millionths()) < rate.millionths()
    }

    /// Draws a time between the bounds, both included.
    pub fn time(&mut self, bounds: Between<Duration>) -> Duration {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(
            self.0
                .random_range(nanoseconds(bounds.least())..=nanoseconds(bounds.most())),
        )
    }

    /// Draws a number between the bounds, both included.
    pub fn number(&mut self, bounds: Between<u32>) -> u32 {
        self.0.random_range(bounds.least()..=bounds.most())
    }

    /// Flips one random bit of `bytes`, unless they are empty.
    pub fn flip(&mut self, bytes: &mut [u8]) {
        if !bytes.is_empty() {
            let bit = self.0.random_range(0..bytes.len() as u64 * 8);
            // Both are in range: the bit lies within the bytes.
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }
}

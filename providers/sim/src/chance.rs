//! Seeded random decisions: which faults a frame meets.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::fault::{Between, Rate};

/// The random numbers of one direction of a link.
///
/// Each direction has its own, so that traffic in one direction changes nothing in another.
#[derive(Debug)]
pub struct Chance(SmallRng);

impl Chance {
    /// Creates the random numbers of direction number `direction`, counted from 0 in the order of the first frames.
    pub fn new(seed: u64, direction: usize) -> Self {
        // The factor is odd, so that two seeds or two directions never begin alike.
        let direction = (direction as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(SmallRng::seed_from_u64(seed ^ direction))
    }

    /// Returns whether something of this rate happens now. One number is drawn, whatever the rate.
    pub fn strikes(&mut self, rate: Rate) -> bool {
        self.0.random_range(0..Rate::ALWAYS.millionths()) < rate.millionths()
    }

    /// Returns a time within the bounds, both included.
    pub fn time(&mut self, bounds: Between<Duration>) -> Duration {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(
            self.0
                .random_range(nanoseconds(bounds.least())..=nanoseconds(bounds.most())),
        )
    }

    /// Returns a number within the bounds, both included.
    pub fn number(&mut self, bounds: Between<u32>) -> u32 {
        self.0.random_range(bounds.least()..=bounds.most())
    }

    /// Flips one bit, if there is one.
    pub fn flip(&mut self, bytes: &mut [u8]) {
        if !bytes.is_empty() {
            let bit = self.0.random_range(0..bytes.len() as u64 * 8);
            // Both are in range: the bit lies within the bytes.
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }
}

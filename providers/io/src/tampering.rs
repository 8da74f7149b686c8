//! Faults of a stream, between a connection and its socket: what they hit are octets, not frames.

use polyverbs_engine::time::Time;

use polyverbs_sim::chance::Chance;
use polyverbs_sim::fault::{Between, StreamFaults};

/// The faults of one direction of a connection.
#[derive(Debug)]
pub(super) struct Tampering {
    faults: StreamFaults,
    chance: Chance,
    frames: u64,
}

impl Tampering {
    /// Of the direction that was made as number `direction`.
    pub(super) fn new(faults: StreamFaults, seed: u64, direction: usize) -> Self {
        Self {
            faults,
            chance: Chance::new(seed, direction),
            frames: 0,
        }
    }

    /// One more frame.
    pub(super) const fn count(&mut self) {
        self.frames += 1;
    }

    /// Whether the connection has carried more frames than it may.
    pub(super) fn is_spent(&self) -> bool {
        self.faults
            .reset_after
            .is_some_and(|most| self.frames > most)
    }

    /// Until when the stream stands still before the next frame.
    pub(super) fn hold(&mut self, now: Time) -> Option<Time> {
        let stall = self.faults.stall?;
        self.chance
            .strikes(stall.rate)
            .then(|| now.after(stall.time))
    }

    /// Flips a bit of what leaves, if it is this frame's turn: whether it was.
    pub(super) fn flip(&mut self, octets: &mut [u8]) -> bool {
        let last = (octets.len() as u64 * 8).checked_sub(1);
        let Some(last) = last.filter(|_| self.chance.strikes(self.faults.flip)) else {
            return false;
        };
        // A frame has less than 2^29 octets.
        let bit = self.chance.number(Between::new(0, last as u32));
        octets[(bit / 8) as usize] ^= 1 << (bit % 8);
        true
    }

    /// How many of so many octets pass at once.
    pub(super) fn piece(&mut self, most: usize) -> usize {
        match self.faults.chunk {
            Some(octets) => most.min(self.chance.number(octets).max(1) as usize),
            None => most,
        }
    }
}

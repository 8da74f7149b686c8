//! Injected faults of a stream, between a connection and its socket. They affect bytes, not frames.

use polyverbs_engine::time::Time;

use crate::sim::chance::Chance;
use crate::sim::fault::{Between, FaultSpec};

/// The faults that are injected into one direction of a connection.
#[derive(Debug)]
pub(super) struct Tampering {
    faults: FaultSpec,
    chance: Chance,
    frames: u64,
}

impl Tampering {
    /// Creates the faults of one direction. `direction` is a number that no other direction has; with the seed it
    /// determines the faults.
    pub(super) fn new(faults: FaultSpec, direction: usize) -> Self {
        Self {
            faults,
            chance: Chance::new(faults.seed, direction),
            frames: 0,
        }
    }

    /// Counts a frame that was sent.
    pub(super) const fn count(&mut self) {
        self.frames += 1;
    }

    /// Returns whether more frames were sent than `reset_after` allows, so that the connection must be reset.
    pub(super) fn is_spent(&self) -> bool {
        self.faults
            .reset_after
            .is_some_and(|most| self.frames > most)
    }

    /// Returns the time until which the stream must send nothing; `None` if the next frame may leave at once. A frame that
    /// follows pending ones (`is_first` is false) leaves with them, so only a stall can hold it.
    pub(super) fn hold(&mut self, now: Time, is_first: bool) -> Option<Time> {
        let FaultSpec { delay, stall, .. } = self.faults;
        let chance = &mut self.chance;
        let stall = stall.filter(|stall| chance.strikes(stall.rate));
        let delay = (is_first && delay != Between::default()).then(|| chance.time(delay));
        let time = stall.map(|stall| stall.time).max(delay)?;
        Some(now.after(time))
    }

    /// Returns whether `faults` has faults that delay or stall a stream.
    pub(super) fn holds(faults: &FaultSpec) -> bool {
        faults.stall.is_some() || faults.delay != Between::default()
    }

    /// Flips a random bit of a frame with the probability of the `flip` fault. Returns whether it did.
    pub(super) fn flip(&mut self, frame: &mut [u8]) -> bool {
        let is_hit = !frame.is_empty() && self.chance.strikes(self.faults.flip);
        if is_hit {
            self.chance.flip(frame);
        }
        is_hit
    }

    /// Returns how many of `most` bytes the next send or receive call may pass.
    pub(super) fn piece(&mut self, most: usize) -> usize {
        match self.faults.chunk {
            Some(bytes) => most.min(self.chance.number(bytes).max(1) as usize),
            None => most,
        }
    }
}

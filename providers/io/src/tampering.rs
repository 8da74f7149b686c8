//! Faults of a stream, between a connection and its socket: what they hit are bytes, not frames.

use polyverbs_engine::time::Time;

use polyverbs_sim::chance::Chance;
use polyverbs_sim::fault::{Between, FaultSpec};

/// The faults of one direction of a connection.
#[derive(Debug)]
pub(super) struct Tampering {
    faults: FaultSpec,
    chance: Chance,
    frames: u64,
}

impl Tampering {
    /// Of the direction that was made as number `direction`.
    pub(super) fn new(faults: FaultSpec, direction: usize) -> Self {
        Self {
            faults,
            chance: Chance::new(faults.seed, direction),
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

    /// Until when the stream stands still before the next frame, which has others before it or not: those take it along.
    pub(super) fn hold(&mut self, now: Time, is_first: bool) -> Option<Time> {
        let FaultSpec { delay, stall, .. } = self.faults;
        let chance = &mut self.chance;
        let stall = stall.filter(|stall| chance.strikes(stall.rate));
        let delay = (is_first && delay != Between::default()).then(|| chance.time(delay));
        let time = stall.map(|stall| stall.time).max(delay)?;
        Some(now.after(time))
    }

    /// Whether a stream may stand still.
    pub(super) fn holds(faults: &FaultSpec) -> bool {
        faults.stall.is_some() || faults.delay != Between::default()
    }

    /// Flips a bit of a frame, if it is this frame's turn: whether it was.
    pub(super) fn flip(&mut self, frame: &mut [u8]) -> bool {
        let is_hit = !frame.is_empty() && self.chance.strikes(self.faults.flip);
        if is_hit {
            self.chance.flip(frame);
        }
        is_hit
    }

    /// How many of so many bytes pass at once.
    pub(super) fn piece(&mut self, most: usize) -> usize {
        match self.faults.chunk {
            Some(bytes) => most.min(self.chance.number(bytes).max(1) as usize),
            None => most,
        }
    }
}

//! Frames that were sent and have not been delivered yet.

use std::collections::BTreeMap;

use polyverbs_engine::link::OwnedFrame;
use polyverbs_engine::time::Time;

/// Frames that were sent and have not been delivered yet, ordered by the time at which they are due, and then by the order
/// of sending.
pub(crate) struct InFlight<H> {
    frames: BTreeMap<(Time, u64), OwnedFrame<H>>,
    sent: u64,
}

impl<H> InFlight<H> {
    pub(crate) const fn new() -> Self {
        Self {
            frames: BTreeMap::new(),
            sent: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn push(&mut self, due: Time, frame: OwnedFrame<H>) {
        self.sent += 1;
        self.frames.insert((due, self.sent), frame);
    }

    pub(crate) fn next_due(&self) -> Option<Time> {
        self.frames.first_key_value().map(|((due, _), _)| *due)
    }

    pub(crate) fn take_due(&mut self, now: Time) -> Option<OwnedFrame<H>> {
        let next = self.frames.first_entry()?;
        (next.key().0 <= now).then(|| next.remove())
    }

    /// Removes the frames for which `is_lost` returns `true`, and returns how many.
    pub(crate) fn lose(&mut self, is_lost: impl Fn(&OwnedFrame<H>) -> bool) -> u64 {
        let before = self.len();
        self.frames.retain(|_, frame| !is_lost(frame));
        (before - self.len()) as u64
    }
}

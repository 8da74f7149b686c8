//! Injects faults into the frames of a link that reaches other processes or machines.

use polyverbs_engine::link::{Deliver, Frame, Link, SharedLink};
use polyverbs_engine::time::Time;

use crate::sim::datagram::DatagramLink;
use crate::sim::fault::FaultSpec;

/// A link that injects the faults of a [`DatagramLink`] into the frames that are sent, and then sends the remaining frames
/// over another link.
///
/// A frame in which a bit is to be flipped is sent marked as damaged, and the inner link gives it a wrong checksum.
pub struct FaultyLink<H> {
    faults: DatagramLink<H>,
    link: SharedLink<H>,
}

impl<H> FaultyLink<H> {
    /// Creates a link that injects `faults` into the frames sent over `link`. The largest frame is that of `link`.
    pub fn new(link: SharedLink<H>, faults: FaultSpec) -> Self {
        let faults = DatagramLink::new(None, faults);
        Self { faults, link }
    }
}

/// Sends the frames that the [`DatagramLink`] delivers over the inner link.
struct Onward<'l, H>(&'l dyn Link<H>);

impl<H: 'static> Deliver<H> for Onward<'_, H> {
    fn deliver(&self, frame: Frame<'_, H>, now: Time) {
        self.0.send(frame, now);
    }
}

impl<H: Clone + Send + Sync + 'static> FaultyLink<H> {
    fn send_on(&self, now: Time) {
        while self.faults.progress(now, &Onward(&*self.link)) {}
    }
}

impl<H: Clone + Send + Sync + 'static> Link<H> for FaultyLink<H> {
    fn inner(&self) -> Option<&dyn Link<H>> {
        Some(&*self.link)
    }

    fn max_frame(&self) -> Option<usize> {
        self.link.max_frame()
    }

    fn send(&self, frame: Frame<'_, H>, now: Time) {
        self.faults.send(frame, now);
        self.send_on(now);
    }

    fn needs_precise_clock(&self) -> bool {
        true
    }

    fn progress(&self, now: Time, network: &dyn Deliver<H>) -> bool {
        self.send_on(now);
        self.link.progress(now, network)
    }

    fn next_due(&self) -> Option<Time> {
        let due = [self.faults.next_due(), self.link.next_due()];
        due.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sim::testing::{A, B, Sink, frame, ms, run};

    fn around(faults: &str) -> (SharedLink<u32>, FaultyLink<u32>) {
        let inner: SharedLink<u32> = Arc::new(DatagramLink::new(None, FaultSpec::default()));
        let link = FaultyLink::new(Arc::clone(&inner), faults.parse().unwrap());
        (inner, link)
    }

    #[test]
    fn lost_frames_are_not_sent_and_damaged_ones_are_marked() {
        let (_, link) = around("drop=50%,corrupt=100%");
        for number in 0..200 {
            link.send(frame(A, B, number, b"bytes"), ms(0));
        }
        let sink = Sink::default();
        run(&link, &sink);
        let frames = sink.frames();
        assert!((50..150).contains(&frames.len()));
        assert!(
            frames
                .iter()
                .all(|frame| frame.damaged && frame.payload != b"bytes")
        );
    }

    #[test]
    fn a_frame_is_sent_on_when_its_delay_has_passed() {
        for (faults, due) in [("none", ms(1)), ("delay=2ms", ms(3))] {
            let (inner, link) = around(faults);
            link.send(frame(A, B, 1, b"bytes"), ms(1));
            assert_eq!(
                (inner.next_due().is_some(), link.next_due()),
                (due == ms(1), Some(due))
            );
            let sink = Sink::default();
            assert!(!link.progress(Time(due.0 - 1), &sink));
            assert!(link.progress(due, &sink));
            assert_eq!(sink.frames()[0].payload, b"bytes");
            assert_eq!(link.next_due(), None);
        }
    }
}

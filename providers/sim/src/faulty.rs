//! Faults around a link that has a wire.

use polyverbs_engine::link::{Deliver, Frame, Link, SharedLink};
use polyverbs_engine::time::Time;

use crate::datagram::{DatagramLink, DatagramOptions};

/// A link around another that does to frames what a [`DatagramLink`] does, and then sends on what is left of them.
///
/// A frame that is to be damaged is sent on marked as such: a link with a wire makes its checksum wrong.
pub struct FaultyLink<H> {
    faults: DatagramLink<H>,
    link: SharedLink<H>,
}

impl<H> FaultyLink<H> {
    /// Does to what goes over `link` what `options` say; the largest frame is the link's.
    pub fn new(link: SharedLink<H>, options: DatagramOptions) -> Self {
        let faults = DatagramLink::new(DatagramOptions {
            max_frame: None,
            ..options
        });
        Self { faults, link }
    }

    /// What happens to frames, to count it and to change it. What it counts as delivered was sent on.
    pub fn faults(&self) -> &DatagramLink<H> {
        &self.faults
    }
}

/// Where frames go on.
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
    use std::time::Duration;

    use super::*;
    use crate::fault::{Between, DatagramFaults, Rate};
    use crate::testing::{A, B, Sink, frame, ms, run};

    fn around(options: DatagramOptions) -> (Arc<DatagramLink<u32>>, FaultyLink<u32>) {
        let inner = Arc::new(DatagramLink::new(DatagramOptions::default()));
        (
            Arc::clone(&inner),
            FaultyLink::new(inner as SharedLink<u32>, options),
        )
    }

    fn with(faults: DatagramFaults) -> DatagramOptions {
        DatagramOptions {
            faults,
            ..DatagramOptions::default()
        }
    }

    #[test]
    fn without_faults_a_frame_is_sent_on_at_once() {
        let (inner, link) = around(DatagramOptions::default());
        link.send(frame(A, B, 1, b"octets"), ms(0));
        assert_eq!(inner.in_flight(), 1);
        let sink = Sink::default();
        assert!(link.progress(ms(0), &sink));
        assert_eq!(sink.frames()[0].payload, b"octets");
    }

    #[test]
    fn what_is_lost_is_never_sent_and_what_is_damaged_is_marked() {
        let (inner, link) = around(with(DatagramFaults {
            drop: Rate::percent(50),
            corrupt: Rate::ALWAYS,
            ..DatagramFaults::default()
        }));
        for number in 0..200 {
            link.send(frame(A, B, number, b"octets"), ms(0));
        }
        let sink = Sink::default();
        run(&link, &sink);
        let counts = link.faults().counts();
        assert_eq!(inner.counts().sent, 200 - counts.dropped);
        assert!((50..150).contains(&counts.dropped));
        let frames = sink.frames();
        assert!(
            frames
                .iter()
                .all(|frame| frame.damaged && frame.payload != b"octets")
        );
    }

    #[test]
    fn a_delay_is_waited_for() {
        let (inner, link) = around(DatagramOptions {
            delay: Between::exactly(Duration::from_millis(2)),
            ..DatagramOptions::default()
        });
        link.send(frame(A, B, 1, b""), ms(1));
        assert_eq!((inner.in_flight(), link.next_due()), (0, Some(ms(3))));
        let sink = Sink::default();
        assert!(!link.progress(ms(2), &sink));
        assert!(link.progress(ms(3), &sink));
        assert_eq!(link.next_due(), None);
    }
}

//! Helpers for the tests of both links.

use polyverbs_engine::link::{Deliver, Frame, Link, OwnedFrame};
use polyverbs_engine::payload::Payload;
use polyverbs_engine::time::Time;
use verbs_api::ids::LinkAddress;
use verbs_api::provider::Mutex;

pub(crate) const A: LinkAddress = LinkAddress::InProcess(1);
pub(crate) const B: LinkAddress = LinkAddress::InProcess(2);
pub(crate) const C: LinkAddress = LinkAddress::InProcess(3);

/// Stores the frames that a link delivers.
#[derive(Default)]
pub(crate) struct Sink(Mutex<Vec<OwnedFrame<u32>>>);

impl Sink {
    pub(crate) fn frames(&self) -> Vec<OwnedFrame<u32>> {
        self.0.lock().clone()
    }

    pub(crate) fn headers(&self) -> Vec<u32> {
        let frames = self.0.lock();
        frames.iter().map(|frame| frame.header).collect()
    }
}

impl Deliver<u32> for Sink {
    fn deliver(&self, frame: Frame<'_, u32>, _now: Time) {
        self.0.lock().push(frame.to_owned());
    }
}

/// Stores each delivered frame and sends it back at once. It hangs if the link delivers while it holds a lock.
pub(crate) struct Echo<'a> {
    pub(crate) link: &'a dyn Link<u32>,
    pub(crate) sink: &'a Sink,
}

impl Deliver<u32> for Echo<'_> {
    fn deliver(&self, received: Frame<'_, u32>, now: Time) {
        self.link
            .send(frame(received.to, received.from, received.header, b""), now);
        self.sink.deliver(received, now);
    }
}

pub(crate) fn frame(
    from: LinkAddress,
    to: LinkAddress,
    header: u32,
    payload: &[u8],
) -> Frame<'_, u32> {
    Frame {
        from,
        to,
        header,
        payload: Payload::Bytes(payload),
        damaged: false,
    }
}

pub(crate) fn ms(milliseconds: u64) -> Time {
    Time(milliseconds * 1_000_000)
}

/// Delivers all frames that were sent, each at the time when it is due.
pub(crate) fn run(link: &dyn Link<u32>, sink: &dyn Deliver<u32>) {
    while let Some(at) = link.next_due() {
        link.progress(at, sink);
    }
}

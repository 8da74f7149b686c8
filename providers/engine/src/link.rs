//! What carries frames between the devices of a network.

use std::sync::Arc;

use verbs_api::{
    VerbError,
    ids::{Gid, LinkAddress},
};

use crate::payload::Payload;
use crate::time::Time;

/// A header value and its octets, on the way from one device to another.
#[derive(Debug)]
pub struct Frame<'p, H> {
    /// The sender's link address.
    pub from: LinkAddress,
    /// The receiver's.
    pub to: LinkAddress,
    /// The header, as a value.
    pub header: H,
    /// The octets.
    pub payload: Payload<'p>,
    /// The link changed a bit: what a receiver finds out by its checksum.
    pub damaged: bool,
}

/// A frame that waits: its octets are its own.
#[derive(Clone, Debug)]
pub struct OwnedFrame<H> {
    /// The sender's link address.
    pub from: LinkAddress,
    /// The receiver's.
    pub to: LinkAddress,
    /// The header, as a value.
    pub header: H,
    /// The octets.
    pub payload: Vec<u8>,
    /// The link changed a bit.
    pub damaged: bool,
}

impl<H: Clone> Frame<'_, H> {
    /// The frame with octets of its own.
    pub fn to_owned(&self) -> OwnedFrame<H> {
        OwnedFrame {
            from: self.from,
            to: self.to,
            header: self.header.clone(),
            payload: self.payload.to_vec(),
            damaged: self.damaged,
        }
    }
}

impl<H: Clone> OwnedFrame<H> {
    /// The frame as its receiver sees it.
    pub fn as_frame(&self) -> Frame<'_, H> {
        let payload = if self.payload.is_empty() {
            Payload::Empty
        } else {
            Payload::Octets(&self.payload)
        };
        Frame {
            from: self.from,
            to: self.to,
            header: self.header.clone(),
            payload,
            damaged: self.damaged,
        }
    }
}

/// Where a link delivers: the network. Called with no lock held.
pub trait Deliver<H> {
    /// A frame arrived. One for an address that nobody has is dropped.
    fn deliver(&self, frame: Frame<'_, H>, now: Time);
}

/// What became of the rest of a message that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// It was taken, or is lost with where it would have gone.
    Taken,
    /// Too much waits where it would go: the driver is told when there is room again.
    NoRoom,
    /// It has more octets of payload than go there in a frame: so many do, which are not none.
    TooLong(usize),
}

/// A link that is not direct: frames arrive later, and whatever it does to them.
///
/// *Datagram* links (InfiniBand's transport) may lose, reorder, double and damage frames. *Stream* links (iWARP) keep
/// the order of each pair of queue pairs; they may delay, cut into pieces, stall, reset and damage.
pub trait Link<H: 'static>: Send + Sync + 'static {
    /// Payload octets of the largest frame; `None` where a message of any length is one frame.
    fn max_frame(&self) -> Option<usize>;

    /// Octets that may arrive at once without being lost for want of room; `None` where there always is.
    fn room(&self) -> Option<usize> {
        self.inner().and_then(Link::room)
    }

    /// Takes a frame at `now`. Called with locks of queue pairs held: it only notes the frame, delivering later.
    fn send(&self, frame: Frame<'_, H>, now: Time);

    /// The link that this one is around. What is not told otherwise here is that one's matter.
    fn inner(&self) -> Option<&dyn Link<H>> {
        None
    }

    /// Takes a frame as [`send`](Self::send) does, unless too much waits where it would go: then the driver is told when
    /// there is room again. By default there always is.
    fn offer(&self, frame: Frame<'_, H>, now: Time) -> bool {
        self.send(frame, now);
        true
    }

    /// The same for what is left of a message that may be cut. By default the largest frame is the
    /// [same](Self::max_frame) everywhere.
    fn offer_rest(&self, frame: Frame<'_, H>, now: Time) -> Offered {
        match self.max_frame() {
            Some(most) if frame.payload.len() > most => Offered::TooLong(most),
            _ if self.offer(frame, now) => Offered::Taken,
            _ => Offered::NoRoom,
        }
    }

    /// Sends on what [`send`](Self::send) noted and what only waits to be sent together with more. Called with no lock
    /// held, by any thread, after everything that sends.
    fn flush(&self) {
        if let Some(link) = self.inner() {
            link.flush();
        }
    }

    /// The same by a thread that polls, has found nothing and looks again: what may wait for more to come does, for a moment.
    fn flush_idle(&self) {
        match self.inner() {
            Some(link) => link.flush_idle(),
            None => self.flush(),
        }
    }

    /// The same without what lets the next frame go first: that one is worth more.
    fn flush_ahead(&self) {
        match self.inner() {
            Some(link) => link.flush_ahead(),
            None => self.flush(),
        }
    }

    /// Delivers what is due at `now`. Answers whether anything was delivered.
    fn progress(&self, now: Time, network: &dyn Deliver<H>) -> bool;

    /// When something is due next.
    fn next_due(&self) -> Option<Time>;

    /// Whether what it does depends on the time that it is told, to less than some milliseconds. Otherwise it is told a
    /// moment that is not before now, and not much after it: no clock need be read for each look.
    fn heeds_time(&self) -> bool {
        self.inner().is_none_or(Link::heeds_time)
    }

    /// Whether something may arrive that nobody here has sent: then threads that find nothing look for it.
    fn is_polled(&self) -> bool {
        self.inner().is_some_and(Link::is_polled)
    }

    /// Whether nothing is to be told but what arrives, sending brings nothing about but [`flush`](Self::flush), and what one
    /// look leaves unread is told again: then nobody who has sent need look, and one look at a time is enough.
    fn tells_again(&self) -> bool {
        self.inner().is_some_and(Link::tells_again)
    }

    /// A thread that found nothing: does `work`, which is [`progress`](Self::progress) and more, unless another thread
    /// is at it.
    fn poll(&self, work: &mut dyn FnMut()) {
        if let Some(link) = self.inner() {
            link.poll(work);
        }
    }

    /// A thread that polled is about to sleep.
    fn hand_back(&self) {
        if let Some(link) = self.inner() {
            link.hand_back();
        }
    }

    /// A queue pair has been destroyed, and its process may end: what was taken for streams that this side has ended goes to
    /// the system, which is waited for a moment where it must be.
    fn drain(&self) {
        if let Some(link) = self.inner() {
            link.drain();
        }
    }

    /// The traffic class of every frame that arrives is wanted from now on. Until then it may be missing from most of them, as
    /// long as congestion that is marked again and again is told of.
    fn tell_classes(&self) {
        if let Some(link) = self.inner() {
            link.tell_classes();
        }
    }

    /// What is sent to this group is wanted from now on. By default everything is.
    ///
    /// # Errors
    /// The group has no address on this link, or the system refuses.
    fn join(&self, group: Gid) -> Result<(), VerbError> {
        self.inner().map_or(Ok(()), |link| link.join(group))
    }

    /// What is sent to this group is not wanted any more.
    fn leave(&self, group: Gid) {
        if let Some(link) = self.inner() {
            link.leave(group);
        }
    }
}

/// A link shared by those who send on it and those who watch it.
pub type SharedLink<H> = Arc<dyn Link<H>>;

//! What carries frames between the devices of a network.

use std::sync::Arc;

use verbs_api::{
    VerbError,
    ids::{Gid, LinkAddress},
};

use crate::payload::Payload;
use crate::time::Time;

/// A header value and its bytes, on the way from one device to another.
#[derive(Debug)]
pub struct Frame<'p, H> {
    /// The sender's link address.
    pub from: LinkAddress,
    /// The receiver's.
    pub to: LinkAddress,
    /// The header, as a value.
    pub header: H,
    /// The bytes.
    pub payload: Payload<'p>,
    /// The link changed a bit: what a receiver finds out by its checksum.
    pub damaged: bool,
}

/// A frame that waits: its bytes are its own.
#[derive(Clone, Debug)]
pub struct OwnedFrame<H> {
    /// The sender's link address.
    pub from: LinkAddress,
    /// The receiver's.
    pub to: LinkAddress,
    /// The header, as a value.
    pub header: H,
    /// The bytes.
    pub payload: Vec<u8>,
    /// The link changed a bit.
    pub damaged: bool,
}

impl<H: Clone> Frame<'_, H> {
    /// The frame with bytes of its own.
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
        Frame {
            from: self.from,
            to: self.to,
            header: self.header.clone(),
            payload: Payload::Bytes(&self.payload),
            damaged: self.damaged,
        }
    }
}

/// Where a link delivers: the network. Called with no lock held.
pub trait Deliver<H> {
    /// A frame arrived. One for an address that nobody has is dropped.
    fn deliver(&self, frame: Frame<'_, H>, now: Time);
}

/// What became of a frame that a link may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrySend {
    /// Taken, or lost with the connection that it was for.
    Sent,
    /// Too much waits on its stream: the driver is told when there is room again.
    NoRoom,
    /// Its payload is longer than a frame of this stream carries: that takes so many bytes, which are not none.
    TooLong(usize),
}

/// How many records two processes have written to one another through memory, and read. Numbers wrap.
///
/// A process answers a record before it counts the record as read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// Records that this process has written.
    pub sent: u32,
    /// Those of them that the peer has read.
    pub sent_read: u32,
    /// Records that the peer has written.
    pub arrived: u32,
    /// Those of them that this process has read.
    pub arrived_read: u32,
}

/// A link that is not direct: frames arrive later, and whatever it does to them.
///
/// *Datagram* links (InfiniBand's transport) may lose, reorder, double and damage frames. *Stream* links (iWARP) keep
/// the order of each pair of queue pairs; they may delay, cut into pieces, stall, reset and damage.
pub trait Link<H: 'static>: Send + Sync + 'static {
    /// Payload bytes of the largest frame; `None` where a message of any length is one frame.
    fn max_frame(&self) -> Option<usize>;

    /// Payload bytes of a frame that carries several packets of a message to this queue pair, where this link has such: a
    /// multiple of every path MTU.
    fn max_joined(&self, to: LinkAddress, qpn: u32) -> Option<usize> {
        self.inner().and_then(|link| link.max_joined(to, qpn))
    }

    /// What the process of this queue pair and this one have written to one another and read, where that goes by memory that they
    /// share and the peer's lives. Nothing that is unread there is lost. A timer asks: it may make system calls.
    fn exchange(&self, to: LinkAddress, qpn: u32) -> Option<Exchange> {
        self.inner().and_then(|link| link.exchange(to, qpn))
    }

    /// Bytes that may arrive at once without being lost for want of room; `None` where there always is.
    fn room(&self) -> Option<usize> {
        self.inner().and_then(Link::room)
    }

    /// Takes a frame at `now`. Called with locks of queue pairs held: makes no system call and delivers nothing.
    fn send(&self, frame: Frame<'_, H>, now: Time);

    /// The same for a frame that may wait in its queue pair, and be cut if it is a segment of a message.
    fn try_send(&self, frame: Frame<'_, H>, now: Time) -> TrySend {
        match self.max_frame() {
            Some(most) if frame.payload.len() > most => TrySend::TooLong(most),
            _ => {
                self.send(frame, now);
                TrySend::Sent
            }
        }
    }

    /// The link that this one is around. What has a default here is that one's matter.
    fn inner(&self) -> Option<&dyn Link<H>> {
        None
    }

    /// Sends on what [`send`](Self::send) took. Called with no lock held, by any thread, after everything that sends.
    /// Answers whether there is something to [deliver](Self::progress) because of it.
    fn flush(&self) -> bool {
        self.inner().is_some_and(Link::flush)
    }

    /// Delivers what is due at `now`. Answers whether anything was delivered.
    fn progress(&self, now: Time, network: &dyn Deliver<H>) -> bool;

    /// When something is due next.
    fn next_due(&self) -> Option<Time>;

    /// Whether `now` has to be exact. Otherwise it is some milliseconds late at most, which takes no look at the clock.
    fn needs_precise_clock(&self) -> bool {
        self.inner().is_none_or(Link::needs_precise_clock)
    }

    /// Who reads it, where frames arrive from other processes: threads that find a completion queue empty look for them.
    /// What one look leaves unread the next one finds, and sending makes nothing arrive.
    fn input(&self) -> Option<&dyn Input> {
        self.inner().and_then(Link::input)
    }

    /// A queue pair has been destroyed, and its process may end: what was taken for streams that this side has ended goes to
    /// the system, which is waited for a moment where it must be.
    fn drain(&self) {
        if let Some(link) = self.inner() {
            link.drain();
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

/// Who reads what arrives on a link: threads that poll, or a thread of the link's own, which sleeps until something arrives.
pub trait Input {
    /// A thread has polled. Those that come back again and again are left alone with the input for as long.
    fn polled(&self);

    /// A thread that polls has found another one reading: gives it the processor, should it wait for one.
    fn give_way(&self);

    /// Whether pollers read: each looks again within microseconds, or the link's thread does in its place.
    fn is_polled(&self) -> bool;

    /// A thread that polled is about to sleep: the link's thread takes over.
    fn hand_back(&self);
}

/// A link shared by those who send on it and those who watch it.
pub type SharedLink<H> = Arc<dyn Link<H>>;

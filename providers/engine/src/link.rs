//! Links carry frames between the devices of a network.

use std::sync::Arc;

use verbs_api::{
    VerbError,
    ids::{Gid, LinkAddress},
};

use crate::payload::Payload;
use crate::time::Time;

/// A header value and its payload, on the way from one device to another.
#[derive(Debug)]
pub struct Frame<'p, H> {
    /// The sender's link address.
    pub from: LinkAddress,
    /// The receiver's link address.
    pub to: LinkAddress,
    /// The header, as a value.
    pub header: H,
    /// The bytes.
    pub payload: Payload<'p>,
    /// The link changed a bit. A receiver detects this by its checksum.
    pub damaged: bool,
}

/// A frame that waits and owns its bytes.
#[derive(Clone, Debug)]
pub struct OwnedFrame<H> {
    /// The sender's link address.
    pub from: LinkAddress,
    /// The receiver's link address.
    pub to: LinkAddress,
    /// The header, as a value.
    pub header: H,
    /// The bytes.
    pub payload: Vec<u8>,
    /// The link changed a bit.
    pub damaged: bool,
}

impl<H: Clone> Frame<'_, H> {
    /// Returns the frame with its own copy of the bytes.
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
    /// Returns the frame as its receiver sees it.
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

/// The network to which a link delivers. The link holds no lock when it calls this.
pub trait Deliver<H> {
    /// Delivers a frame that has arrived. One for an address without a device is dropped.
    fn deliver(&self, frame: Frame<'_, H>, now: Time);
}

/// The answer of a link that may refuse a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrySend {
    /// The link took the frame, or lost it together with its connection.
    Sent,
    /// Too much waits on the frame's stream. The link notifies the driver when there is room again.
    NoRoom,
    /// The payload is longer than a frame of this stream carries, which is this number of bytes, greater than 0.
    TooLong(usize),
}

/// How many records two processes have written to one another through shared memory, and read. Numbers wrap.
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

/// A link between devices that are not directly connected: frames arrive later, and some links lose or change them.
///
/// *Datagram* links (InfiniBand's transport) may lose, reorder, duplicate and damage frames. *Stream* links (iWARP) keep
/// the order for each pair of queue pairs; they may delay, cut into pieces, stall, reset and damage.
pub trait Link<H: 'static>: Send + Sync + 'static {
    /// Payload bytes of the largest frame; `None` if a message of any length is one frame.
    fn max_frame(&self) -> Option<usize>;

    /// Payload bytes of a frame that carries several packets of a message to this queue pair: a multiple of every path MTU.
    /// `None` if the link has no such frames.
    fn max_joined(&self, to: LinkAddress, qpn: u32) -> Option<usize> {
        self.inner().and_then(|link| link.max_joined(to, qpn))
    }

    /// Returns how many records this process and that of the queue pair have written to one another and read; `None` unless
    /// their frames go through shared memory and the peer's process exists. No unread record is lost. A timer calls this,
    /// so it may make system calls.
    fn exchange(&self, to: LinkAddress, qpn: u32) -> Option<Exchange> {
        self.inner().and_then(|link| link.exchange(to, qpn))
    }

    /// Bytes that may arrive at once without being lost for lack of room; `None` if there is no such limit.
    fn room(&self) -> Option<usize> {
        self.inner().and_then(Link::room)
    }

    /// Takes a frame at `now`. The caller holds locks of queue pairs, so this makes no system call and delivers nothing.
    fn send(&self, frame: Frame<'_, H>, now: Time);

    /// Takes a frame that may wait in its queue pair, and that the driver may cut if it is a segment of a message.
    fn try_send(&self, frame: Frame<'_, H>, now: Time) -> TrySend {
        match self.max_frame() {
            Some(most) if frame.payload.len() > most => TrySend::TooLong(most),
            _ => {
                self.send(frame, now);
                TrySend::Sent
            }
        }
    }

    /// The link that this one wraps. The methods with a default here are that link's.
    fn inner(&self) -> Option<&dyn Link<H>> {
        None
    }

    /// Makes the frames that [`send`](Self::send) took leave. Any thread calls this, with no lock held, after everything
    /// that sends. Returns whether there is something to [deliver](Self::progress) as a result.
    fn flush(&self) -> bool {
        self.inner().is_some_and(Link::flush)
    }

    /// Delivers the frames that are due at `now`. Returns whether any was delivered.
    fn progress(&self, now: Time, network: &dyn Deliver<H>) -> bool;

    /// When the link must be driven next.
    fn next_due(&self) -> Option<Time>;

    /// Returns whether `now` must be exact. Otherwise it may be some milliseconds late, which saves reading the clock.
    fn needs_precise_clock(&self) -> bool {
        self.inner().is_none_or(Link::needs_precise_clock)
    }

    /// The reader of the link, if frames arrive from other processes: threads that find a completion queue empty then poll
    /// it. A poll that leaves frames unread leaves them to the next one, and sending causes no arrival.
    fn input(&self) -> Option<&dyn Input> {
        self.inner().and_then(Link::input)
    }

    /// A queue pair was destroyed, and its process may end: frames that the link took for streams that this side has ended
    /// go to the system. The link waits a moment if it must.
    fn drain(&self) {
        if let Some(link) = self.inner() {
            link.drain();
        }
    }

    /// Receives frames for this group from now on. By default a link receives all frames.
    ///
    /// # Errors
    /// The group has no address on this link, or the system refuses.
    fn join(&self, group: Gid) -> Result<(), VerbError> {
        self.inner().map_or(Ok(()), |link| link.join(group))
    }

    /// Stops receiving frames for this group.
    fn leave(&self, group: Gid) {
        if let Some(link) = self.inner() {
            link.leave(group);
        }
    }
}

/// Decides which thread reads the frames of a link: threads that poll, or the link's own thread, which sleeps until a frame
/// arrives.
pub trait Input {
    /// A thread has polled. Threads that poll frequently are left alone with the input for as long as they do.
    fn polled(&self);

    /// A thread that polls has found another thread reading, and yields the processor to it.
    fn give_way(&self);

    /// Returns whether pollers own the input: each polls again within microseconds, or the link's thread does in its place.
    fn is_polled(&self) -> bool;

    /// A thread that polled is about to sleep: the link's thread takes over.
    fn hand_back(&self);
}

/// A link that its senders and its readers share.
pub type SharedLink<H> = Arc<dyn Link<H>>;

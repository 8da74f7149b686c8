//! Links carry frames between the devices of a network.

use core::net::IpAddr;
use std::sync::Arc;

use verbs_api::{
    VerbError,
    ids::{Gid, LinkAddress},
};

use crate::payload::Payload;
use crate::time::Time;

/// A frame on its way from one device to another: a header and its payload.
#[derive(Debug)]
pub struct Frame<'p, H> {
    /// The link address of the sending device.
    pub from: LinkAddress,
    /// The link address of the receiving device.
    pub to: LinkAddress,
    /// The decoded header of the frame.
    pub header: H,
    /// The payload of the frame.
    pub payload: Payload<'p>,
    /// Whether the link has changed a bit of the frame, which a receiver would detect by the checksum.
    pub damaged: bool,
}

/// A frame that waits in a link or an effect, and so has its own copy of the payload.
#[derive(Clone, Debug)]
pub struct OwnedFrame<H> {
    /// The link address of the sending device.
    pub from: LinkAddress,
    /// The link address of the receiving device.
    pub to: LinkAddress,
    /// The decoded header of the frame.
    pub header: H,
    /// The payload of the frame.
    pub payload: Vec<u8>,
    /// Whether the link has changed a bit of the frame, which a receiver would detect by the checksum.
    pub damaged: bool,
}

impl<H: Clone> Frame<'_, H> {
    /// Returns the frame with its own copy of the payload.
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
    /// Returns the frame in the borrowed form in which it is delivered.
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

/// What a link reports about the other processes at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note<'m> {
    /// Another process has [sent](Link::send_message) this message.
    Message(&'m [u8]),
    /// The process whose queue pairs and shared receive queues have the numbers from `first` to before `end` has gone.
    Gone {
        /// The first number of the process.
        first: u32,
        /// The number after its last one.
        end: u32,
    },
}

/// The network to which a link delivers frames. The link holds no lock when it calls this.
pub trait Deliver<H> {
    /// Delivers a frame that has arrived to the device with the frame's destination address; drops the frame if there
    /// is no such device.
    fn deliver(&self, frame: Frame<'_, H>, now: Time);

    /// Delivers a note of a process at the address `at` to the device with this address. By default no link has any.
    fn deliver_note(&self, at: LinkAddress, note: Note<'_>, now: Time) {
        let _ = (at, note, now);
    }
}

/// The result of [`Link::try_send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrySend {
    /// The link took the frame. If the connection of its stream was lost, the frame is lost too.
    Sent,
    /// The link refused the frame, because too many bytes wait on its stream. The link notifies the driver when the stream
    /// has room again.
    NoRoom,
    /// The link refused the frame, because its payload is longer than the stream permits: at most this number of bytes,
    /// which is greater than 0.
    TooLong(usize),
}

/// Counts of the records that this process and a peer's process have exchanged through shared memory. The numbers wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// The number of records that this process has written for the peer.
    pub sent: u32,
    /// The number of records of `sent` to which the peer has sent all answers: those that need none, or that it drops, count
    /// as answered when it has read them.
    pub sent_answered: u32,
    /// The number of records that the peer has written for this process.
    pub arrived: u32,
    /// The number of records of `arrived` that this process has read.
    pub arrived_read: u32,
}

/// A link between devices that are not directly connected: frames arrive later, and some links lose or change them.
///
/// *Datagram* links (InfiniBand's transport) may lose, reorder, duplicate and damage frames. *Stream* links (iWARP) keep
/// the order for each pair of queue pairs; they may delay, cut into pieces, stall, reset and damage.
pub trait Link<H: 'static>: Send + Sync + 'static {
    /// Returns the payload bytes of the largest frame; `None` if a message of any length is one frame.
    fn max_frame(&self) -> Option<usize>;

    /// Returns the payload bytes of the largest frame to this queue pair that joins several packets of a message: a
    /// multiple of every path MTU. `None` if the link does not join packets.
    fn max_joined(&self, to: LinkAddress, qpn: u32) -> Option<usize> {
        self.inner().and_then(|link| link.max_joined(to, qpn))
    }

    /// Returns how many records this process and the process of the queue pair `qpn` at `to` have exchanged; `None` unless
    /// their frames go through shared memory and the peer's process exists. A record without an answer is not lost: the
    /// peer's process may have had no processor. The call wakes that process, whose thread then reads, answers and
    /// [reports](Self::all_answered). A timer calls this, so it may make system calls.
    fn exchange(&self, to: LinkAddress, qpn: u32) -> Option<Exchange> {
        self.inner().and_then(|link| link.exchange(to, qpn))
    }

    /// Returns whether frames to this queue pair wait in this process for room in shared memory. Further frames should wait in
    /// their queue pairs, because the link drops frames beyond a limit.
    fn is_crowded(&self, to: LinkAddress, qpn: u32) -> bool {
        self.inner().is_some_and(|link| link.is_crowded(to, qpn))
    }

    /// Notes that the devices of this process have sent the answers to all frames that [`progress`](Self::progress) has
    /// delivered so far, and keep no acknowledge back. The thread that delivers calls this. A link over shared memory reports
    /// it to the other processes, for their [`exchange`](Self::exchange).
    fn all_answered(&self) {
        if let Some(link) = self.inner() {
            link.all_answered();
        }
    }

    /// Returns how many bytes may arrive at once before the system drops frames for lack of room; `None` if that never
    /// happens.
    fn room(&self) -> Option<usize> {
        self.inner().and_then(Link::room)
    }

    /// Takes a frame for sending. The caller holds locks of queue pairs, so this makes no system call and delivers nothing.
    fn send(&self, frame: Frame<'_, H>, now: Time);

    /// Takes a frame for sending, or refuses it. A refused frame waits in its queue pair, and the driver may cut it if it
    /// is a segment of a message. By default only a frame that is too long is refused.
    fn try_send(&self, frame: Frame<'_, H>, now: Time) -> TrySend {
        match self.max_frame() {
            Some(most) if frame.payload.len() > most => TrySend::TooLong(most),
            _ => {
                self.send(frame, now);
                TrySend::Sent
            }
        }
    }

    /// Returns the link that this link wraps, if any. The default methods of this trait then call the same methods of
    /// the wrapped link.
    fn inner(&self) -> Option<&dyn Link<H>> {
        None
    }

    /// Passes the frames that [`send`](Self::send) took to the system or the peer. A thread calls this after everything
    /// that sends, with no lock held. Returns whether that has caused events to [deliver](Self::progress).
    fn flush(&self) -> bool {
        self.inner().is_some_and(Link::flush)
    }

    /// Delivers the frames that are due at `now` to `network`. Returns whether it has delivered any.
    fn progress(&self, now: Time, network: &dyn Deliver<H>) -> bool;

    /// Returns when [`progress`](Self::progress) must be called next; `None` if no frame waits for a time.
    fn next_due(&self) -> Option<Time>;

    /// Returns whether the `now` that callers pass must be exact. Otherwise it may be some milliseconds late, which saves
    /// reading the clock.
    fn needs_precise_clock(&self) -> bool {
        self.inner().is_none_or(Link::needs_precise_clock)
    }

    /// Returns the object that decides which thread reads the link's frames, if frames arrive from other processes;
    /// `None` otherwise. If there is one, threads that find a completion queue empty poll the link. A poll may leave
    /// unread frames to the next one, and sending causes no arrival.
    fn input(&self) -> Option<&dyn Input> {
        self.inner().and_then(Link::input)
    }

    /// Writes the remaining frames of streams that this side has ended to the system, and waits a moment if it must. The
    /// engine calls this when a queue pair was destroyed, because its process may end next.
    fn drain(&self) {
        if let Some(link) = self.inner() {
            link.drain();
        }
    }

    /// Returns the IP address by which the link carries the frames of a multicast group. By default it carries groups of each
    /// family.
    fn group_address(&self, group: IpAddr) -> IpAddr {
        self.inner().map_or(group, |link| link.group_address(group))
    }

    /// Returns whether other processes share the address of this link, so that this process can [send](Self::send_message) them
    /// messages.
    fn is_shared(&self) -> bool {
        self.inner().is_some_and(Link::is_shared)
    }

    /// Takes a message for the process at this address whose queue pairs and shared receive queues have numbers like
    /// `number`. It leaves with [`flush`](Self::flush), as frames do, and is lost if that process does not read its messages
    /// fast enough. If there is no such process, the link delivers [`Note::Gone`].
    fn send_message(&self, number: u32, message: Vec<u8>) {
        if let Some(link) = self.inner() {
            link.send_message(number, message);
        }
    }

    /// Makes the link receive frames for this multicast group from now on. By default a link receives the frames of all
    /// groups.
    ///
    /// # Errors
    /// The group has no address on this link, or the system refuses.
    fn join(&self, group: Gid) -> Result<(), VerbError> {
        self.inner().map_or(Ok(()), |link| link.join(group))
    }

    /// Makes the link receive no further frames for this multicast group.
    fn leave(&self, group: Gid) {
        if let Some(link) = self.inner() {
            link.leave(group);
        }
    }
}

/// Decides which thread reads the frames of a link: threads that poll a completion queue, or the link's own thread, which
/// sleeps until a frame arrives.
pub trait Input {
    /// Notes that a thread has polled the link. As long as threads poll frequently, only they read the link's frames,
    /// and the link's own thread does not.
    fn polled(&self);

    /// Yields the processor or sleeps briefly. The engine calls this in a thread that has polled a completion queue
    /// while another thread was reading the link's frames, so that the polls do not keep that thread from finishing.
    fn give_way(&self);

    /// Returns whether only polling threads read the link's frames. The next poll is then due within microseconds, by
    /// one of them or by the link's thread in their place.
    fn is_polled(&self) -> bool;

    /// Makes the link's own thread read the link's frames from now on, because the calling thread, which has polled, is
    /// about to sleep.
    fn hand_back(&self);
}

/// A link that sending and reading threads share.
pub type SharedLink<H> = Arc<dyn Link<H>>;

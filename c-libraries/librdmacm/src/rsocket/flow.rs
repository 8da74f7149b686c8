//! Flow control of a stream rsocket, without verbs, memory or clock: how much this side may send, and how much it has
//! received and may grant again.
//!
//! Message numbers have 16 bits and are compared modulo 2^16. The receiver grants its ring in two halves. The sender fills
//! one half before the other, so that to the reader the bytes are in one ring.

use std::collections::VecDeque;

use super::protocol::{Message, Target};

/// Bytes of a ring: `length` bytes from `offset` on, up to the end of the ring at most, and `wrapped` bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingRange {
    pub(crate) offset: u32,
    pub(crate) length: u32,
    pub(crate) wrapped: u32,
}

impl RingRange {
    fn of(offset: u32, length: u32, size: u32) -> Self {
        let first = length.min(size - offset);
        Self {
            offset,
            length: first,
            wrapped: length - first,
        }
    }
}

/// The resources that one message occupies until its work requests have completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reserved {
    /// The bytes that it occupies in the send ring.
    pub(crate) bytes: u32,
    /// The entries that it occupies in the send queue.
    pub(crate) requests: u8,
    /// Whether the entries are among those reserved for control messages.
    pub(crate) control: bool,
}

const CONTROL: u64 = 1 << 63;

impl Reserved {
    /// Encodes the resources as the `wr_id` of the message's last work request, whose completion frees them.
    pub(crate) fn to_id(self) -> u64 {
        let control = if self.control { CONTROL } else { 0 };
        control | u64::from(self.requests) << 32 | u64::from(self.bytes)
    }

    pub(crate) fn of_id(id: u64) -> Self {
        Self {
            bytes: id as u32,
            requests: (id >> 32) as u8,
            control: id & CONTROL != 0,
        }
    }
}

/// The sending side of one direction of a connection.
#[derive(Debug)]
pub(crate) struct Sender {
    sent: u16,
    limit: u16,
    requests: u32,
    most_requests: u32,
    control: u32,
    ring_size: u32,
    ring_at: u32,
    ring_free: u32,
    // The unused rest of the target that bytes are written to, and the index of the entry in the list of targets that is
    // used next.
    target: Target,
    next: usize,
    // The entries of the send queue that a data message needs: 2 if its write and its message are separate requests
    // (iWARP), else 1.
    for_data: u8,
}

/// The number of entries in this side's list of targets.
pub(crate) const TARGETS: usize = 2;
/// The number of send queue entries that are reserved for control messages.
pub(crate) const CONTROLS: u32 = 4;

impl Sender {
    /// The sending side with a send queue of `requests` entries and a send ring of `ring` bytes. With `separate`, a write
    /// and its message are separate work requests.
    pub(crate) fn new(requests: u32, ring: u32, separate: bool) -> Self {
        let for_data = requests.saturating_sub(CONTROLS).max(2);
        Self {
            sent: 0,
            limit: 0,
            requests: for_data,
            most_requests: for_data,
            control: CONTROLS,
            ring_size: ring,
            ring_at: 0,
            ring_free: ring,
            target: Target::default(),
            next: 1,
            for_data: if separate { 2 } else { 1 },
        }
    }

    /// Stores the credits and the first target that the peer grants in its connection data.
    pub(crate) fn open(&mut self, credits: u16, first: Target) {
        self.limit = credits;
        self.target = first;
    }

    /// Handles credits of the peer: this side may send messages up to number `limit`.
    pub(crate) fn granted(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// The index of the entry in the list of targets that has to be read before further bytes can be sent; `None` if the
    /// current target has room left.
    pub(crate) fn wanted_target(&self) -> Option<usize> {
        (self.target.length == 0).then_some(self.next)
    }

    /// Stores the target that was read from that entry, unless the entry is still empty.
    pub(crate) fn found_target(&mut self, target: Target) {
        if target.length > 0 {
            self.target = target;
            self.next = (self.next + 1) % TARGETS;
        }
    }

    fn has_credit(&self) -> bool {
        self.sent != self.limit && self.requests >= u32::from(self.for_data)
    }

    /// The number of bytes that can be sent now in one message: by way of the send ring, or without it if the data are
    /// `inline`. 0 without credits or free send queue entries.
    pub(crate) fn room(&self, inline: bool) -> u32 {
        match self.has_credit() {
            true if inline => self.target.length,
            true => self.target.length.min(self.ring_free).min(Message::MOST),
            false => 0,
        }
    }

    /// Reserves resources for a message with `bytes` bytes of data: their place in the send ring, their target at the peer,
    /// and send queue entries.
    pub(crate) fn take(&mut self, bytes: u32, inline: bool) -> (RingRange, Target, Reserved) {
        let (stretch, taken) = self.take_ring(bytes, inline, self.for_data);
        self.sent = self.sent.wrapping_add(1);
        let target = Target {
            length: bytes,
            ..self.target
        };
        self.target.addr = self.target.addr.wrapping_add(u64::from(bytes));
        self.target.length -= bytes;
        (stretch, target, taken)
    }

    fn take_ring(&mut self, bytes: u32, inline: bool, requests: u8) -> (RingRange, Reserved) {
        let used = if inline { 0 } else { bytes };
        let stretch = RingRange::of(self.ring_at, used, self.ring_size);
        self.ring_at = (self.ring_at + used) % self.ring_size;
        self.ring_free -= used;
        self.requests -= u32::from(requests);
        let taken = Reserved {
            bytes: used,
            requests,
            control: false,
        };
        (stretch, taken)
    }

    /// The number of bytes that can be written now to a map of the peer, which takes no message and no credit.
    pub(crate) fn room_unannounced(&self, inline: bool) -> u32 {
        match self.requests {
            0 => 0,
            _ if inline => u32::MAX,
            _ => self.ring_free,
        }
    }

    /// Reserves resources for a write of `bytes` bytes to a map of the peer.
    pub(crate) fn take_unannounced(&mut self, bytes: u32, inline: bool) -> (RingRange, Reserved) {
        self.take_ring(bytes, inline, 1)
    }

    /// Reserves resources for a message that announces a map; `None` if there are no credits or send queue entries.
    pub(crate) fn take_mapped(&mut self) -> Option<Reserved> {
        self.has_credit().then(|| {
            self.sent = self.sent.wrapping_add(1);
            self.take_ring(0, true, self.for_data).1
        })
    }

    /// Reserves `requests` send queue entries for a control message; `None` if too few of those reserved for them are free.
    pub(crate) fn take_control(&mut self, requests: u8) -> Option<Reserved> {
        let left = self.control.checked_sub(u32::from(requests))?;
        self.control = left;
        Some(Reserved {
            bytes: 0,
            requests,
            control: true,
        })
    }

    /// Frees the resources of a message whose last work request has completed.
    pub(crate) fn completed(&mut self, taken: Reserved) {
        let requests = u32::from(taken.requests);
        if taken.control {
            self.control += requests;
        } else {
            self.requests += requests;
            self.ring_free += taken.bytes;
        }
    }

    /// Whether no work request of this side is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests == self.most_requests && self.control == CONTROLS
    }
}

/// The receiving side of one direction of a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    size: u32,
    read_at: u32,
    unread: u32,
    // The unread bytes of each received message.
    messages: VecDeque<u32>,
    taken: u16,
    credits: u16,
    // The number of messages that had been received when credits were last granted.
    granted_at: u16,
    // The bytes of the ring that were read and not granted to the peer again, and where they begin.
    free: u32,
    free_at: u32,
    entries: u32,
    entry: u32,
}

/// The peer has sent more bytes or messages than it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantExceeded;

/// What this side grants to the peer next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The number up to which the peer may send messages.
    pub(crate) limit: u16,
    /// The offset of the half of the ring that is granted, and the index of the entry in the peer's list of targets to
    /// write it to; `None` if no half is granted.
    pub(crate) half: Option<(u32, u32)>,
}

impl Receiver {
    /// The receiving side with a ring of `size` bytes, which grants the first half of it and `credits` messages.
    pub(crate) fn new(size: u32, credits: u16) -> Self {
        Self {
            size,
            read_at: 0,
            unread: 0,
            messages: VecDeque::with_capacity(usize::from(credits)),
            taken: 0,
            credits,
            granted_at: 0,
            free: size / 2,
            free_at: size / 2,
            entries: TARGETS as u32,
            entry: 1,
        }
    }

    /// The number of messages that the peer may send before further credits.
    pub(crate) fn credits(&self) -> u16 {
        self.credits
    }

    /// Stores the number of entries in the peer's list of targets.
    pub(crate) fn open(&mut self, entries: u32) {
        self.entries = entries.max(1);
        self.entry = 1 % self.entries;
    }

    /// Handles a message that announces `bytes` bytes in the ring.
    ///
    /// # Errors
    /// The peer has sent more bytes or messages than it was granted.
    pub(crate) fn arrived(&mut self, bytes: u32) -> Result<(), GrantExceeded> {
        let unread = self.unread.checked_add(bytes).ok_or(GrantExceeded)?;
        if unread > self.size || self.messages.len() >= usize::from(self.credits) {
            return Err(GrantExceeded);
        }
        self.unread = unread;
        match bytes {
            0 => self.taken = self.taken.wrapping_add(1),
            _ => self.messages.push_back(bytes),
        }
        Ok(())
    }

    /// Handles a message without data that uses a credit.
    pub(crate) fn noticed(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// The number of bytes that can be read.
    pub(crate) fn unread(&self) -> u32 {
        self.unread
    }

    /// Where unread bytes are in the ring: up to `most` of them, after the first `behind`.
    pub(crate) fn peek(&self, behind: u32, most: u32) -> RingRange {
        let length = self.unread.saturating_sub(behind).min(most);
        RingRange::of((self.read_at + behind) % self.size, length, self.size)
    }

    /// Notes that the program has read this many of the unread bytes, which makes their room in the ring free.
    pub(crate) fn read(&mut self, bytes: u32) {
        self.read_at = (self.read_at + bytes) % self.size;
        self.unread -= bytes;
        self.free += bytes;
        let mut left = bytes;
        while let Some(first) = self.messages.front_mut() {
            if *first > left {
                *first -= left;
                break;
            }
            left -= *first;
            self.messages.pop_front();
            self.taken = self.taken.wrapping_add(1);
        }
    }

    /// The grant that should be sent now; `None` until half of the ring or of the credits is used up.
    pub(crate) fn due(&self) -> Option<Grant> {
        let used = self.taken.wrapping_sub(self.granted_at);
        let has_half = self.free >= self.size / 2;
        (has_half || used >= (self.credits / 2).max(1)).then(|| Grant {
            limit: self.taken.wrapping_add(self.credits),
            half: has_half.then_some((self.free_at, self.entry)),
        })
    }

    /// Notes that this grant was sent.
    pub(crate) fn granted(&mut self, grant: Grant) {
        self.granted_at = grant.limit.wrapping_sub(self.credits);
        if grant.half.is_some() {
            self.free -= self.size / 2;
            self.free_at = (self.free_at + self.size / 2) % self.size;
            self.entry = (self.entry + 1) % self.entries;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RING: u32 = 64;

    // Both sides of one direction, with their memories: the bytes that are written to the targets are the bytes that are
    // read.
    struct Pair {
        out: Sender,
        incoming: Receiver,
        list: [Target; TARGETS],
        ring: Vec<u8>,
        in_flight: VecDeque<Reserved>,
        sent: u8,
        read: u8,
    }

    impl Pair {
        fn new(requests: u32, credits: u16, separate: bool) -> Self {
            let mut out = Sender::new(requests, 32, separate);
            let first = Target {
                addr: 0,
                key: 1,
                length: RING / 2,
            };
            out.open(credits, first);
            let mut incoming = Receiver::new(RING, credits);
            incoming.open(TARGETS as u32);
            Self {
                out,
                incoming,
                list: [Target::default(); TARGETS],
                ring: vec![0; RING as usize],
                in_flight: VecDeque::new(),
                sent: 0,
                read: 0,
            }
        }

        fn send(&mut self, wanted: u32, inline: bool) -> u32 {
            if let Some(entry) = self.out.wanted_target() {
                let found = std::mem::take(&mut self.list[entry]);
                self.out.found_target(found);
            }
            let bytes = wanted.min(self.out.room(inline));
            if bytes == 0 {
                return 0;
            }
            let (stretch, target, taken) = self.out.take(bytes, inline);
            assert!(inline || stretch.length + stretch.wrapped == bytes);
            for place in 0..bytes {
                self.ring[(target.addr + u64::from(place)) as usize] = self.sent;
                self.sent = self.sent.wrapping_add(1);
            }
            self.in_flight.push_back(taken);
            self.incoming.arrived(bytes).unwrap();
            bytes
        }

        fn read(&mut self, most: u32) -> u32 {
            let found = self.incoming.peek(0, most);
            let bytes = found.length + found.wrapped;
            let places = (found.offset..found.offset + found.length).chain(0..found.wrapped);
            for place in places {
                assert_eq!(self.ring[place as usize], self.read);
                self.read = self.read.wrapping_add(1);
            }
            self.incoming.read(bytes);
            bytes
        }

        fn grant(&mut self) {
            while let Some(grant) = self.incoming.due() {
                if let Some((offset, entry)) = grant.half {
                    assert_eq!(self.list[entry as usize].length, 0, "it is in use");
                    self.list[entry as usize] = Target {
                        addr: u64::from(offset),
                        key: 1,
                        length: RING / 2,
                    };
                }
                self.incoming.granted(grant);
                self.out.granted(grant.limit);
            }
        }

        fn complete(&mut self) {
            if let Some(taken) = self.in_flight.pop_front() {
                self.out.completed(Reserved::of_id(taken.to_id()));
            }
        }
    }

    proptest! {
        #[test]
        fn bytes_are_read_in_order_and_no_sender_gets_stuck(
            steps in prop::collection::vec((0_u8..4, 1_u32..100, any::<bool>()), 1..400),
            credits in 1_u16..8,
            separate in any::<bool>(),
        ) {
            let mut pair = Pair::new(8, credits, separate);
            for (what, bytes, inline) in steps {
                match what {
                    0 => { pair.send(bytes, inline); }
                    1 => { pair.read(bytes); }
                    2 => pair.grant(),
                    _ => pair.complete(),
                }
            }
            // If both sides keep working, any number of bytes gets through, whatever happened before.
            let mut through = 0;
            for _ in 0..200 {
                through += pair.send(7, false);
                pair.read(100);
                pair.grant();
                pair.complete();
            }
            prop_assert!(through > 1000);
            while pair.read(100) > 0 {}
            prop_assert_eq!(pair.read, pair.sent);
            while !pair.in_flight.is_empty() {
                pair.complete();
            }
            prop_assert!(pair.out.is_idle());
        }
    }

    #[test]
    fn credits_wrap_at_sixteen_bits() {
        let mut pair = Pair::new(8, 4, false);
        for _ in 0..70_000 {
            assert_eq!(pair.send(4, false), 4);
            pair.complete();
            assert_eq!(pair.read(4), 4);
            pair.grant();
        }
    }

    #[test]
    fn nothing_is_sent_without_credits_requests_or_a_target() {
        let mut pair = Pair::new(64, 2, false);
        assert_eq!([pair.send(1, false), pair.send(1, false)], [1, 1]);
        assert_eq!(pair.send(1, false), 0, "credits");
        let mut pair = Pair::new(CONTROLS + 2, 100, true);
        assert_eq!(pair.send(1, false), 1);
        assert_eq!(pair.send(1, true), 0, "requests");
        pair.complete();
        assert_eq!(pair.send(1, true), 1);
        let mut pair = Pair::new(64, 100, false);
        assert_eq!(pair.send(100, true), RING / 2);
        assert_eq!(pair.send(1, true), 0, "a target");
        pair.grant();
        assert_eq!(pair.send(100, false), RING / 2);
    }

    #[test]
    fn control_messages_have_reserved_requests() {
        let mut out = Sender::new(8, 32, false);
        let taken: Vec<_> = (0..CONTROLS).map_while(|_| out.take_control(1)).collect();
        assert_eq!(taken.len(), CONTROLS as usize);
        assert_eq!(out.take_control(1), None);
        assert!(!out.is_idle());
        for taken in taken {
            out.completed(taken);
        }
        assert!(out.is_idle());
    }

    #[test]
    fn exceeding_a_grant_is_detected() {
        let mut incoming = Receiver::new(RING, 2);
        assert_eq!(incoming.arrived(RING + 1), Err(GrantExceeded));
        assert_eq!(incoming.arrived(u32::MAX), Err(GrantExceeded));
        assert_eq!(incoming.arrived(0), Ok(()));
        assert_eq!([incoming.arrived(1), incoming.arrived(1)], [Ok(()); 2]);
        assert_eq!(incoming.arrived(1), Err(GrantExceeded));
    }
}

//! Flow control of a stream: counts what may be sent and what was received. Knows no verbs, memory or clock.
//!
//! Message numbers have 16 bits and are compared modulo 2^16. A ring is used in two halves, each granted as a whole; the peer
//! fills one before the other, so that to the reader the bytes lie in one ring.

use std::collections::VecDeque;

use super::protocol::{Message, Target};

/// Bytes of a ring from an offset on: up to its end, and the rest from its start.
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

/// What a message occupies until it has completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reserved {
    /// Bytes of the send ring.
    pub(crate) bytes: u32,
    /// Requests of the send queue.
    pub(crate) requests: u8,
    /// It uses a request reserved for control messages.
    pub(crate) control: bool,
}

const CONTROL: u64 = 1 << 63;

impl Reserved {
    /// The identity of the request whose completion frees all of it.
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

/// The sender's side.
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
    // The rest of the target in use, and the next entry of the list of targets.
    target: Target,
    next: usize,
    // Where data and message are separate requests.
    for_data: u8,
}

/// Entries in this side's list of targets.
pub(crate) const TARGETS: usize = 2;
/// Requests reserved for control messages.
pub(crate) const CONTROLS: u32 = 4;

impl Sender {
    /// With a send queue of `requests` and a ring of `ring` bytes. `separate`: a message is a request of its own.
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

    /// Sets the peer's grants at the beginning of the connection.
    pub(crate) fn open(&mut self, credits: u16, first: Target) {
        self.limit = credits;
        self.target = first;
    }

    /// The peer grants messages up to this number.
    pub(crate) fn granted(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// The entry of the list of targets that has to be read before more is sent.
    pub(crate) fn wanted_target(&self) -> Option<usize> {
        (self.target.length == 0).then_some(self.next)
    }

    /// Sets the target that was found there.
    pub(crate) fn found_target(&mut self, target: Target) {
        if target.length > 0 {
            self.target = target;
            self.next = (self.next + 1) % TARGETS;
        }
    }

    fn has_credit(&self) -> bool {
        self.sent != self.limit && self.requests >= u32::from(self.for_data)
    }

    /// How many bytes may be sent now in one message: through the ring, or outside it if `inline`.
    pub(crate) fn room(&self, inline: bool) -> u32 {
        match self.has_credit() {
            true if inline => self.target.length,
            true => self.target.length.min(self.ring_free).min(Message::MOST),
            false => 0,
        }
    }

    /// Reserves room for bytes: their place in the ring and their target at the peer.
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

    /// How many bytes may be written now to a map of the peer's, without a message.
    pub(crate) fn room_unannounced(&self, inline: bool) -> u32 {
        match self.requests {
            0 => 0,
            _ if inline => u32::MAX,
            _ => self.ring_free,
        }
    }

    /// Reserves room for them.
    pub(crate) fn take_unannounced(&mut self, bytes: u32, inline: bool) -> (RingRange, Reserved) {
        self.take_ring(bytes, inline, 1)
    }

    /// Reserves what a message about a map needs, if available.
    pub(crate) fn take_mapped(&mut self) -> Option<Reserved> {
        self.has_credit().then(|| {
            self.sent = self.sent.wrapping_add(1);
            self.take_ring(0, true, self.for_data).1
        })
    }

    /// Reserves what a control message needs, if available.
    pub(crate) fn take_control(&mut self, requests: u8) -> Option<Reserved> {
        let left = self.control.checked_sub(u32::from(requests))?;
        self.control = left;
        Some(Reserved {
            bytes: 0,
            requests,
            control: true,
        })
    }

    /// A request has completed: frees what its message occupied.
    pub(crate) fn completed(&mut self, taken: Reserved) {
        let requests = u32::from(taken.requests);
        if taken.control {
            self.control += requests;
        } else {
            self.requests += requests;
            self.ring_free += taken.bytes;
        }
    }

    /// Whether nothing is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests == self.most_requests && self.control == CONTROLS
    }
}

/// The receiver's side.
#[derive(Debug)]
pub(crate) struct Receiver {
    size: u32,
    read_at: u32,
    unread: u32,
    // Unread bytes of each message.
    messages: VecDeque<u32>,
    taken: u16,
    credits: u16,
    // The number of messages received when credits were last granted.
    granted_at: u16,
    // Bytes of the ring that were read and not granted again, and where they begin.
    free: u32,
    free_at: u32,
    entries: u32,
    entry: u32,
}

/// The peer has sent more than it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantExceeded;

/// A grant for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The number up to which it may send messages.
    pub(crate) limit: u16,
    /// Half of the ring, from this offset on, and the entry of its list of targets for it.
    pub(crate) half: Option<(u32, u32)>,
}

impl Receiver {
    /// A ring of `size` bytes, of which the first half is granted, and this many messages.
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

    /// Messages granted at the beginning.
    pub(crate) fn credits(&self) -> u16 {
        self.credits
    }

    /// Sets how many entries the peer's list of targets has.
    pub(crate) fn open(&mut self, entries: u32) {
        self.entries = entries.max(1);
        self.entry = 1 % self.entries;
    }

    /// Bytes were received.
    ///
    /// # Errors
    /// More than were granted.
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

    /// A message of another kind was received that uses a credit.
    pub(crate) fn noticed(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// How many bytes can be read.
    pub(crate) fn unread(&self) -> u32 {
        self.unread
    }

    /// Where they are: up to `most` of them, behind the first `behind`.
    pub(crate) fn peek(&self, behind: u32, most: u32) -> RingRange {
        let length = self.unread.saturating_sub(behind).min(most);
        RingRange::of((self.read_at + behind) % self.size, length, self.size)
    }

    /// Bytes were read, of those that there are.
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

    /// The grant that is due, once half of the ring or of the credits is used up.
    pub(crate) fn due(&self) -> Option<Grant> {
        let used = self.taken.wrapping_sub(self.granted_at);
        let has_half = self.free >= self.size / 2;
        (has_half || used >= (self.credits / 2).max(1)).then(|| Grant {
            limit: self.taken.wrapping_add(self.credits),
            half: has_half.then_some((self.free_at, self.entry)),
        })
    }

    /// The grant was sent.
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

    // Both ends of one direction with their memories: what is written to the targets is what is read.
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
            // With both sides working, any amount gets through, whatever went before.
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

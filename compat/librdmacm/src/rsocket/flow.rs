//! What may be sent and what has come, counted: no verb, no memory, no clock.
//!
//! Numbers of messages are counted in 16 bits and compared modulo 2^16. A ring is used in two halves, each granted as a
//! whole; the peer fills one before it goes on to the other, so that to the reader the octets lie in one ring.

use std::collections::VecDeque;

use super::protocol::{Message, Target};

/// Octets of a ring from a place on: up to its end, and the rest from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) offset: u32,
    pub(crate) length: u32,
    pub(crate) wrapped: u32,
}

impl Stretch {
    fn of(offset: u32, length: u32, size: u32) -> Self {
        let first = length.min(size - offset);
        Self {
            offset,
            length: first,
            wrapped: length - first,
        }
    }
}

/// What a message takes until it has completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Octets of the send ring.
    pub(crate) octets: u32,
    /// Requests of the send queue.
    pub(crate) requests: u8,
    /// It is one of those that are kept back for control messages.
    pub(crate) control: bool,
}

const CONTROL: u64 = 1 << 63;

impl Taken {
    /// As the identity of the request by whose completion all of it is free again.
    pub(crate) fn to_id(self) -> u64 {
        let control = if self.control { CONTROL } else { 0 };
        control | u64::from(self.requests) << 32 | u64::from(self.octets)
    }

    pub(crate) fn of_id(id: u64) -> Self {
        Self {
            octets: id as u32,
            requests: (id >> 32) as u8,
            control: id & CONTROL != 0,
        }
    }
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct Outgoing {
    sent: u16,
    limit: u16,
    requests: u32,
    most_requests: u32,
    control: u32,
    ring_size: u32,
    ring_at: u32,
    ring_free: u32,
    // What is left of the target in use, and which entry of the list is looked at next.
    target: Target,
    next: usize,
    // Where octets are sent as a message, there is a request for them and one for the message.
    for_data: u8,
}

/// Entries in this end's list of targets.
pub(crate) const TARGETS: usize = 2;
/// Requests kept back for control messages.
pub(crate) const CONTROLS: u32 = 4;

impl Outgoing {
    /// With a send queue of `requests` and a ring of `ring` octets. `separate`: a message is a request of its own.
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

    /// What the peer told when the connection was made.
    pub(crate) fn open(&mut self, credits: u16, first: Target) {
        self.limit = credits;
        self.target = first;
    }

    /// The peer takes messages up to this number.
    pub(crate) fn granted(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// The entry of the list of targets that has to be looked at before more is sent.
    pub(crate) fn wanted_target(&self) -> Option<usize> {
        (self.target.length == 0).then_some(self.next)
    }

    /// What was found there.
    pub(crate) fn found_target(&mut self, target: Target) {
        if target.length > 0 {
            self.target = target;
            self.next = (self.next + 1) % TARGETS;
        }
    }

    fn has_credit(&self) -> bool {
        self.sent != self.limit && self.requests >= u32::from(self.for_data)
    }

    /// Octets that may be sent now as one message: through the ring, or, where `inline`, beside it.
    pub(crate) fn room(&self, inline: bool) -> u32 {
        match self.has_credit() {
            true if inline => self.target.length,
            true => self.target.length.min(self.ring_free).min(Message::MOST),
            false => 0,
        }
    }

    /// Takes room for octets: where in the ring they go, and where at the peer.
    pub(crate) fn take(&mut self, octets: u32, inline: bool) -> (Stretch, Target, Taken) {
        let (stretch, taken) = self.take_ring(octets, inline, self.for_data);
        self.sent = self.sent.wrapping_add(1);
        let target = Target {
            length: octets,
            ..self.target
        };
        self.target.addr = self.target.addr.wrapping_add(u64::from(octets));
        self.target.length -= octets;
        (stretch, target, taken)
    }

    fn take_ring(&mut self, octets: u32, inline: bool, requests: u8) -> (Stretch, Taken) {
        let used = if inline { 0 } else { octets };
        let stretch = Stretch::of(self.ring_at, used, self.ring_size);
        self.ring_at = (self.ring_at + used) % self.ring_size;
        self.ring_free -= used;
        self.requests -= u32::from(requests);
        let taken = Taken {
            octets: used,
            requests,
            control: false,
        };
        (stretch, taken)
    }

    /// Octets that may be written now to a map of the peer's, of which no message tells.
    pub(crate) fn room_unannounced(&self, inline: bool) -> u32 {
        match self.requests {
            0 => 0,
            _ if inline => u32::MAX,
            _ => self.ring_free,
        }
    }

    /// Takes room for them.
    pub(crate) fn take_unannounced(&mut self, octets: u32, inline: bool) -> (Stretch, Taken) {
        self.take_ring(octets, inline, 1)
    }

    /// Takes what a message about a map needs, where there is as much.
    pub(crate) fn take_mapped(&mut self) -> Option<Taken> {
        self.has_credit().then(|| {
            self.sent = self.sent.wrapping_add(1);
            self.take_ring(0, true, self.for_data).1
        })
    }

    /// Takes what a control message needs, where there is as much.
    pub(crate) fn take_control(&mut self, requests: u8) -> Option<Taken> {
        let left = self.control.checked_sub(u32::from(requests))?;
        self.control = left;
        Some(Taken {
            octets: 0,
            requests,
            control: true,
        })
    }

    /// A request has completed: what the message took is free again.
    pub(crate) fn completed(&mut self, taken: Taken) {
        let requests = u32::from(taken.requests);
        if taken.control {
            self.control += requests;
        } else {
            self.requests += requests;
            self.ring_free += taken.octets;
        }
    }

    /// Whether nothing is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests == self.most_requests && self.control == CONTROLS
    }
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Incoming {
    size: u32,
    read_at: u32,
    unread: u32,
    // Octets of each message of which not all was read.
    messages: VecDeque<u32>,
    taken: u16,
    credits: u16,
    // The number of messages taken when credits were granted last.
    granted_at: u16,
    // Octets of the ring that were read and not granted again, and where they begin.
    free: u32,
    free_at: u32,
    entries: u32,
    entry: u32,
}

/// The peer has sent more than it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excess;

/// What the peer is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The number up to which it may send messages.
    pub(crate) limit: u16,
    /// Half of the ring, from this place on, and the entry of its list in which it is told so.
    pub(crate) half: Option<(u32, u32)>,
}

impl Incoming {
    /// A ring of `size` octets, of which the first half was granted, and so many messages.
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

    /// Messages that were granted at first.
    pub(crate) fn credits(&self) -> u16 {
        self.credits
    }

    /// How many entries the peer's list of targets has.
    pub(crate) fn open(&mut self, entries: u32) {
        self.entries = entries.max(1);
        self.entry = 1 % self.entries;
    }

    /// Octets were written.
    ///
    /// # Errors
    /// More than were granted.
    pub(crate) fn arrived(&mut self, octets: u32) -> Result<(), Excess> {
        let unread = self.unread.checked_add(octets).ok_or(Excess)?;
        if unread > self.size || self.messages.len() >= usize::from(self.credits) {
            return Err(Excess);
        }
        self.unread = unread;
        match octets {
            0 => self.taken = self.taken.wrapping_add(1),
            _ => self.messages.push_back(octets),
        }
        Ok(())
    }

    /// A message of another kind came that counts against the credits.
    pub(crate) fn noticed(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Octets that can be read.
    pub(crate) fn unread(&self) -> u32 {
        self.unread
    }

    /// Where they are, up to `most` of them, behind the first `behind`.
    pub(crate) fn peek(&self, behind: u32, most: u32) -> Stretch {
        let length = self.unread.saturating_sub(behind).min(most);
        Stretch::of((self.read_at + behind) % self.size, length, self.size)
    }

    /// They were read: at most as many as there are.
    pub(crate) fn read(&mut self, octets: u32) {
        self.read_at = (self.read_at + octets) % self.size;
        self.unread -= octets;
        self.free += octets;
        let mut left = octets;
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

    /// What is to be granted, where half of the ring or of the credits is used up.
    pub(crate) fn due(&self) -> Option<Grant> {
        let used = self.taken.wrapping_sub(self.granted_at);
        let has_half = self.free >= self.size / 2;
        (has_half || used >= (self.credits / 2).max(1)).then(|| Grant {
            limit: self.taken.wrapping_add(self.credits),
            half: has_half.then_some((self.free_at, self.entry)),
        })
    }

    /// It was granted.
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

    // Both ends of one direction, with their memories: what is written where the targets say is what is read.
    struct Pair {
        out: Outgoing,
        incoming: Incoming,
        list: [Target; TARGETS],
        ring: Vec<u8>,
        in_flight: VecDeque<Taken>,
        sent: u8,
        read: u8,
    }

    impl Pair {
        fn new(requests: u32, credits: u16, separate: bool) -> Self {
            let mut out = Outgoing::new(requests, 32, separate);
            let first = Target {
                addr: 0,
                key: 1,
                length: RING / 2,
            };
            out.open(credits, first);
            let mut incoming = Incoming::new(RING, credits);
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
            let octets = wanted.min(self.out.room(inline));
            if octets == 0 {
                return 0;
            }
            let (stretch, target, taken) = self.out.take(octets, inline);
            assert!(inline || stretch.length + stretch.wrapped == octets);
            for place in 0..octets {
                self.ring[(target.addr + u64::from(place)) as usize] = self.sent;
                self.sent = self.sent.wrapping_add(1);
            }
            self.in_flight.push_back(taken);
            self.incoming.arrived(octets).unwrap();
            octets
        }

        fn read(&mut self, most: u32) -> u32 {
            let found = self.incoming.peek(0, most);
            let octets = found.length + found.wrapped;
            let places = (found.offset..found.offset + found.length).chain(0..found.wrapped);
            for place in places {
                assert_eq!(self.ring[place as usize], self.read);
                self.read = self.read.wrapping_add(1);
            }
            self.incoming.read(octets);
            octets
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
                self.out.completed(Taken::of_id(taken.to_id()));
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_sent_is_read_in_order_and_nothing_gets_stuck(
            steps in prop::collection::vec((0_u8..4, 1_u32..100, any::<bool>()), 1..400),
            credits in 1_u16..8,
            separate in any::<bool>(),
        ) {
            let mut pair = Pair::new(8, credits, separate);
            for (what, octets, inline) in steps {
                match what {
                    0 => { pair.send(octets, inline); }
                    1 => { pair.read(octets); }
                    2 => pair.grant(),
                    _ => pair.complete(),
                }
            }
            // With everybody at work, whatever went before, as much as one likes gets through.
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
    fn credits_count_on_beyond_sixteen_bits() {
        let mut pair = Pair::new(8, 4, false);
        for _ in 0..70_000 {
            assert_eq!(pair.send(4, false), 4);
            pair.complete();
            assert_eq!(pair.read(4), 4);
            pair.grant();
        }
    }

    #[test]
    fn without_credits_or_requests_or_a_target_nothing_is_sent() {
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
    fn control_messages_have_requests_of_their_own() {
        let mut out = Outgoing::new(8, 32, false);
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
    fn a_peer_that_sends_more_than_it_was_granted_is_told_from_others() {
        let mut incoming = Incoming::new(RING, 2);
        assert_eq!(incoming.arrived(RING + 1), Err(Excess));
        assert_eq!(incoming.arrived(u32::MAX), Err(Excess));
        assert_eq!(incoming.arrived(0), Ok(()));
        assert_eq!([incoming.arrived(1), incoming.arrived(1)], [Ok(()); 2]);
        assert_eq!(incoming.arrived(1), Err(Excess));
    }
}

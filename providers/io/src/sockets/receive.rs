//! Where datagrams arrive.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use rustix::net::{RecvFlags, recvfrom};

use crate::sockets::joining::{Brought, Joining};
use crate::sockets::sys::{AT_ONCE, Filled, Incoming, receive_many, receive_one};
use crate::sockets::{address, control};

/// Room for several messages, used again and again. A message is a datagram, or several that the kernel has joined (GRO).
pub struct ReceiveBatch {
    rooms: Box<[Room]>,
    octets: Box<[u8]>,
    /// Octets of each room.
    each: usize,
    received: usize,
    /// How many messages the next call asks for: one that finds nothing more is wasted.
    wanted: usize,
    /// The last call brought as many.
    was_full: bool,
    /// So did the one before it.
    follows: bool,
    joining: Joining,
    local: Option<IpAddr>,
}

/// What a socket says of what it receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Where all of it is sent to.
    pub(crate) local: Option<IpAddr>,
    /// No control message comes, or none that is wanted.
    pub(crate) plain: bool,
}

#[derive(Clone, Copy)]
struct Room {
    /// The sender, of a message without control messages.
    from: Option<SocketAddr>,
    name: [u8; address::LONGEST],
    control: [u8; CONTROL],
    /// How much was used.
    filled: Filled,
}

/// Room for the control messages that a socket is asked to give: TOS, destination, size of a segment.
const CONTROL: usize = 128;

/// A message that arrived.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Message<'b> {
    /// The sender.
    pub from: SocketAddr,
    /// Where it was sent to; `None` if the socket is bound to no address and the kernel does not say.
    pub to: Option<IpAddr>,
    /// TOS or traffic class. The lower two bits are those of congestion notification (ECN). 0 where it is [not
    /// told](crate::sockets::UdpSocket::tell_classes).
    pub traffic_class: u8,
    /// Index of the interface, where the socket is bound to no address.
    pub interface: Option<u32>,
    /// Octets of each datagram but the last, which may be shorter.
    pub segment: usize,
    /// All octets.
    pub octets: &'b [u8],
}

impl<'b> Message<'b> {
    /// The datagrams, in order. One without octets is one.
    pub fn datagrams(&self) -> impl Iterator<Item = &'b [u8]> + use<'b> {
        let empty = self.octets.is_empty().then_some(self.octets);
        empty
            .into_iter()
            .chain(self.octets.chunks(self.segment.max(1)))
    }
}

impl ReceiveBatch {
    /// Room for so many messages of so many octets each. A socket that joins datagrams gives up to 65,535.
    pub fn new(messages: usize, octets: usize) -> Self {
        let messages = messages.clamp(1, AT_ONCE);
        let room = Room {
            from: None,
            name: [0; address::LONGEST],
            control: [0; CONTROL],
            filled: Filled::default(),
        };
        Self {
            rooms: vec![room; messages].into(),
            octets: vec![0; messages * octets.max(1)].into(),
            each: octets.max(1),
            received: 0,
            wanted: 1,
            was_full: false,
            follows: false,
            joining: Joining::default(),
            local: None,
        }
    }

    /// What arrived last. Messages that did not fit, or came from nowhere, are left out.
    pub fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        let rooms = self.rooms[..self.received].iter();
        rooms
            .zip(self.octets.chunks(self.each))
            .filter_map(|(room, octets)| room.message(octets, self.local))
    }

    /// Whether there was room for no more messages, so that there may be more.
    pub fn is_full(&self) -> bool {
        self.received == self.rooms.len()
    }

    /// How many of the last messages did not fit.
    pub fn truncated(&self) -> usize {
        let rooms = self.rooms[..self.received].iter();
        rooms.filter(|room| room.filled.truncated).count()
    }

    /// The traffic class of the first of them, 0 where it came without control messages.
    pub(crate) fn class(&self) -> u8 {
        let first = self.rooms[..self.received].first();
        let told = first.filter(|room| room.filled.control > 0);
        let message = told.and_then(|room| room.message(&self.octets, self.local));
        message.map_or(0, |message| message.traffic_class)
    }

    /// Receives what there is, as much as there is room for; answers how many messages.
    pub(crate) fn fill(&mut self, fd: BorrowedFd<'_>, manner: Manner) -> io::Result<usize> {
        self.local = manner.local;
        self.received = 0;
        let received = self.receive(fd, manner.plain);
        let count = *received.as_ref().unwrap_or(&0);
        self.received = count;
        // One may be all that comes for now, as in a conversation: more are asked for where the next call is full too.
        let is_full = count == self.wanted;
        self.wanted = match (is_full, self.was_full) {
            (true, true) => (count * 2).min(self.rooms.len()),
            (true, false) => count,
            (false, _) => count.max(1),
        };
        (self.follows, self.was_full) = (self.was_full, is_full);
        received
    }

    /// Whether a socket that asks the kernel to join, or does not, should do the other after a call that brought something.
    pub(crate) fn changes_joining(&mut self, asks: bool) -> bool {
        let mut rooms = self.rooms[..self.received].iter();
        let brought = match self.received {
            _ if asks && rooms.any(Room::is_joined) => Brought::Joined,
            1 if !self.follows => Brought::Single,
            messages => Brought::Crowd(messages as u32),
        };
        self.joining.note(asks, brought)
    }

    fn receive(&mut self, fd: BorrowedFd<'_>, plain: bool) -> io::Result<usize> {
        // A poller looks again and again, and mostly at nothing: the room for many is not laid out for one.
        if let (1, Some(room)) = (self.wanted, self.rooms.first_mut()) {
            let octets = &mut self.octets[..self.each];
            if plain {
                room.receive_plain(fd, octets)?;
            } else {
                receive_one(fd, &mut room.incoming(octets))?;
            }
            return Ok(1);
        }
        self.receive_together(fd)
    }

    #[inline(never)]
    fn receive_together(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let octets = self.octets.chunks_mut(self.each);
        let mut messages: ArrayVec<_, AT_ONCE> = self.rooms[..self.wanted]
            .iter_mut()
            .zip(octets)
            .map(|(room, octets)| room.incoming(octets))
            .collect();
        receive_many(fd, &mut messages)
    }
}

impl Room {
    // Less for the kernel to read and to write than where there may be control messages.
    fn receive_plain(&mut self, fd: BorrowedFd<'_>, octets: &mut [u8]) -> io::Result<()> {
        let room = octets.len();
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let (payload, length, from) = recvfrom(fd, octets, flags)?;
        self.from = from.and_then(|from| from.try_into().ok());
        self.filled = Filled {
            payload,
            truncated: length > room,
            ..Filled::default()
        };
        Ok(())
    }

    fn incoming<'r>(&'r mut self, payload: &'r mut [u8]) -> Incoming<'r> {
        self.from = None;
        Incoming {
            name: &mut self.name,
            payload,
            control: &mut self.control,
            filled: &mut self.filled,
        }
    }

    fn is_joined(&self) -> bool {
        let mut messages = control::messages(&self.control[..self.filled.control]);
        messages.any(|(level, kind, _)| (level, kind) == (libc::SOL_UDP, libc::UDP_GRO))
    }

    fn message<'b>(&self, octets: &'b [u8], local: Option<IpAddr>) -> Option<Message<'b>> {
        let filled = &self.filled;
        if filled.truncated {
            return None;
        }
        let octets = &octets[..filled.payload];
        let mut message = Message {
            from: (self.from).or_else(|| address::read(&self.name[..filled.name]))?,
            to: local,
            traffic_class: 0,
            interface: None,
            segment: octets.len(),
            octets,
        };
        for (level, kind, data) in control::messages(&self.control[..filled.control]) {
            message.note(level, kind, data);
        }
        Some(message)
    }
}

impl Message<'_> {
    fn note(&mut self, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                self.traffic_class = data.first().copied().unwrap_or_default();
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                self.traffic_class = control::number(data).unwrap_or_default() as u8;
            }
            // Interface, local address, destination.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                self.interface = control::number(data);
                let to = data.get(8..).and_then(|data| data.first_chunk::<4>());
                self.to = to.map(|&octets| octets.into());
            }
            // Destination, interface.
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                self.to = data.first_chunk::<16>().map(|&octets| octets.into());
                self.interface = data.get(16..).and_then(control::number);
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let segment = control::number(data).unwrap_or_default() as usize;
                if segment != 0 {
                    self.segment = segment;
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_joined_message_is_cut_into_its_datagrams() {
        let mut message = Message {
            from: ([127, 0, 0, 1], 1).into(),
            to: None,
            traffic_class: 0,
            interface: None,
            segment: 3,
            octets: b"abcdefgh",
        };
        let cut: Vec<_> = message.datagrams().collect();
        assert_eq!(cut, [&b"abc"[..], b"def", b"gh"]);
        (message.octets, message.segment) = (b"", 0);
        assert_eq!(message.datagrams().collect::<Vec<_>>(), [b""]);
    }
}

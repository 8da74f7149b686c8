//! Buffers for received UDP datagrams.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;

use crate::sockets::sys::{AT_ONCE, Filled, Incoming, receive_many, receive_one};
use crate::sockets::{address, control};
use crate::zeroed;

/// Buffers for the messages of one receive call, which the next call reuses. A message is one datagram, or several that the
/// kernel has joined (GRO).
pub struct ReceiveBatch {
    rooms: Box<[Room]>,
    bytes: Box<[u8]>,
    /// Bytes of the buffer of each message.
    each: usize,
    received: usize,
    /// How many messages the next call asks for. Asking for more than have arrived costs time.
    wanted: usize,
    /// Whether the last call returned as many messages as it asked for.
    was_full: bool,
}

#[derive(Clone, Copy)]
struct Room {
    name: [u8; address::LONGEST],
    control: [u8; CONTROL],
    /// How much of this room the last message used.
    filled: Filled,
}

/// Bytes for the control messages that a socket requests: the traffic class, and the segment size of joined datagrams.
const CONTROL: usize = 2 * control::space(size_of::<libc::c_int>());

/// A received message: one datagram, or several that the kernel has joined.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Message<'b> {
    /// The sender's address and port.
    pub from: SocketAddr,
    /// TOS of IPv4 or traffic class of IPv6. The lower two bits are ECN.
    pub traffic_class: u8,
    /// Length in bytes of each datagram except the last one, which may be shorter.
    pub segment: usize,
    /// The bytes of all datagrams, one after another.
    pub bytes: &'b [u8],
}

impl<'b> Message<'b> {
    /// Returns the datagrams of the message in order. An empty message is one datagram without bytes.
    pub fn datagrams(&self) -> impl Iterator<Item = &'b [u8]> + use<'b> {
        let empty = self.bytes.is_empty().then_some(self.bytes);
        empty
            .into_iter()
            .chain(self.bytes.chunks(self.segment.max(1)))
    }
}

impl ReceiveBatch {
    /// Creates buffers for `messages` messages, at most 32, of at most `bytes` bytes each. A socket with receive
    /// offload delivers up to 65,535 bytes in a message.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn new(messages: usize, bytes: usize) -> io::Result<Self> {
        let messages = messages.clamp(1, AT_ONCE);
        let room = Room {
            name: [0; address::LONGEST],
            control: [0; CONTROL],
            filled: Filled::default(),
        };
        Ok(Self {
            rooms: vec![room; messages].into(),
            bytes: zeroed(messages * bytes.max(1))?,
            each: bytes.max(1),
            received: 0,
            wanted: 1,
            was_full: false,
        })
    }

    /// Returns the messages that the last call received, except those that did not fit or have no sender.
    pub fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        let rooms = self.rooms[..self.received].iter();
        rooms
            .zip(self.bytes.chunks(self.each))
            .filter_map(|(room, bytes)| room.message(bytes))
    }

    /// Returns whether the last call used all buffers, so that the socket may have more messages.
    pub fn is_full(&self) -> bool {
        self.received == self.rooms.len()
    }

    /// Returns how many messages of the last call were too long for their buffers.
    pub fn truncated(&self) -> usize {
        let rooms = self.rooms[..self.received].iter();
        rooms.filter(|room| room.filled.truncated).count()
    }

    /// Receives messages that have arrived, as many as this asks for, without waiting. Returns how many.
    pub(crate) fn fill(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        self.received = 0;
        let received = self.receive(fd);
        let count = *received.as_ref().unwrap_or(&0);
        self.received = count;
        // A conversation has one message at a time, so a call asks for more only if the last one was full, too.
        let is_full = count == self.wanted;
        self.wanted = match (is_full, self.was_full) {
            (true, true) => (count * 2).min(self.rooms.len()),
            (true, false) => count,
            (false, _) => count.max(1),
        };
        self.was_full = is_full;
        received
    }

    fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        // A poller calls this often and mostly finds nothing, so this path does not set up room for many messages.
        if let (1, Some(room)) = (self.wanted, self.rooms.first_mut()) {
            receive_one(fd, &mut room.incoming(&mut self.bytes[..self.each]))?;
            return Ok(1);
        }
        self.receive_together(fd)
    }

    #[inline(never)]
    fn receive_together(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let bytes = self.bytes.chunks_mut(self.each);
        let mut messages: ArrayVec<_, AT_ONCE> = self.rooms[..self.wanted]
            .iter_mut()
            .zip(bytes)
            .map(|(room, bytes)| room.incoming(bytes))
            .collect();
        receive_many(fd, &mut messages)
    }
}

impl Room {
    fn incoming<'r>(&'r mut self, payload: &'r mut [u8]) -> Incoming<'r> {
        Incoming {
            name: &mut self.name,
            payload,
            control: &mut self.control,
            filled: &mut self.filled,
        }
    }

    fn message<'b>(&self, bytes: &'b [u8]) -> Option<Message<'b>> {
        let filled = &self.filled;
        if filled.truncated {
            return None;
        }
        let bytes = &bytes[..filled.payload];
        let mut message = Message {
            from: address::read(&self.name[..filled.name])?,
            traffic_class: 0,
            segment: bytes.len(),
            bytes,
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
            traffic_class: 0,
            segment: 3,
            bytes: b"abcdefgh",
        };
        let cut: Vec<_> = message.datagrams().collect();
        assert_eq!(cut, [&b"abc"[..], b"def", b"gh"]);
        (message.bytes, message.segment) = (b"", 0);
        assert_eq!(message.datagrams().collect::<Vec<_>>(), [b""]);
    }
}

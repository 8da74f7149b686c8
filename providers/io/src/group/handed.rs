//! Datagrams that one process hands to another.

use std::io;
use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

use crate::sockets::address::{self, LONGEST, Name};

/// A datagram that arrived at the socket of another process, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// Where it was sent to.
    pub to: IpAddr,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// Number of the datagram among those that arrived joined.
    pub segment: u8,
    /// The octets, from the BTH on.
    pub octets: &'a [u8],
}

/// Why a datagram could not be handed over.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandError {
    /// Nobody is there.
    #[error("nobody is there")]
    Nobody,
    /// Whoever is there does not keep up.
    #[error("the process that it is meant for does not keep up")]
    Full,
    /// Anything else.
    #[error(transparent)]
    System(io::Error),
}

impl From<io::Error> for HandError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Self::Nobody,
            io::ErrorKind::WouldBlock => Self::Full,
            _ => Self::System(error),
        }
    }
}

const HEAD: usize = 2 + 2 * LONGEST;

impl<'a> Handed<'a> {
    pub(super) fn head(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        [head[0], head[1]] = [self.traffic_class, self.segment];
        let names = [self.from, SocketAddr::new(self.to, 0)].map(Name::of);
        for (name, into) in names.iter().zip(head[2..].chunks_mut(LONGEST)) {
            into[..name.bytes().len()].copy_from_slice(name.bytes());
        }
        head
    }

    pub(super) fn read(message: &'a [u8]) -> Option<Self> {
        let (head, octets) = message.split_first_chunk::<HEAD>()?;
        Some(Self {
            from: address::read(&head[2..2 + LONGEST])?,
            to: address::read(&head[2 + LONGEST..])?.ip(),
            traffic_class: head[0],
            segment: head[1],
            octets,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_read_as_it_was_handed_over() {
        for (from, to) in [("10.0.0.1:50000", "10.0.0.2"), ("[fe80::1%2]:5", "fe80::2")] {
            let handed = Handed {
                from: from.parse().unwrap(),
                to: to.parse().unwrap(),
                traffic_class: 3,
                segment: 7,
                octets: b"BTH and so on",
            };
            let message = [&handed.head()[..], handed.octets].concat();
            assert_eq!(Handed::read(&message), Some(handed));
            for length in 0..HEAD {
                assert_eq!(Handed::read(&message[..length]), None);
            }
            let nothing = [0; HEAD + 4];
            assert_eq!(Handed::read(&nothing), None);
        }
    }
}

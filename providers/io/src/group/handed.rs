//! Datagrams that one process of a port group forwards to another.

use std::io;

use thiserror::Error;

use crate::Arrival;
use crate::sockets::address::{self, LONGEST, Name};

/// The reason why a message could not be sent to another process.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandError {
    /// No admitted process holds the range or answers for the service ID.
    #[error("no process receives this message")]
    Nobody,
    /// The process does not read its messages fast enough.
    #[error("the receiving process does not read its messages fast enough")]
    Full,
    /// Another error of the system.
    #[error(transparent)]
    System(io::Error),
}

impl From<io::Error> for HandError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::PermissionDenied => Self::Nobody,
            io::ErrorKind::WouldBlock => Self::Full,
            _ => Self::System(error),
        }
    }
}

const HEAD: usize = 2 + 2 * LONGEST;

/// Encodes the properties of a received datagram, which precede the datagram in the message that forwards it.
pub(super) fn head(arrival: &Arrival) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    // The number of a segment fits, because the kernel joins at most as many datagrams as it cuts.
    [head[0], head[1]] = [arrival.traffic_class, arrival.segment as u8];
    let names = [arrival.from, arrival.to].map(Name::of);
    for (name, into) in names.iter().zip(head[2..].chunks_mut(LONGEST)) {
        into[..name.bytes().len()].copy_from_slice(name.bytes());
    }
    head
}

pub(super) fn read(message: &[u8]) -> Option<(Arrival, &[u8])> {
    let (head, datagram) = message.split_first_chunk::<HEAD>()?;
    let arrival = Arrival {
        from: address::read(&head[2..2 + LONGEST])?,
        to: address::read(&head[2 + LONGEST..])?,
        traffic_class: head[0],
        segment: head[1].into(),
    };
    Some((arrival, datagram))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forwarded_datagram_is_read_as_it_was_sent() {
        for (from, to) in [
            ("10.0.0.1:50000", "10.0.0.2:4791"),
            ("[fe80::1%2]:5", "[fe80::2]:4791"),
        ] {
            let arrival = Arrival {
                from: from.parse().unwrap(),
                to: to.parse().unwrap(),
                traffic_class: 3,
                segment: 7,
            };
            let datagram = b"BTH and so on";
            let message = [&head(&arrival)[..], datagram].concat();
            assert_eq!(read(&message), Some((arrival, &datagram[..])));
            for length in 0..HEAD {
                assert_eq!(read(&message[..length]), None);
            }
            assert_eq!(read(&[0; HEAD + 4]), None);
        }
    }
}

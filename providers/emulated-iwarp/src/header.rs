//! Headers as values: DDP segments (RFC 5041), the RDMAP messages in them (RFC 5040, RFC 7306), and what becomes of the
//! stream itself.
//!
//! A header is not bytes yet: a codec makes them where there is a wire.

pub use polyverbs_engine::operation::AtomicOp;
use polyverbs_wire::iwarp::rdmap::atomic;
pub use polyverbs_wire::iwarp::{
    AtomicRequest, AtomicResponse, Body, ExtensionHeader, Opcode, ReadRequest, Tagged, Untagged,
    ddp::queue,
};
use verbs_api::{RemoteAddress, ids::LinkAddress};

use crate::terminate::TerminateCode;

/// One end of a stream, as the other knows it.
///
/// On a wire the socket says all this. In process a queue pair is found by its number, and the epoch tells a connection
/// from earlier and later ones, as a TCP connection is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct End {
    /// The queue pair; 0 where only the epochs say which.
    pub qpn: u32,
    /// Its connection: unique in the process.
    pub epoch: u32,
}

/// Which stream a frame belongs to, and which way it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// The sender.
    pub source: End,
    /// The receiver.
    pub destination: End,
}

impl Stream {
    /// A number for the connection: the same for both directions, another for each connection.
    pub fn key(&self) -> u64 {
        let (one, other) = (self.source.epoch, self.destination.epoch);
        u64::from(one.max(other)) << 32 | u64::from(one.min(other))
    }

    /// A connection of which nothing but its [`key`](Self::key) is known.
    pub const fn of_key(key: u64) -> Self {
        const fn end(epoch: u32) -> End {
            End { qpn: 0, epoch }
        }
        Self {
            source: end(key as u32),
            destination: end((key >> 32) as u32),
        }
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The stream.
    pub stream: Stream,
    /// What comes along it.
    pub message: Message,
}

/// What comes along a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A segment that says where its bytes go (RFC 5041 section 5.1).
    Tagged(Tagged),
    /// A segment of a message for one of the peer's queues (RFC 5041 section 5.2). An extension's bytes and a Terminate are
    /// its payload, as the program's are.
    Untagged(Untagged, Body),
    /// A FIN: the sender is done, and all that it sent has arrived.
    Close,
    /// The stream is gone: an RST.
    Reset,
    /// The stream cannot be parsed any further: the code of the Terminate.
    Broken(TerminateCode),
    /// The first frame of a stream came.
    First,
    /// The indication came with which a stream begins that both ends may send on.
    Ready(Ready),
    /// The send buffer of the stream has room again.
    Room,
}

impl Message {
    /// Whether it is for the sending half: a read response, an atomic response, a Terminate.
    pub fn is_answer(&self) -> bool {
        match self {
            Self::Tagged(segment) => segment.opcode == Opcode::READ_RESPONSE,
            Self::Untagged(segment, _) => {
                matches!(segment.qn, queue::TERMINATE | queue::ATOMIC_RESPONSE)
            }
            _ => false,
        }
    }

    /// The ready-to-receive indication in the form of a write.
    pub fn rtr_write() -> Self {
        Self::Tagged(Tagged::new(Opcode::WRITE, 0, 0, true))
    }

    /// An untagged message in one segment, on the queue that it belongs to.
    pub fn untagged(msn: u32, opcode: Opcode, body: Body) -> Self {
        Self::Untagged(Untagged::new(opcode, body.queue(), msn, 0, true), body)
    }
}

/// A ready-to-receive indication (RFC 6581 section 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// A send of no bytes: it takes no receive.
    Send,
    /// A write of no bytes.
    Write,
    /// A read of no bytes, which is answered.
    Read(ReadRequest),
}

/// What an Atomic Request asks for; `None` of an operation that RFC 7306 does not have.
pub const fn operation(request: &AtomicRequest) -> Option<AtomicOp> {
    match request.operation {
        atomic::FETCH_ADD => Some(AtomicOp::FetchAdd {
            add: request.add_or_swap,
            mask: request.add_or_swap_mask,
        }),
        atomic::COMPARE_SWAP => Some(AtomicOp::CompareSwap {
            compare: request.compare,
            compare_mask: request.compare_mask,
            swap: request.add_or_swap,
            swap_mask: request.add_or_swap_mask,
        }),
        _ => None,
    }
}

/// The Atomic Request for an operation on the eight bytes at `remote`.
pub fn atomic_request(request_id: u32, remote: RemoteAddress, op: AtomicOp) -> AtomicRequest {
    let blank = AtomicRequest {
        request_id,
        stag: remote.rkey.value(),
        to: remote.addr,
        ..AtomicRequest::default()
    };
    match op {
        AtomicOp::FetchAdd { add, mask } => AtomicRequest {
            operation: atomic::FETCH_ADD,
            add_or_swap: add,
            add_or_swap_mask: mask,
            ..blank
        },
        AtomicOp::CompareSwap {
            compare,
            compare_mask,
            swap,
            swap_mask,
        } => AtomicRequest {
            operation: atomic::COMPARE_SWAP,
            add_or_swap: swap,
            add_or_swap_mask: swap_mask,
            compare,
            compare_mask,
            ..blank
        },
    }
}

/// The connection of a frame, for a link: see [`Stream::key`].
pub fn stream_key(header: &Header) -> u64 {
    header.stream.key()
}

/// What tells both ends of the connection with this key that it was reset, for a link.
pub const fn reset_header(_from: LinkAddress, _to: LinkAddress, key: u64) -> Header {
    Header {
        stream: Stream::of_key(key),
        message: Message::Reset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_one_key_in_both_directions() {
        let (one, other) = (End { qpn: 1, epoch: 7 }, End { qpn: 2, epoch: 3 });
        let there = Stream {
            source: one,
            destination: other,
        };
        let back = Stream {
            source: other,
            destination: one,
        };
        assert_eq!(there.key(), back.key());
        assert_eq!(Stream::of_key(there.key()).key(), there.key());
        let later = Stream {
            source: End { epoch: 8, ..one },
            destination: other,
        };
        assert_ne!(later.key(), there.key());
    }
}

//! Decoded headers: DDP segments (RFC 5041), the RDMAP messages in them (RFC 5040, RFC 7306), and events of the stream
//! itself.
//!
//! On a wire a codec converts a header to bytes and back.

pub use polyverbs_engine::operation::AtomicOp;
pub use polyverbs_wire::iwarp::{
    AtomicRequest, AtomicResponse, Body, ExtensionHeader, Opcode, ReadRequest, Tagged, Untagged,
    ddp::queue,
};
use polyverbs_wire::iwarp::{TerminateCode, rdmap::atomic};
use verbs_api::{RemoteAddress, ids::LinkAddress};

/// One end of a stream, as the other end knows it.
///
/// On a wire the socket identifies the stream. In process the number identifies the queue pair, and the epoch distinguishes
/// the connection from earlier and later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct End {
    /// The number of the queue pair; 0 if only the epochs are known.
    pub qpn: u32,
    /// The epoch of the queue pair's connection, a number that is unique in the process.
    pub epoch: u32,
}

/// The stream to which a frame belongs, and the direction of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// The end that sends the frame.
    pub source: End,
    /// The end that receives the frame.
    pub destination: End,
}

impl Stream {
    /// Returns a number that identifies the connection: it is the same in both directions, and different for each
    /// connection.
    pub fn key(&self) -> u64 {
        let (one, other) = (self.source.epoch, self.destination.epoch);
        u64::from(one.max(other)) << 32 | u64::from(one.min(other))
    }

    /// Returns a stream of which only the [`key`](Self::key) is known; the numbers of its queue pairs are 0.
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

/// The decoded header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The stream to which the frame belongs.
    pub stream: Stream,
    /// The message or event that the frame carries.
    pub message: Message,
}

/// A DDP segment of a message, or an event of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A tagged segment, which names the buffer for its payload (RFC 5041 section 5.1).
    Tagged(Tagged),
    /// An untagged segment: a part of a message for one of the peer's queues (RFC 5041 section 5.2). The contents of
    /// extensions' messages and of Terminates are its payload, as data of the program are.
    Untagged(Untagged, Body),
    /// The sender closes the stream in order (FIN): it has sent all its data, and all of it has arrived.
    Close,
    /// The stream was reset and is gone (RST).
    Reset,
    /// The bytes of the stream cannot be parsed further. The code is that of the Terminate to send.
    Broken(TerminateCode),
    /// The first frame of the stream has arrived.
    First,
    /// The ready-to-receive indication has arrived, which begins a stream on which both ends may send.
    Ready(Ready),
    /// The send buffer of the stream has room again.
    Room,
}

impl Message {
    /// Returns whether the message is for the requester: a read response, an atomic response, or a Terminate.
    pub fn is_answer(&self) -> bool {
        match self {
            Self::Tagged(segment) => segment.opcode == Opcode::READ_RESPONSE,
            Self::Untagged(segment, _) => {
                matches!(segment.qn, queue::TERMINATE | queue::ATOMIC_RESPONSE)
            }
            _ => false,
        }
    }

    /// Returns the ready-to-receive indication in the form of a write.
    pub fn rtr_write() -> Self {
        Self::Tagged(Tagged::new(Opcode::WRITE, 0, 0, true))
    }

    /// Returns an untagged message of one segment, on the queue to which its body belongs. `msn` is its message sequence
    /// number.
    pub fn untagged(msn: u32, opcode: Opcode, body: Body) -> Self {
        Self::Untagged(Untagged::new(opcode, body.queue(), msn, 0, true), body)
    }
}

/// A ready-to-receive indication (RFC 6581 section 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// A send without payload. It takes no receive.
    Send,
    /// A write without payload.
    Write,
    /// A read of no bytes, which the receiver of the indication answers.
    Read(ReadRequest),
}

/// Returns the operation of an Atomic Request; `None` if RFC 7306 does not define it.
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

/// Returns the Atomic Request for an operation on the eight bytes at `remote`.
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

/// Returns the number that identifies a frame's connection, for a link: see [`Stream::key`].
pub fn stream_key(header: &Header) -> u64 {
    header.stream.key()
}

/// Returns the header with which a link reports to both ends of a connection that it was reset.
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
    fn both_directions_of_a_connection_have_one_key() {
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

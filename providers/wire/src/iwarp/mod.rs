//! iWARP: the protocols that two RDMA adapters speak over a TCP stream.
//!
//! | module | holds |
//! | --- | --- |
//! | [`start`] | MPA's request and reply, with which a connection begins (RFC 5044, RFC 6581) |
//! | [`fpdu`] | MPA's frames, markers and checksum (RFC 5044) |
//! | [`ddp`] | the segments in the frames (RFC 5041) |
//! | [`rdmap`] | the messages in the segments (RFC 5040, RFC 7306) |
//! | `opcode` | the table of their opcodes |
//! | [`terminate`] | the last message of a stream that failed (RFC 5040 section 4.8) |

pub mod ddp;
pub mod fpdu;
mod opcode;
pub mod rdmap;
pub mod start;
pub mod terminate;

pub use ddp::{SegmentHeader, Tagged, Untagged};
pub use fpdu::{Direction, Fpdu, Framing, Layout};
pub use opcode::{Facts, Opcode};
pub use rdmap::{AtomicRequest, AtomicResponse, Body, ExtensionHeader, ReadRequest, Segment};
pub use start::{Enhanced, Kind, Settings, Start, StartHeader};
pub use terminate::{Terminate, TerminateCode, TerminateControl};

/// The reason why a received segment is not carried out. The receiver ends the stream and sends [`code`](Self::code) in a
/// Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reject {
    /// The CRC of the frame is wrong.
    #[error("a wrong CRC")]
    Crc,
    /// A marker of the frame does not point at the beginning of the frame.
    #[error("a marker that does not fit the frame")]
    Marker,
    /// The segment ends within its DDP header.
    #[error("too short for its header")]
    Short,
    /// The segment is tagged, and has another version of DDP.
    #[error("another version of DDP in a tagged segment")]
    TaggedVersion,
    /// The segment is untagged, and has another version of DDP.
    #[error("another version of DDP in an untagged segment")]
    UntaggedVersion,
    /// The segment names a queue that does not exist.
    #[error("an unknown queue number")]
    QueueNumber,
    /// The segment has another version of RDMAP.
    #[error("another version of RDMAP")]
    RdmapVersion,
    /// The opcode is unknown, or does not belong on this queue or in a tagged segment.
    #[error("an unexpected opcode")]
    Opcode,
    /// The message does not have the length that its opcode prescribes.
    #[error("a length that does not fit the opcode")]
    Length,
}

impl Reject {
    /// Returns the code that the receiver reports to its peer in a Terminate (RFC 5044 section 8, RFC 5041 section 7, RFC
    /// 5040 section 4.8).
    pub const fn code(self) -> TerminateCode {
        match self {
            Self::Crc => TerminateCode::MPA_CRC,
            Self::Marker => TerminateCode::MPA_MARKER,
            Self::TaggedVersion => TerminateCode::DDP_TAGGED_VERSION,
            Self::UntaggedVersion => TerminateCode::DDP_UNTAGGED_VERSION,
            Self::QueueNumber => TerminateCode::DDP_QUEUE,
            Self::RdmapVersion => TerminateCode::RDMAP_VERSION,
            Self::Opcode => TerminateCode::RDMAP_OPCODE,
            // No RFC has a code for these two: this is the nearest code that blames the stream.
            Self::Short | Self::Length => TerminateCode::RDMAP_STREAM,
        }
    }
}

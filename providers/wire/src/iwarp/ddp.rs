//! The headers of DDP segments (RFC 5041 section 4), each with the byte of RDMAP's control field (RFC 5040 section 4.1).
//!
//! ```text
//! T L res DV | RV res opcode | STag, 4 octets | tagged offset, 8                          tagged
//! T L res DV | RV res opcode | reserved for RDMAP, 4 | queue, 4 | MSN, 4 | offset, 4      untagged
//! ```

use super::opcode::Opcode;
use crate::layout::{Header, Reserved, header};

/// The version of DDP in every segment.
pub const DDP_VERSION: u8 = 1;

/// The version of RDMAP in every segment.
pub const RDMAP_VERSION: u8 = 1;

/// The numbers of the queues to which untagged messages go (RFC 5040 section 4.2, RFC 7306 section 4.2).
pub mod queue {
    /// The queue of Sends and Immediate Data.
    pub const SEND: u32 = 0;
    /// The queue of RDMA Read Requests and Atomic Requests.
    pub const REQUEST: u32 = 1;
    /// The queue of Terminates.
    pub const TERMINATE: u32 = 2;
    /// The queue of Atomic Responses.
    pub const ATOMIC_RESPONSE: u32 = 3;
}

header! {
    /// The header of a tagged DDP segment, which names the place of its payload in the peer's memory (RFC 5041 section
    /// 4.2).
    Tagged, TaggedView: 14 octets {
        tagged: bool = 1, "T: set, because the segment is tagged.";
        last: bool = 1, "L: whether this is the last segment of its message.";
        reserved: Reserved = 4, "Zero.";
        ddp_version: u8 = 2, "Version of DDP: [`DDP_VERSION`].";
        rdmap_version: u8 = 2, "Version of RDMAP: [`RDMAP_VERSION`].";
        rdmap_reserved: Reserved = 2, "Zero.";
        opcode: Opcode = 4, "The RDMAP opcode: the kind of message to which the segment belongs.";
        stag: u32 = 32, "The STag of the receiver's buffer into which the payload is placed.";
        to: u64 = 64, "The tagged offset in that buffer at which the payload's first byte is placed.";
    }
}

header! {
    /// The header of an untagged DDP segment, which goes to one of the peer's queues (RFC 5041 section 4.3).
    Untagged, UntaggedView: 18 octets {
        tagged: bool = 1, "T: not set, because the segment is untagged.";
        last: bool = 1, "L: whether this is the last segment of its message.";
        reserved: Reserved = 4, "Zero.";
        ddp_version: u8 = 2, "Version of DDP: [`DDP_VERSION`].";
        rdmap_version: u8 = 2, "Version of RDMAP: [`RDMAP_VERSION`].";
        rdmap_reserved: Reserved = 2, "Zero.";
        opcode: Opcode = 4, "The RDMAP opcode: the kind of message to which the segment belongs.";
        invalidate_stag: u32 = 32, "The STag that the receiver invalidates, in a Send with Invalidate; otherwise zero.";
        qn: u32 = 32, "The number of the receiver's queue to which the message goes: see [`queue`].";
        msn: u32 = 32, "The message's sequence number on that queue: 1 for the first message, modulo 2^32.";
        mo: u32 = 32, "The offset in the message of the payload's first byte.";
    }
}

impl Tagged {
    /// Creates the header of a tagged segment with [`DDP_VERSION`] and [`RDMAP_VERSION`].
    pub fn new(opcode: Opcode, stag: u32, to: u64, last: bool) -> Self {
        Self {
            tagged: true,
            last,
            ddp_version: DDP_VERSION,
            rdmap_version: RDMAP_VERSION,
            opcode,
            stag,
            to,
            ..Self::default()
        }
    }
}

impl Untagged {
    /// Creates the header of an untagged segment with [`DDP_VERSION`] and [`RDMAP_VERSION`], which invalidates no STag.
    pub fn new(opcode: Opcode, qn: u32, msn: u32, mo: u32, last: bool) -> Self {
        Self {
            last,
            ddp_version: DDP_VERSION,
            rdmap_version: RDMAP_VERSION,
            opcode,
            qn,
            msn,
            mo,
            ..Self::default()
        }
    }

    /// Sets the STag that the peer is to invalidate.
    #[must_use]
    pub const fn invalidating(mut self, stag: u32) -> Self {
        self.invalidate_stag = stag;
        self
    }

    /// Returns the STag that the receiver of the message must invalidate; `None` if the opcode invalidates none.
    pub fn invalidates(&self) -> Option<u32> {
        let facts = self.opcode.facts()?;
        facts.invalidates.then_some(self.invalidate_stag)
    }

    /// Returns whether the message asks for a solicited event at its receiver. Returns `false` for an unknown opcode.
    pub fn solicits(&self) -> bool {
        self.opcode.facts().is_some_and(|facts| facts.solicits)
    }
}

/// The DDP header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum SegmentHeader {
    /// The payload goes to memory of the peer, which the header names by STag and tagged offset.
    Tagged(Tagged),
    /// The payload goes to one of the peer's queues.
    Untagged(Untagged),
}

impl SegmentHeader {
    /// Decodes the header at the beginning of a segment, and returns it with the bytes after it; `None` if the segment is
    /// too short.
    #[inline]
    pub fn split(octets: &[u8]) -> Option<(Self, &[u8])> {
        if octets.first()? & 0x80 != 0 {
            let (header, rest) = Tagged::split(octets)?;
            Some((Self::Tagged(header), rest))
        } else {
            let (header, rest) = Untagged::split(octets)?;
            Some((Self::Untagged(header), rest))
        }
    }

    /// The RDMAP opcode of the message to which the segment belongs.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Tagged(header) => header.opcode,
            Self::Untagged(header) => header.opcode,
        }
    }

    /// Length of the DDP header on the wire, in bytes.
    pub const fn encoded_len(&self) -> usize {
        match self {
            Self::Tagged(_) => Tagged::LEN,
            Self::Untagged(_) => Untagged::LEN,
        }
    }

    /// Writes the header to the beginning of `out`, and returns the part of `out` after it; `None` if `out` is too short.
    #[inline]
    pub fn put<'o>(&self, out: &'o mut [u8]) -> Option<&'o mut [u8]> {
        match self {
            Self::Tagged(header) => header.put(out),
            Self::Untagged(header) => header.put(out),
        }
    }
}

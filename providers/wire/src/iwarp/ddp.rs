//! DDP's segments (RFC 5041 section 4), with the octet of RDMAP's control that is in each (RFC 5040 section 4.1).
//!
//! ```text
//! T L res DV | RV res opcode | STag, 4 octets | tagged offset, 8                          tagged
//! T L res DV | RV res opcode | reserved for RDMAP, 4 | queue, 4 | MSN, 4 | offset, 4      untagged
//! ```

use super::rdmap::Opcode;
use crate::layout::{Header, Reserved, header};

/// The version of DDP.
pub const DDP_VERSION: u8 = 1;

/// The version of RDMAP.
pub const RDMAP_VERSION: u8 = 1;

/// Queue numbers (RFC 5040 section 4.2, RFC 7306 section 4.2).
pub mod queue {
    /// Sends and immediate data.
    pub const SEND: u32 = 0;
    /// Read and atomic requests.
    pub const REQUEST: u32 = 1;
    /// Terminates.
    pub const TERMINATE: u32 = 2;
    /// Atomic responses.
    pub const ATOMIC_RESPONSE: u32 = 3;
}

header! {
    /// The header of a segment that says where its octets go (RFC 5041 section 4.2).
    Tagged, TaggedView: 14 octets {
        tagged: bool = 1, "T: set.";
        last: bool = 1, "L: the last segment of its message.";
        reserved: Reserved = 4, "Zero.";
        ddp_version: u8 = 2, "Version of DDP.";
        rdmap_version: u8 = 2, "Version of RDMAP.";
        rdmap_reserved: Reserved = 2, "Zero.";
        opcode: Opcode = 4, "The message.";
        stag: u32 = 32, "The buffer.";
        to: u64 = 64, "Tagged offset of the first octet.";
    }
}

header! {
    /// The header of a segment for one of the peer's queues (RFC 5041 section 4.3).
    Untagged, UntaggedView: 18 octets {
        tagged: bool = 1, "T: not set.";
        last: bool = 1, "L: the last segment of its message.";
        reserved: Reserved = 4, "Zero.";
        ddp_version: u8 = 2, "Version of DDP.";
        rdmap_version: u8 = 2, "Version of RDMAP.";
        rdmap_reserved: Reserved = 2, "Zero.";
        opcode: Opcode = 4, "The message.";
        invalidate_stag: u32 = 32, "The key to invalidate, of messages that do; otherwise zero.";
        qn: u32 = 32, "Queue number: see [`queue`].";
        msn: u32 = 32, "Message sequence number: 1 for the first of each queue, modulo 2^32.";
        mo: u32 = 32, "Message offset of the first octet.";
    }
}

impl Tagged {
    /// Of these versions.
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
    /// Of these versions.
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

    /// With a key to invalidate.
    #[must_use]
    pub const fn invalidating(mut self, stag: u32) -> Self {
        self.invalidate_stag = stag;
        self
    }

    /// The key to invalidate, of messages that do.
    pub fn invalidates(&self) -> Option<u32> {
        let facts = self.opcode.facts()?;
        facts.invalidates.then_some(self.invalidate_stag)
    }

    /// Whether the message wants a solicited event.
    pub fn solicits(&self) -> bool {
        self.opcode.facts().is_some_and(|facts| facts.solicits)
    }
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum SegmentHeader {
    /// Tagged.
    Tagged(Tagged),
    /// Untagged.
    Untagged(Untagged),
}

impl SegmentHeader {
    /// Takes the header off the front of a segment; `None` where it is too short.
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

    /// The message.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Tagged(header) => header.opcode,
            Self::Untagged(header) => header.opcode,
        }
    }

    /// Octets on the wire.
    pub const fn encoded_len(&self) -> usize {
        match self {
            Self::Tagged(_) => Tagged::LEN,
            Self::Untagged(_) => Untagged::LEN,
        }
    }

    /// Puts the header at the front of `out` and answers the rest; `None` where there is no room.
    #[inline]
    pub fn put<'o>(&self, out: &'o mut [u8]) -> Option<&'o mut [u8]> {
        match self {
            Self::Tagged(header) => header.put(out),
            Self::Untagged(header) => header.put(out),
        }
    }
}

//! Terminate: the last message of a stream that failed (RFC 5040 section 4.8).
//!
//! ```text
//! layer 4 | etype 4 | code 8 | M D R | reserved 13
//! length of the DDP segment, 2 octets       where M
//! DDP header of the segment                 where D
//! RDMAP header of the segment               where R
//! ```
//!
//! Peers lay out the bits of a Terminate differently, and nothing follows it in the stream. So a part that the flags
//! announce but that is missing is left out, and the Terminate is not refused.

use super::ddp::{SegmentHeader, Tagged, Untagged};
use super::opcode::Opcode;
use super::rdmap::{AtomicRequest, ReadRequest};
use crate::layout::{Header, Reserved, header};

header! {
    /// The control field at the front of every Terminate.
    TerminateControl, TerminateControlView: 4 octets {
        layer: u8 = 4, "The layer that reports the error: 0 RDMAP, 1 DDP, 2 the layer below DDP.";
        etype: u8 = 4, "The type of the error, whose meaning depends on `layer`.";
        code: u8 = 8, "The error, whose meaning depends on `layer` and `etype`.";
        has_length: bool = 1, "M: the length of the DDP segment with the error follows.";
        has_ddp: bool = 1, "D: the DDP header of that segment follows.";
        has_rdmap: bool = 1, "R: the RDMAP header of that segment follows.";
        reserved: Reserved = 13, "Zero.";
    }
}

/// The error that a Terminate reports: three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TerminateCode {
    /// The layer that reports the error, 4 bits: 0 RDMAP, 1 DDP, 2 the layer below DDP.
    pub layer: u8,
    /// The type of the error, 4 bits. Its meaning depends on the layer.
    pub etype: u8,
    /// The error, 8 bits. Its meaning depends on the type.
    pub code: u8,
}

macro_rules! terminate_codes {
    ($($name:ident = $layer:literal $etype:literal $code:literal: $words:literal)*) => {
        /// The codes of RFC 5040 section 4.8, RFC 5041 section 7, RFC 5044 section 8 and RFC 6581 section 8.
        impl TerminateCode {
            /// Creates an error code from its layer, type and code.
            pub const fn new(layer: u8, etype: u8, code: u8) -> Self {
                Self { layer, etype, code }
            }

            $(
                #[doc = concat!($words, ".")]
                pub const $name: Self = Self::new($layer, $etype, $code);
            )*

            /// Returns the error in words; `None` if the numbers have no meaning.
            pub const fn name(self) -> Option<&'static str> {
                Some(match (self.layer, self.etype, self.code) {
                    $(($layer, $etype, $code) => $words,)*
                    // A local error has no code of its own: any code has the name of the layer's local error.
                    (layer @ (0 | 1), 0, _) => return Self::new(layer, 0, 0).name(),
                    _ => return None,
                })
            }
        }
    };
}

terminate_codes! {
    RDMAP_LOCAL_CATASTROPHIC = 0 0 0x00: "RDMAP: local catastrophic error"
    RDMAP_INVALID_STAG = 0 1 0x00: "RDMAP: invalid STag"
    RDMAP_BOUNDS = 0 1 0x01: "RDMAP: base or bounds violation"
    RDMAP_ACCESS = 0 1 0x02: "RDMAP: access rights violation"
    RDMAP_NOT_ASSOCIATED = 0 1 0x03: "RDMAP: STag not associated with the stream"
    RDMAP_WRAP = 0 1 0x04: "RDMAP: tagged offset wraps"
    RDMAP_PROTECTED_FROM_INVALIDATION = 0 1 0x09: "RDMAP: STag cannot be invalidated"
    RDMAP_PROTECTION = 0 1 0xff: "RDMAP: unspecified remote protection error"
    RDMAP_VERSION = 0 2 0x05: "RDMAP: invalid version"
    RDMAP_OPCODE = 0 2 0x06: "RDMAP: unexpected opcode"
    RDMAP_STREAM = 0 2 0x07: "RDMAP: catastrophic error of the stream"
    RDMAP_ALL_STREAMS = 0 2 0x08: "RDMAP: catastrophic error of all streams"
    RDMAP_CANNOT_INVALIDATE = 0 2 0x09: "RDMAP: STag cannot be invalidated"
    RDMAP_OPERATION = 0 2 0xff: "RDMAP: unspecified remote operation error"
    DDP_LOCAL_CATASTROPHIC = 1 0 0x00: "DDP: local catastrophic error"
    DDP_INVALID_STAG = 1 1 0x00: "DDP: invalid STag"
    DDP_BOUNDS = 1 1 0x01: "DDP: base or bounds violation"
    DDP_NOT_ASSOCIATED = 1 1 0x02: "DDP: STag not associated with the stream"
    DDP_WRAP = 1 1 0x03: "DDP: tagged offset wraps"
    DDP_TAGGED_VERSION = 1 1 0x04: "DDP: invalid version"
    DDP_QUEUE = 1 2 0x01: "DDP: invalid queue number"
    DDP_NO_BUFFER = 1 2 0x02: "DDP: no buffer"
    DDP_MSN = 1 2 0x03: "DDP: MSN out of range"
    DDP_OFFSET = 1 2 0x04: "DDP: invalid message offset"
    DDP_TOO_LONG = 1 2 0x05: "DDP: message too long"
    DDP_UNTAGGED_VERSION = 1 2 0x06: "DDP: invalid version"
    MPA_CONNECTION_LOST = 2 0 0x01: "MPA: TCP connection lost"
    MPA_CRC = 2 0 0x02: "MPA: wrong CRC"
    MPA_MARKER = 2 0 0x03: "MPA: marker and length disagree"
    MPA_START = 2 0 0x04: "MPA: invalid request or reply"
    MPA_LOCAL_CATASTROPHIC = 2 0 0x05: "MPA: local catastrophic error"
    MPA_INSUFFICIENT_IRD = 2 0 0x06: "MPA: insufficient IRD"
    MPA_NO_COMMON_RTR = 2 0 0x07: "MPA: no ready-to-receive indication in common"
}

/// A decoded Terminate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terminate {
    /// The control field.
    pub control: TerminateControl,
    /// The length in bytes of the DDP segment that caused the error; `None` if the Terminate does not have it.
    pub segment_len: Option<u16>,
    /// The DDP header of the segment that caused the error; `None` if the Terminate does not have it.
    pub ddp: Option<SegmentHeader>,
    /// The RDMAP header of the segment that caused the error; `None` if the Terminate does not have it.
    pub rdmap: Option<TerminatedRequest>,
}

/// The RDMAP header of a segment that caused an error. Only Read Requests and Atomic Requests have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum TerminatedRequest {
    /// The header of an RDMA Read Request.
    Read(ReadRequest),
    /// The header of an Atomic Request.
    Atomic(AtomicRequest),
}

/// Length of the longest Terminate, in bytes.
pub const MAX_LEN: usize = TerminateControl::LEN + 2 + Untagged::LEN + AtomicRequest::LEN;

const _: () = assert!(Tagged::LEN < Untagged::LEN && ReadRequest::LEN < AtomicRequest::LEN);

impl Terminate {
    /// Creates a Terminate that names no segment (RFC 5040 section 4.8).
    pub fn new(code: TerminateCode) -> Self {
        Self {
            control: TerminateControl {
                layer: code.layer,
                etype: code.etype,
                code: code.code,
                ..TerminateControl::default()
            },
            ..Self::default()
        }
    }

    /// Adds the segment that caused the error: its length in bytes, its DDP header, and its RDMAP header if it is a
    /// request.
    #[must_use]
    pub const fn about(
        mut self,
        segment_len: u16,
        ddp: SegmentHeader,
        rdmap: Option<TerminatedRequest>,
    ) -> Self {
        self.control.has_length = true;
        self.control.has_ddp = true;
        self.control.has_rdmap = rdmap.is_some();
        self.segment_len = Some(segment_len);
        self.ddp = Some(ddp);
        self.rdmap = rdmap;
        self
    }

    /// The error that the Terminate reports.
    pub const fn code(&self) -> TerminateCode {
        let control = &self.control;
        TerminateCode::new(control.layer, control.etype, control.code)
    }

    /// Encodes the parts that are present to the beginning of `out`, and returns them.
    pub fn encode<'o>(&self, out: &'o mut [u8; MAX_LEN]) -> &'o [u8] {
        let left = self.put(out).map_or(MAX_LEN, |rest| rest.len());
        &out[..MAX_LEN - left]
    }

    fn put<'o>(&self, out: &'o mut [u8]) -> Option<&'o mut [u8]> {
        let mut out = self.control.put(out)?;
        if let Some(segment_len) = self.segment_len {
            let (front, rest) = out.split_first_chunk_mut()?;
            *front = segment_len.to_be_bytes();
            out = rest;
        }
        if let Some(ddp) = &self.ddp {
            out = ddp.put(out)?;
        }
        match &self.rdmap {
            None => Some(out),
            Some(TerminatedRequest::Read(request)) => request.put(out),
            Some(TerminatedRequest::Atomic(request)) => request.put(out),
        }
    }
}

/// Decodes a Terminate, and returns it with the bytes after it, of which a well-formed message has none. Returns `None` if
/// the input is too short for the control field.
pub fn decode(octets: &[u8]) -> Option<(Terminate, &[u8])> {
    let (control, mut rest) = TerminateControl::split(octets)?;
    let mut terminate = Terminate {
        control,
        ..Terminate::default()
    };
    // Each part follows the one before it. Where one is missing, the position of the next is unknown.
    let _ = parts(&mut terminate, &mut rest);
    Some((terminate, rest))
}

fn parts(terminate: &mut Terminate, rest: &mut &[u8]) -> Option<()> {
    if terminate.control.has_length {
        let segment_len = rest.split_off(..2)?.try_into().ok()?;
        terminate.segment_len = Some(u16::from_be_bytes(segment_len));
    }
    if terminate.control.has_ddp {
        let (ddp, behind) = SegmentHeader::split(rest)?;
        (terminate.ddp, *rest) = (Some(ddp), behind);
    }
    if terminate.control.has_rdmap {
        let (rdmap, behind) = match terminate.ddp?.opcode() {
            Opcode::READ_REQUEST => {
                let (request, behind) = ReadRequest::split(rest)?;
                (TerminatedRequest::Read(request), behind)
            }
            Opcode::ATOMIC_REQUEST => {
                let (request, behind) = AtomicRequest::split(rest)?;
                (TerminatedRequest::Atomic(request), behind)
            }
            _ => return None,
        };
        (terminate.rdmap, *rest) = (Some(rdmap), behind);
    }
    Some(())
}

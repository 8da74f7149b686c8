//! The headers of RDMAP messages (RFC 5040 section 4, RFC 7306 section 5).

use super::Reject;
use super::ddp::{DDP_VERSION, RDMAP_VERSION, SegmentHeader, queue};
use super::opcode::{Facts, Opcode};
use super::terminate::TerminateControl;
use crate::layout::{Header, Reserved, header};

header! {
    /// The header of an RDMA Read Request (RFC 5040 section 4.4).
    ReadRequest, ReadRequestView: 28 octets {
        sink_stag: u32 = 32, "The STag of the requester's buffer that receives the response.";
        sink_to: u64 = 64, "The tagged offset in the requester's buffer of the first byte that is received.";
        length: u32 = 32, "The number of bytes to read.";
        source_stag: u32 = 32, "The STag of the responder's buffer that is read.";
        source_to: u64 = 64, "The tagged offset in the responder's buffer of the first byte that is read.";
    }
}

/// The operations of an [`AtomicRequest`] (RFC 7306 section 5.2).
pub mod atomic {
    /// Adds to the value in memory, and returns the previous one.
    pub const FETCH_ADD: u8 = 0;
    /// Replaces the value in memory if it equals the given one, and returns the previous one.
    pub const COMPARE_SWAP: u8 = 2;
}

header! {
    /// The header of an Atomic Request (RFC 7306 section 5.2).
    AtomicRequest, AtomicRequestView: 52 octets {
        reserved: Reserved = 28, "Zero.";
        operation: u8 = 4, "The operation: see [`atomic`].";
        request_id: u32 = 32, "A number that the requester chooses and the response repeats.";
        stag: u32 = 32, "The STag of the responder's buffer.";
        to: u64 = 64, "The tagged offset in that buffer of the eight bytes on which the operation works.";
        add_or_swap: u64 = 64, "The value that is added or swapped in.";
        add_or_swap_mask: u64 = 64, "Of a swap, the bits to replace; of an addition, the highest bit of each field.";
        compare: u64 = 64, "The value with which the memory is compared.";
        compare_mask: u64 = 64, "Which bits are compared.";
    }
}

header! {
    /// The header of an Atomic Response (RFC 7306 section 5.2). It has 12 bytes, as the figure there shows; the text says 32 by
    /// mistake.
    AtomicResponse, AtomicResponseView: 12 octets {
        request_id: u32 = 32, "The number of the request that this answers.";
        original: u64 = 64, "The value in memory before the operation.";
    }
}

header! {
    /// The header of all extensions without a standard encoding. It names the extension and one of the extension's
    /// operations; the extension defines the bytes after the header.
    ExtensionHeader, ExtensionHeaderView: 8 octets {
        extension: u32 = 32, "The number of the extension, which is computed from its name.";
        is_response: bool = 1, "Whether this answers a request; then it is sent to the queue of atomic responses.";
        reserved: Reserved = 15, "Zero.";
        operation: u16 = 16, "The operation: a number that the extension has assigned.";
    }
}

/// A DDP segment whose DDP and RDMAP headers are decoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment<'a> {
    /// The DDP header.
    pub header: SegmentHeader,
    /// The properties of the segment's opcode.
    pub facts: &'static Facts,
    /// The RDMAP header.
    pub body: Body,
    /// The bytes after both headers: payload of the program, content of an extension, or a [`Terminate`](super::Terminate).
    pub payload: &'a [u8],
}

/// The RDMAP header of a message, which follows the header of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The message has no RDMAP header: payload of the program follows.
    Data,
    /// The header of an Atomic Request.
    AtomicRequest(AtomicRequest),
    /// The header of an Atomic Response.
    AtomicResponse(AtomicResponse),
    /// The message has no RDMAP header: eight bytes of immediate data follow.
    Immediate,
    /// The header of an RDMA Read Request.
    ReadRequest(ReadRequest),
    /// The message has no RDMAP header: a [`Terminate`](super::Terminate) follows.
    Terminate,
    /// The header of an extension; the extension's content follows.
    Extension(ExtensionHeader),
}

impl Body {
    /// Returns the number of the queue to which an untagged message with this header goes (RFC 5040 section 4.3, RFC 7306
    /// section 4).
    pub const fn queue(&self) -> u32 {
        match self {
            Self::Data | Self::Immediate => queue::SEND,
            Self::ReadRequest(_) | Self::AtomicRequest(_) => queue::REQUEST,
            Self::Terminate => queue::TERMINATE,
            Self::AtomicResponse(_) => queue::ATOMIC_RESPONSE,
            Self::Extension(header) if header.is_response => queue::ATOMIC_RESPONSE,
            Self::Extension(_) => queue::REQUEST,
        }
    }

    /// Length of the RDMAP header on the wire, in bytes; 0 if the message has none.
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        match self {
            Self::Data | Self::Immediate | Self::Terminate => 0,
            Self::AtomicRequest(_) => AtomicRequest::LEN,
            Self::AtomicResponse(_) => AtomicResponse::LEN,
            Self::ReadRequest(_) => ReadRequest::LEN,
            Self::Extension(_) => ExtensionHeader::LEN,
        }
    }

    /// Writes the RDMAP header to the beginning of `out`, and returns the part of `out` after it; `None` if `out` is too
    /// short.
    #[inline]
    pub fn put<'o>(&self, out: &'o mut [u8]) -> Option<&'o mut [u8]> {
        match self {
            Self::Data | Self::Immediate | Self::Terminate => Some(out),
            Self::AtomicRequest(request) => request.put(out),
            Self::AtomicResponse(response) => response.put(out),
            Self::ReadRequest(request) => request.put(out),
            Self::Extension(header) => header.put(out),
        }
    }
}

/// Decodes the headers of a DDP segment, which is the ULPDU of a frame.
///
/// The checks come in this order: DDP's version (RFC 5041 section 7), whether the queue exists, RDMAP's version, whether
/// the opcode exists and belongs on the queue (RFC 5040 section 7.2), and the length of a message whose opcode prescribes
/// one. Such a message must be a single segment, which the caller checks: its offset is 0 and it is the last segment.
///
/// # Errors
/// The reason to end the stream.
#[inline]
pub fn decode(ulpdu: &[u8]) -> Result<Segment<'_>, Reject> {
    decode_front(ulpdu, 0)
}

/// Decodes the beginning of a DDP segment as [`decode`] does. The last `behind` bytes of the segment's payload are stored
/// elsewhere, and only count for its length.
///
/// # Errors
/// The reason to end the stream.
#[inline]
pub fn decode_front(ulpdu: &[u8], behind: usize) -> Result<Segment<'_>, Reject> {
    let (header, content) = SegmentHeader::split(ulpdu).ok_or(Reject::Short)?;
    let (ddp_version, rdmap_version, queue) = match header {
        SegmentHeader::Tagged(header) => (header.ddp_version, header.rdmap_version, None),
        SegmentHeader::Untagged(header) => {
            (header.ddp_version, header.rdmap_version, Some(header.qn))
        }
    };
    if ddp_version != DDP_VERSION {
        return Err(match queue {
            None => Reject::TaggedVersion,
            Some(_) => Reject::UntaggedVersion,
        });
    }
    if queue.is_some_and(|queue| queue > queue::ATOMIC_RESPONSE) {
        return Err(Reject::QueueNumber);
    }
    if rdmap_version != RDMAP_VERSION {
        return Err(Reject::RdmapVersion);
    }
    let opcode = header.opcode();
    let facts = opcode.facts().ok_or(Reject::Opcode)?;
    let belongs = match queue {
        None => facts.queues.is_empty(),
        Some(queue) => facts.queues.contains(&queue),
    };
    if !belongs {
        return Err(Reject::Opcode);
    }
    let (body, payload) = body(opcode, content, behind).ok_or(Reject::Length)?;
    Ok(Segment {
        header,
        facts,
        body,
        payload,
    })
}

// Returns the RDMAP header and the bytes after it; `None` if the length is not the one that the opcode prescribes.
#[inline]
fn body(opcode: Opcode, content: &[u8], behind: usize) -> Option<(Body, &[u8])> {
    let length = content.len() + behind;
    let body = match opcode {
        Opcode::ATOMIC_REQUEST => Body::AtomicRequest(exactly(content)?),
        Opcode::ATOMIC_RESPONSE => Body::AtomicResponse(exactly(content)?),
        Opcode::READ_REQUEST => Body::ReadRequest(exactly(content)?),
        Opcode::EXTENSION => Body::Extension(ExtensionHeader::split(content)?.0),
        Opcode::TERMINATE if length < TerminateControl::LEN => return None,
        Opcode::TERMINATE => Body::Terminate,
        Opcode::IMMEDIATE | Opcode::IMMEDIATE_SE if length != 8 => return None,
        Opcode::IMMEDIATE | Opcode::IMMEDIATE_SE => Body::Immediate,
        _ => Body::Data,
    };
    Some((body, &content[body.encoded_len()..]))
}

fn exactly<H: Header>(content: &[u8]) -> Option<H> {
    let (header, rest) = H::split(content)?;
    rest.is_empty().then_some(header)
}

#[cfg(test)]
mod tests;

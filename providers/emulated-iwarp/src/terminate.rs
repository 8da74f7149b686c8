//! The mapping of faults to codes of Terminates, and of codes to statuses.
//!
//! An inbound fault is a [`Breach`]. One function each maps it to the code on the wire ([`Breach::code`]), to the status of
//! the receive that was being filled ([`Breach::receive_status`]) and to the event ([`Breach::event`]). Another one maps a
//! code from the peer to the status of the request that it is about ([`request_status`]).

use polyverbs_engine::fault::Fault;
use polyverbs_wire::iwarp::{SegmentHeader, terminate::TerminatedRequest};
pub use polyverbs_wire::iwarp::{Terminate, TerminateCode};
use verbs_api::{WcStatus, event::EventType};

use crate::header::{Body, Message};

/// Why a message of the peer was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// An atomic operation was refused with this fault.
    Atomic(Fault),
    /// The key in a send-with-invalidate cannot be invalidated.
    Invalidate(Fault),
    /// The message breaks a rule of its protocol, which reports that by this code.
    Protocol(TerminateCode),
    /// A read was refused with this fault.
    Read(Fault),
    /// An entry of the receive failed its check: this side is at fault, not the peer.
    Receive(Fault),
    /// The payload of a tagged segment cannot be placed.
    Tagged(Fault),
}

/// Returns the status of the read or atomic about which a Terminate with this code is; `None` if the code is not about one.
///
/// The statuses are those that an InfiniBand responder's answer to the same fault would give.
pub const fn request_status(code: TerminateCode) -> Option<WcStatus> {
    match code {
        // These codes are about an invalidation, which came with a send.
        TerminateCode::RDMAP_PROTECTED_FROM_INVALIDATION
        | TerminateCode::RDMAP_CANNOT_INVALIDATE => None,
        TerminateCode::RDMAP_VERSION
        | TerminateCode::RDMAP_OPCODE
        | TerminateCode::RDMAP_STREAM => Some(WcStatus::RemInvReqErr),
        TerminateCode {
            layer: 0, etype: 1, ..
        } => Some(WcStatus::RemAccessErr),
        TerminateCode {
            layer: 0, etype: 2, ..
        } => Some(WcStatus::RemOpErr),
        _ => None,
    }
}

/// Returns the Terminate about a segment. `about` is the segment and the number of bytes after its headers: the Terminate
/// has the length of the segment, the DDP header, and the RDMAP header if the segment is a request (RFC 5040 section 4.8).
/// Without `about` it has none of these.
pub(crate) fn terminate_about(code: TerminateCode, about: Option<(&Message, usize)>) -> Terminate {
    let said = Terminate::new(code);
    let (ddp, request, length) = match about {
        Some((Message::Tagged(segment), length)) => (SegmentHeader::Tagged(*segment), None, length),
        Some((Message::Untagged(segment, body), length)) => {
            let request = match *body {
                Body::ReadRequest(read) => Some(TerminatedRequest::Read(read)),
                Body::AtomicRequest(atomic) => Some(TerminatedRequest::Atomic(atomic)),
                _ => None,
            };
            let ddp = SegmentHeader::Untagged(*segment);
            (ddp, request, body.encoded_len() + length)
        }
        _ => return said,
    };
    said.about((ddp.encoded_len() + length) as u16, ddp, request)
}

impl Breach {
    /// The message is unknown, on the wrong queue, not permitted, or answers no request.
    pub const OPCODE: Self = Self::Protocol(TerminateCode::RDMAP_OPCODE);

    /// Returns the code that reports the fault to the peer (RFC 5040 section 4.8, RFC 5041 section 8, RFC 7306 section 8).
    pub const fn code(self) -> TerminateCode {
        match self {
            // RFC 7306 section 8 makes this a catastrophic error of the stream.
            Self::Atomic(Fault::Misaligned) => TerminateCode::RDMAP_STREAM,
            Self::Atomic(fault) | Self::Read(fault) => protection(fault),
            Self::Invalidate(Fault::Access | Fault::NotAssociated | Fault::Pd) => {
                TerminateCode::RDMAP_PROTECTED_FROM_INVALIDATION
            }
            Self::Invalidate(_) => TerminateCode::RDMAP_CANNOT_INVALIDATE,
            Self::Protocol(code) => code,
            Self::Receive(_) => TerminateCode::DDP_LOCAL_CATASTROPHIC,
            Self::Tagged(fault) => placement(fault),
        }
    }

    /// Returns whether this side is at fault: then its Terminate has no header of the peer's message (RFC 5040 section
    /// 4.8).
    pub const fn is_own(self) -> bool {
        matches!(self, Self::Receive(_))
    }

    /// Returns the status of the receive that the message was filling. Faults that are not about the receive flush it.
    pub const fn receive_status(self) -> WcStatus {
        match self {
            Self::Invalidate(_) => WcStatus::RemInvReqErr,
            Self::Receive(fault) => fault.local_status(),
            Self::Protocol(TerminateCode::DDP_TOO_LONG) => WcStatus::LocLenErr,
            _ => WcStatus::WrFlushErr,
        }
    }

    /// Returns the event that reports the fault to the program if no receive does.
    pub const fn event(self) -> EventType {
        match self {
            Self::Atomic(Fault::Misaligned) => EventType::QpReqErr,
            Self::Atomic(_) | Self::Invalidate(_) | Self::Read(_) | Self::Tagged(_) => {
                EventType::QpAccessErr
            }
            Self::Protocol(TerminateCode { layer: 2, .. }) | Self::Receive(_) => EventType::QpFatal,
            Self::Protocol(_) => EventType::QpReqErr,
        }
    }
}

// Returns the remote protection error of RDMAP for a refused read, atomic or invalidation.
const fn protection(fault: Fault) -> TerminateCode {
    match fault {
        Fault::Key => TerminateCode::RDMAP_INVALID_STAG,
        Fault::Bounds => TerminateCode::RDMAP_BOUNDS,
        Fault::Access => TerminateCode::RDMAP_ACCESS,
        Fault::NotAssociated | Fault::Pd => TerminateCode::RDMAP_NOT_ASSOCIATED,
        Fault::Wrap => TerminateCode::RDMAP_WRAP,
        _ => TerminateCode::RDMAP_PROTECTION,
    }
}

// Returns the tagged buffer error of DDP for a fault. There is none for a missing right: invalid STag is the nearest, which
// siw chose too.
const fn placement(fault: Fault) -> TerminateCode {
    match fault {
        Fault::Bounds => TerminateCode::DDP_BOUNDS,
        Fault::NotAssociated | Fault::Pd => TerminateCode::DDP_NOT_ASSOCIATED,
        Fault::Wrap => TerminateCode::DDP_WRAP,
        _ => TerminateCode::DDP_INVALID_STAG,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers 2.65
    #[test]
    fn each_breach_maps_to_its_code() {
        let table = [
            (Breach::Tagged(Fault::Key), (1, 1, 0x00)),
            (Breach::Tagged(Fault::Access), (1, 1, 0x00)),
            (Breach::Tagged(Fault::Bounds), (1, 1, 0x01)),
            (Breach::Tagged(Fault::Pd), (1, 1, 0x02)),
            (Breach::Tagged(Fault::NotAssociated), (1, 1, 0x02)),
            (Breach::Tagged(Fault::Wrap), (1, 1, 0x03)),
            (Breach::Read(Fault::Key), (0, 1, 0x00)),
            (Breach::Read(Fault::Bounds), (0, 1, 0x01)),
            (Breach::Read(Fault::Access), (0, 1, 0x02)),
            (Breach::Read(Fault::Pd), (0, 1, 0x03)),
            (Breach::Atomic(Fault::NotAssociated), (0, 1, 0x03)),
            (Breach::Atomic(Fault::Wrap), (0, 1, 0x04)),
            (Breach::Atomic(Fault::Misaligned), (0, 2, 0x07)),
            (Breach::OPCODE, (0, 2, 0x06)),
            (Breach::Invalidate(Fault::Pd), (0, 1, 0x09)),
            (Breach::Invalidate(Fault::Access), (0, 1, 0x09)),
            (Breach::Invalidate(Fault::NotAssociated), (0, 1, 0x09)),
            (Breach::Invalidate(Fault::Key), (0, 2, 0x09)),
            (Breach::Invalidate(Fault::CannotInvalidate), (0, 2, 0x09)),
            (Breach::Receive(Fault::Key), (1, 0, 0x00)),
        ];
        for (breach, (layer, etype, code)) in table {
            assert_eq!(
                breach.code(),
                TerminateCode::new(layer, etype, code),
                "{breach:?}"
            );
        }
    }

    #[test]
    fn only_codes_about_reads_and_atomics_have_a_status() {
        type Code = TerminateCode;
        let table = [
            (Code::RDMAP_INVALID_STAG, Some(WcStatus::RemAccessErr)),
            (Code::RDMAP_ACCESS, Some(WcStatus::RemAccessErr)),
            (Code::RDMAP_STREAM, Some(WcStatus::RemInvReqErr)),
            (Code::RDMAP_OPCODE, Some(WcStatus::RemInvReqErr)),
            (Code::RDMAP_OPERATION, Some(WcStatus::RemOpErr)),
            (Code::RDMAP_CANNOT_INVALIDATE, None),
            (Code::RDMAP_PROTECTED_FROM_INVALIDATION, None),
            (Code::RDMAP_LOCAL_CATASTROPHIC, None),
            (Code::DDP_INVALID_STAG, None),
            (Code::DDP_NO_BUFFER, None),
            (Code::MPA_CRC, None),
        ];
        for (code, status) in table {
            assert_eq!(request_status(code), status, "{code:?}");
        }
    }
}

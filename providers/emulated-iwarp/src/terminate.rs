//! Terminate: what is said to a peer that broke a rule, and what its being said means here.
//!
//! An inbound fault is a [`Breach`]. One function each makes of it the code on the wire ([`Breach::code`]), the status of
//! the receive that was being filled ([`Breach::receive_status`]) and the event ([`Breach::event`]); one makes of a code
//! that came from the peer the status of the request that it was about ([`TerminateCode::request_status`]).

use polyverbs_engine::fault::Fault;
use verbs_api::{WcStatus, event::EventType};

use crate::header::Message;

/// Layer, error type and error code of a Terminate (RFC 5040 section 4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TerminateCode {
    /// 0 RDMAP, 1 DDP, 2 what is below. 4 bits.
    pub layer: u8,
    /// Type of the error, by layer. 4 bits.
    pub etype: u8,
    /// The error, by type. 8 bits.
    pub code: u8,
}

/// A Terminate message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// What went wrong.
    pub error: TerminateCode,
    /// The header of the segment that was at fault; none where no segment was (RFC 5040 section 4.8).
    pub about: Option<Box<Message>>,
    /// Octets that the segment had behind its header, where that is not its opcode's.
    pub payload: usize,
}

/// The Terminates of a queue pair's present or last connection.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Terminates {
    /// What was said to the peer.
    pub sent: Option<Terminate>,
    /// What the peer said.
    pub received: Option<Terminate>,
}

/// What a peer's message did wrong, or what kept it from being carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// An atomic operation was refused.
    Atomic(Fault),
    /// More reads and atomics than this side serves at one time.
    Budget,
    /// The checksum is wrong.
    Crc,
    /// What came is no frame, or no message.
    Format(TerminateCode),
    /// A key cannot be invalidated.
    Invalidate(Fault),
    /// Immediate data is not of eight octets.
    ImmediateLength,
    /// The message offset is not where the last segment ended.
    MessageOffset,
    /// The message sequence number is not the next.
    MessageSequence,
    /// There is no receive.
    NoReceive,
    /// The message does not belong here: unknown, for another queue, not enabled, or not asked for.
    Opcode,
    /// There is no queue of this number.
    QueueNumber,
    /// A read was refused.
    Read(Fault),
    /// The entries of the receive were refused: this side's own fault.
    Receive(Fault),
    /// A response lies outside of what was asked for.
    ResponseBounds,
    /// A response names another buffer than the request did.
    ResponseStag,
    /// A tagged segment cannot be placed.
    Tagged(Fault),
    /// The message is longer than the receive.
    TooLong,
}

impl TerminateCode {
    /// Something went wrong here that concerns no segment of the peer's.
    pub const LOCAL_CATASTROPHIC: Self = Self::new(RDMAP, 0, 0x00);

    /// A code.
    pub const fn new(layer: u8, etype: u8, code: u8) -> Self {
        Self { layer, etype, code }
    }

    /// The status of the read or atomic that was answered by this code; `None` where the code is not about one.
    ///
    /// The statuses are those that an InfiniBand responder's answer to the same fault would give.
    pub const fn request_status(self) -> Option<WcStatus> {
        match (self.layer, self.etype, self.code) {
            // About an invalidation, which came with a send.
            (RDMAP, _, CANNOT_INVALIDATE) => None,
            (RDMAP, REMOTE_PROTECTION, _) => Some(WcStatus::RemAccessErr),
            (RDMAP, REMOTE_OPERATION, 0x05..=0x07) => Some(WcStatus::RemInvReqErr),
            (RDMAP, REMOTE_OPERATION, _) => Some(WcStatus::RemOpErr),
            _ => None,
        }
    }
}

impl Terminate {
    /// Something went wrong here: no header comes along.
    pub const fn local_catastrophic() -> Self {
        Self {
            error: TerminateCode::LOCAL_CATASTROPHIC,
            about: None,
            payload: 0,
        }
    }
}

impl Breach {
    /// The code that tells the peer (RFC 5040 section 4.8, RFC 5041 section 8, RFC 7306 section 8).
    pub const fn code(self) -> TerminateCode {
        match self {
            // RFC 7306 section 8: misaligned, and too many outstanding, are a catastrophic error of the stream.
            Self::Atomic(Fault::Misaligned) | Self::Budget => {
                TerminateCode::new(RDMAP, REMOTE_OPERATION, 0x07)
            }
            Self::Atomic(fault) | Self::Read(fault) => {
                TerminateCode::new(RDMAP, REMOTE_PROTECTION, protection(fault))
            }
            Self::Crc => TerminateCode::new(LLP, 0, 0x02),
            Self::Format(code) => code,
            Self::Invalidate(Fault::Access | Fault::NotAssociated | Fault::Pd) => {
                TerminateCode::new(RDMAP, REMOTE_PROTECTION, CANNOT_INVALIDATE)
            }
            Self::Invalidate(_) => TerminateCode::new(RDMAP, REMOTE_OPERATION, CANNOT_INVALIDATE),
            // RFC 7306 names no code for it: the nearest that blames the stream.
            Self::ImmediateLength => TerminateCode::new(RDMAP, REMOTE_OPERATION, 0x07),
            Self::MessageOffset => TerminateCode::new(DDP, UNTAGGED, 0x04),
            Self::MessageSequence => TerminateCode::new(DDP, UNTAGGED, 0x03),
            Self::NoReceive => TerminateCode::new(DDP, UNTAGGED, 0x02),
            Self::Opcode => TerminateCode::new(RDMAP, REMOTE_OPERATION, 0x06),
            Self::QueueNumber => TerminateCode::new(DDP, UNTAGGED, 0x01),
            Self::Receive(_) => TerminateCode::new(DDP, 0, 0x00),
            Self::ResponseBounds => TerminateCode::new(DDP, TAGGED, 0x01),
            Self::ResponseStag => TerminateCode::new(DDP, TAGGED, 0x00),
            Self::Tagged(fault) => TerminateCode::new(DDP, TAGGED, placement(fault)),
            Self::TooLong => TerminateCode::new(DDP, UNTAGGED, 0x05),
        }
    }

    /// Whether the fault is this side's own: then its Terminate shows no header of the peer's (RFC 5040 section 4.8).
    pub const fn is_own(self) -> bool {
        matches!(self, Self::Receive(_))
    }

    /// The status of the receive that is being filled. What is not about it flushes it.
    pub const fn receive_status(self) -> WcStatus {
        match self {
            Self::Invalidate(_) => WcStatus::RemInvReqErr,
            Self::Receive(fault) => fault.local_status(),
            Self::TooLong => WcStatus::LocLenErr,
            _ => WcStatus::WrFlushErr,
        }
    }

    /// The event that tells the program where no receive does.
    pub const fn event(self) -> EventType {
        match self {
            Self::Atomic(Fault::Misaligned) => EventType::QpReqErr,
            Self::Atomic(_) | Self::Invalidate(_) | Self::Read(_) | Self::Tagged(_) => {
                EventType::QpAccessErr
            }
            Self::Crc | Self::Format(TerminateCode { layer: LLP, .. }) | Self::Receive(_) => {
                EventType::QpFatal
            }
            _ => EventType::QpReqErr,
        }
    }
}

// Remote protection errors of RDMAP: of reads, atomics and invalidations.
const fn protection(fault: Fault) -> u8 {
    match fault {
        Fault::Key => 0x00,
        Fault::Bounds => 0x01,
        Fault::Access => 0x02,
        Fault::NotAssociated | Fault::Pd => 0x03,
        Fault::Wrap => 0x04,
        _ => 0xff,
    }
}

// Tagged buffer errors of DDP. It has none for a missing right: an invalid STag is the nearest, as siw chose too.
const fn placement(fault: Fault) -> u8 {
    match fault {
        Fault::Bounds => 0x01,
        Fault::NotAssociated | Fault::Pd => 0x02,
        Fault::Wrap => 0x03,
        _ => 0x00,
    }
}

const RDMAP: u8 = 0;
const DDP: u8 = 1;
const LLP: u8 = 2;
const REMOTE_PROTECTION: u8 = 1;
const REMOTE_OPERATION: u8 = 2;
const TAGGED: u8 = 1;
const UNTAGGED: u8 = 2;
const CANNOT_INVALIDATE: u8 = 0x09;

#[cfg(test)]
mod tests {
    use super::*;

    // covers 2.65
    #[test]
    fn every_breach_has_its_code() {
        let table = [
            (Breach::Tagged(Fault::Key), (1, 1, 0x00)),
            (Breach::Tagged(Fault::Access), (1, 1, 0x00)),
            (Breach::Tagged(Fault::Bounds), (1, 1, 0x01)),
            (Breach::Tagged(Fault::Pd), (1, 1, 0x02)),
            (Breach::Tagged(Fault::NotAssociated), (1, 1, 0x02)),
            (Breach::Tagged(Fault::Wrap), (1, 1, 0x03)),
            (Breach::ResponseStag, (1, 1, 0x00)),
            (Breach::ResponseBounds, (1, 1, 0x01)),
            (Breach::Read(Fault::Key), (0, 1, 0x00)),
            (Breach::Read(Fault::Bounds), (0, 1, 0x01)),
            (Breach::Read(Fault::Access), (0, 1, 0x02)),
            (Breach::Read(Fault::Pd), (0, 1, 0x03)),
            (Breach::Atomic(Fault::NotAssociated), (0, 1, 0x03)),
            (Breach::Atomic(Fault::Wrap), (0, 1, 0x04)),
            (Breach::Atomic(Fault::Misaligned), (0, 2, 0x07)),
            (Breach::Budget, (0, 2, 0x07)),
            (Breach::Opcode, (0, 2, 0x06)),
            (Breach::Invalidate(Fault::Pd), (0, 1, 0x09)),
            (Breach::Invalidate(Fault::Access), (0, 1, 0x09)),
            (Breach::Invalidate(Fault::NotAssociated), (0, 1, 0x09)),
            (Breach::Invalidate(Fault::Key), (0, 2, 0x09)),
            (Breach::Invalidate(Fault::CannotInvalidate), (0, 2, 0x09)),
            (Breach::QueueNumber, (1, 2, 0x01)),
            (Breach::NoReceive, (1, 2, 0x02)),
            (Breach::MessageSequence, (1, 2, 0x03)),
            (Breach::MessageOffset, (1, 2, 0x04)),
            (Breach::TooLong, (1, 2, 0x05)),
            (Breach::Receive(Fault::Key), (1, 0, 0x00)),
            (Breach::Crc, (2, 0, 0x02)),
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
    fn a_code_is_about_a_read_or_atomic_or_it_is_not() {
        let table = [
            (Breach::Read(Fault::Key), Some(WcStatus::RemAccessErr)),
            (Breach::Atomic(Fault::Access), Some(WcStatus::RemAccessErr)),
            (
                Breach::Atomic(Fault::Misaligned),
                Some(WcStatus::RemInvReqErr),
            ),
            (Breach::Opcode, Some(WcStatus::RemInvReqErr)),
            (Breach::Budget, Some(WcStatus::RemInvReqErr)),
            (Breach::Invalidate(Fault::Key), None),
            (Breach::Invalidate(Fault::Pd), None),
            (Breach::Tagged(Fault::Key), None),
            (Breach::NoReceive, None),
            (Breach::Crc, None),
        ];
        for (breach, status) in table {
            assert_eq!(breach.code().request_status(), status, "{breach:?}");
        }
        assert_eq!(
            TerminateCode::new(0, 2, 0xff).request_status(),
            Some(WcStatus::RemOpErr)
        );
        assert_eq!(TerminateCode::LOCAL_CATASTROPHIC.request_status(), None);
    }
}

//! Headers of InfiniBand's transport, as values.

use verbs_api::qp::QpType;
use verbs_api::{Access, RemoteAddress, ids::Gid};

pub use polyverbs_engine::request::Beside;

/// Where a frame stands in its message (IBTA 9.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Where the frame stands that carries `length` of `total` octets from `offset` on.
    pub const fn of(offset: u64, length: u64, total: u64) -> Self {
        match (offset == 0, offset + length >= total) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, false) => Self::Middle,
            (false, true) => Self::Last,
        }
    }

    /// Whether a message begins here.
    pub const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends here.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Why a responder refuses (IBTA 9.7.5.2.8, NAK codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// 0x60: the packet is ahead of the expected one.
    SequenceError,
    /// 0x61.
    InvalidRequest,
    /// 0x62.
    RemoteAccess,
    /// 0x63.
    RemoteOperation,
    /// 0x64: of reliable datagrams, which no device here has.
    InvalidRdRequest,
    /// A code without a meaning.
    Reserved(u8),
}

/// What an acknowledge says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Everything up to the sequence number has arrived.
    Ack,
    /// No receive was posted: wait as long as the timer code says.
    Rnr(u8),
    /// Refused.
    Nak(Nak),
}

/// Receives that a credit code stands for (IBTA 9.7.7.2); [`Aeth::NO_LIMIT`] stands for any number.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// What every answer carries: how many messages the responder has completed, and how many more it has receives for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Messages completed, modulo 2^24; a read counts when it has been accepted.
    pub msn: u32,
    /// Credit code.
    pub credit: u8,
}

impl Aeth {
    /// The responder sets no limit: its receives come from a shared queue, or it does not count.
    pub const NO_LIMIT: u8 = 31;

    /// So many messages completed, and so many receives posted: the largest code that promises no more.
    pub fn new(msn: u32, receives: usize) -> Self {
        let credit = CREDITS.partition_point(|&credits| credits as usize <= receives) - 1;
        Self {
            msn,
            credit: credit as u8,
        }
    }

    /// The last message that may be sent, by number; `None` where there is no limit.
    pub fn limit(self) -> Option<u32> {
        CREDITS
            .get(usize::from(self.credit))
            .map(|&credits| advance(self.msn, credits))
    }
}

impl Default for Aeth {
    fn default() -> Self {
        Self {
            msn: 0,
            credit: Self::NO_LIMIT,
        }
    }
}

/// What is specific to an opcode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Body {
    /// SEND; what travels beside it is in the last frame.
    Send(Position, Beside),
    /// RDMA WRITE: address and total length in the first frame, immediate data in the last.
    Write(Position, RemoteAddress, u32, Option<[u8; 4]>),
    /// RDMA READ request: address and length.
    ReadRequest(RemoteAddress, u32),
    /// Compare, swap.
    CompareSwap(RemoteAddress, u64, u64),
    /// Add.
    FetchAdd(RemoteAddress, u64),
    /// ATOMIC WRITE.
    AtomicWrite(RemoteAddress),
    /// FLUSH: address, length, placement, whole region.
    Flush(RemoteAddress, u32, Access, bool),
    /// ACK, NAK, RNR NAK.
    Acknowledge(Syndrome),
    /// RDMA READ response.
    ReadResponse(Position),
    /// The original value.
    AtomicAcknowledge(u64),
    /// A request of an extension: its number and the operation's. Its octets are the payload.
    ExtensionRequest(u32, u16),
    /// The answer to one.
    ExtensionResponse(u32, u16),
    /// UD SEND: the sender's Q_Key, what is beside, and the group where it goes to one.
    Datagram(u32, Beside, Option<Gid>),
    /// Congestion notification: what the receiver of this sends has met congestion on its way.
    Congestion,
}

impl Body {
    /// Whether it reads memory or changes it atomically: served after what arrived with it has been looked at.
    pub const fn is_read_or_atomic(&self) -> bool {
        matches!(
            self,
            Self::ReadRequest(..) | Self::CompareSwap(..) | Self::FetchAdd(..) | Self::Flush(..)
        )
    }

    /// Whether it tells what the responder has received: every answer but those in the middle of a read's.
    pub const fn has_aeth(&self) -> bool {
        !self.is_request()
            && !matches!(
                self,
                Self::ReadResponse(Position::Middle) | Self::Congestion
            )
    }

    /// Whether a requester sends it to a responder.
    pub const fn is_request(&self) -> bool {
        !matches!(
            self,
            Self::Acknowledge(_)
                | Self::ReadResponse(_)
                | Self::AtomicAcknowledge(_)
                | Self::ExtensionResponse(..)
                | Self::Congestion
        )
    }
}

/// How a frame is carried, where the network has such things: traffic class and hop limit of the path.
///
/// Of a frame that arrived the traffic class is as the network left it: its lower two bits are those of explicit
/// congestion notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carriage {
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// Time to live or hop limit; 0 for what the system sets.
    pub hop_limit: u8,
}

impl Carriage {
    /// The bits of explicit congestion notification in a traffic class.
    pub const ECN: u8 = 0b11;

    /// A traffic class that lets routers mark what meets congestion, unless it says something of that itself (RFC 3168).
    pub const fn capable(traffic_class: u8) -> u8 {
        if traffic_class & Self::ECN == 0 {
            traffic_class | 0b10
        } else {
            traffic_class
        }
    }

    /// Whether a frame has met congestion on its way (RFC 3168).
    pub const fn met_congestion(self) -> bool {
        self.traffic_class & Self::ECN == Self::ECN
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Header {
    /// The service that it belongs to: that of the queue pair.
    pub service: QpType,
    /// The queue pair that it goes to.
    pub dest_qp: u32,
    /// The queue pair that it comes from; [`UNTOLD`](Self::UNTOLD) where the frame does not tell, because its receiver
    /// knows that from the connection.
    pub src_qp: u32,
    /// Packet sequence number.
    pub psn: u32,
    /// An acknowledge is wanted.
    pub ack_req: bool,
    /// A solicited event is wanted.
    pub solicited: bool,
    /// Of a frame of XRC: the shared receive queue that a request is for, and 0 in an answer.
    pub xrc: Option<u32>,
    /// Of an answer: count and credits.
    pub aeth: Aeth,
    /// How it is carried.
    pub carriage: Carriage,
    /// Its checksum is right under an assumption about the IP header: a receiver wants it to fit what it expects.
    pub doubtful: bool,
    /// What is specific to the opcode.
    pub body: Body,
}

impl Header {
    /// The queue pair of a frame that does not tell where it comes from: on the wire only datagrams do.
    pub const UNTOLD: u32 = u32::MAX;

    /// Whether it may come from this queue pair.
    #[inline]
    pub const fn may_come_from(&self, qpn: u32) -> bool {
        self.src_qp == qpn || self.src_qp == Self::UNTOLD
    }
}

/// How far `psn` lies ahead of `other`, modulo 2^24: negative when it lies behind.
#[inline]
pub const fn ahead(psn: u32, other: u32) -> i32 {
    ((psn.wrapping_sub(other) << 8) as i32) >> 8
}

/// `psn` advanced by `packets`, modulo 2^24.
#[inline]
pub const fn advance(psn: u32, packets: u32) -> u32 {
    psn.wrapping_add(packets) & 0xff_ffff
}

/// Sequence numbers that a message of `length` octets takes: at least one.
#[inline]
pub const fn packets(length: u64, mtu_shift: u8) -> u32 {
    let packets = (length + (1 << mtu_shift) - 1) >> mtu_shift;
    if packets == 0 { 1 } else { packets as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers 3.68
    #[test]
    fn a_credit_code_promises_no_more_than_is_posted() {
        let of = |receives| Aeth::new(7, receives).credit;
        assert_eq!(
            [0, 1, 4, 5, 6, 7, 24_575, 32_768, 1 << 20].map(of),
            [0, 1, 4, 4, 5, 5, 28, 30, 30]
        );
        assert_eq!(Aeth::new(0xff_fffe, 5).limit(), Some(2));
        assert_eq!(Aeth::default().limit(), None);
    }
}

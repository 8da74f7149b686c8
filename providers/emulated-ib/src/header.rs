//! Headers of InfiniBand's transport, as values.

use verbs_api::qp::QpType;
use verbs_api::{
    Access, RemoteAddress,
    ids::{Gid, Psn},
};

pub use polyverbs_engine::request::SendExtra;
pub use polyverbs_wire::roce::{Aeth, Nak, Position, Syndrome, SyndromeKind};

/// What is specific to an opcode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Body {
    /// SEND; its extra is in the last frame.
    Send(Position, SendExtra),
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
    /// ACK, NAK or RNR NAK: the AETH says which.
    Acknowledge,
    /// RDMA READ response.
    ReadResponse(Position),
    /// The original value.
    AtomicAcknowledge(u64),
    /// A request of an extension: its number and the operation's. Its bytes are the payload.
    ExtensionRequest(u32, u16),
    /// The answer to one.
    ExtensionResponse(u32, u16),
    /// UD SEND: the sender's Q_Key, its extra, and the group where it goes to one.
    Datagram(u32, SendExtra, Option<Gid>),
    /// Congestion notification (CNP): packets from its receiver met congestion on their way.
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
            Self::Acknowledge
                | Self::ReadResponse(_)
                | Self::AtomicAcknowledge(_)
                | Self::ExtensionResponse(..)
                | Self::Congestion
        )
    }
}

/// Fields of the IP header, where the network has one: traffic class and hop limit of the path.
///
/// Of a frame that arrived the traffic class is as the network left it: its lower two bits are those of explicit
/// congestion notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpFields {
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// Time to live or hop limit; 0 for what the system sets.
    pub hop_limit: u8,
}

impl IpFields {
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
    /// The queue pair that it comes from; [`UNKNOWN_QP`](Self::UNKNOWN_QP) where the frame does not tell, because its receiver
    /// knows that from the connection.
    pub src_qp: u32,
    /// Packet sequence number.
    pub psn: Psn,
    /// An acknowledge is wanted.
    pub ack_req: bool,
    /// A solicited event is wanted.
    pub solicited: bool,
    /// Of a frame of XRC: the shared receive queue that a request is for, and 0 in an answer.
    pub xrc: Option<u32>,
    /// Of an answer, but for those without one.
    pub aeth: Aeth,
    /// Traffic class and hop limit.
    pub ip: IpFields,
    /// The ICRC is right only for an IPv4 identification that could not be verified: accepted near the expected PSN only.
    pub icrc_unverified: bool,
    /// Of a request: its sender waits for the acknowledge. In memory it is told of.
    pub awaited: bool,
    /// What it carries may be several packets, whose numbers follow its own: it went by memory.
    pub joined: bool,
    /// Of a frame that went by memory: log2 of its sender's path MTU. Of a packet the length shows whether the two agree.
    pub mtu_shift: u8,
    /// Of a request that goes by memory: the acknowledge of what has come from its receiver, which would have followed it.
    pub acknowledges: Option<(Psn, Aeth)>,
    /// What is specific to the opcode.
    pub body: Body,
}

impl Header {
    /// Between two queue pairs, by number, and asking for nothing besides.
    #[inline]
    pub fn new(service: QpType, src_qp: u32, dest_qp: u32, psn: Psn, body: Body) -> Self {
        Self {
            service,
            dest_qp,
            src_qp,
            psn,
            ack_req: false,
            solicited: false,
            xrc: None,
            aeth: Aeth::default(),
            ip: IpFields::default(),
            icrc_unverified: false,
            awaited: false,
            joined: false,
            mtu_shift: 0,
            acknowledges: None,
            body,
        }
    }

    /// Whether a frame at this position of a message may have so many bytes where the receiver's path MTU is
    /// `1 << mtu_shift`: first and middle packets are full, last ones not empty (IBTA 9.7.4.1.6).
    #[inline]
    pub const fn fits(&self, position: Position, length: usize, mtu_shift: u8) -> bool {
        match self.joined {
            true => joined_packets_fit(position, length, [mtu_shift, self.mtu_shift]),
            false => position.payload().admits(length, 1 << mtu_shift),
        }
    }

    /// Whether everything up to its number has arrived, and it says nothing else.
    #[inline]
    pub const fn is_ack(&self) -> bool {
        matches!(self.body, Body::Acknowledge) && self.aeth.syndrome.is_ack()
    }

    /// The queue pair of a frame that does not tell where it comes from: on the wire only datagrams do.
    pub const UNKNOWN_QP: u32 = u32::MAX;

    /// Whether it may come from this queue pair.
    #[inline]
    pub const fn may_come_from(&self, qpn: u32) -> bool {
        self.src_qp == qpn || self.src_qp == Self::UNKNOWN_QP
    }
}

/// Whether packets that are joined in a frame of so many bytes are as long as both ends expect, whose path MTUs are
/// `1 << mtu_shifts`. Where those differ only a message of one packet is, as on the wire.
#[inline]
pub const fn joined_packets_fit(position: Position, length: usize, mtu_shifts: [u8; 2]) -> bool {
    let [a, b] = mtu_shifts;
    if a == b {
        position.ends() || length > 0 && length.is_multiple_of(1 << a)
    } else {
        matches!(position, Position::Only) && length <= 1 << a && length <= 1 << b
    }
}

/// Sequence numbers that a message of `length` bytes takes: at least one.
#[inline]
pub const fn packets(length: u64, mtu_shift: u8) -> u32 {
    let packets = (length + (1 << mtu_shift) - 1) >> mtu_shift;
    if packets == 0 { 1 } else { packets as u32 }
}

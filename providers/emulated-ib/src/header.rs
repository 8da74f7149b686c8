//! Headers of InfiniBand's transport, as values.

use verbs_api::qp::QpType;
use verbs_api::{
    Access, RemoteAddress,
    ids::{Gid, Psn},
};

pub use polyverbs_engine::request::SendExtra;
pub use polyverbs_wire::roce::{Aeth, Nak, Position, Syndrome, SyndromeKind};

/// The fields that are specific to an opcode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Body {
    /// SEND; its extra is in the last frame.
    Send(Position, SendExtra),
    /// RDMA WRITE: address and total length in the first frame, immediate data in the last.
    Write(Position, RemoteAddress, u32, Option<[u8; 4]>),
    /// RDMA READ request: address and length.
    ReadRequest(RemoteAddress, u32),
    /// COMPARE SWAP: address, value to compare with, value to swap in.
    CompareSwap(RemoteAddress, u64, u64),
    /// FETCH ADD: address, value to add.
    FetchAdd(RemoteAddress, u64),
    /// ATOMIC WRITE.
    AtomicWrite(RemoteAddress),
    /// FLUSH: address, length, placement, whole region.
    Flush(RemoteAddress, u32, Access, bool),
    /// ACK, NAK or RNR NAK: the AETH says which.
    Acknowledge,
    /// RDMA READ response.
    ReadResponse(Position),
    /// ATOMIC ACKNOWLEDGE: the original value.
    AtomicAcknowledge(u64),
    /// A request of an extension: the extension's number and the operation's. Its message is the payload.
    ExtensionRequest(u32, u16),
    /// The answer to an extension's request, with the same numbers.
    ExtensionResponse(u32, u16),
    /// UD SEND: the sender's Q_Key, its extra, and the group if it goes to one.
    Datagram(u32, SendExtra, Option<Gid>),
    /// Congestion notification (CNP): packets of its receiver met congestion.
    Congestion,
    /// The system refuses to send packets of its receiver, with this error number. The link makes this; no packet has it.
    Refused(i32),
}

impl Body {
    /// Returns whether it reads memory or changes it atomically: such a request is served after the frames that arrived
    /// with it were handled.
    pub const fn is_read_or_atomic(&self) -> bool {
        matches!(
            self,
            Self::ReadRequest(..) | Self::CompareSwap(..) | Self::FetchAdd(..) | Self::Flush(..)
        )
    }

    /// Returns whether a packet with this body has an AETH, which reports the progress of the responder: every answer has
    /// one except middle read responses and notifications.
    pub const fn has_aeth(&self) -> bool {
        !self.is_request()
            && !matches!(
                self,
                Self::ReadResponse(Position::Middle) | Self::Congestion | Self::Refused(_)
            )
    }

    /// Returns whether a requester sends it to a responder.
    pub const fn is_request(&self) -> bool {
        !matches!(
            self,
            Self::Acknowledge
                | Self::ReadResponse(_)
                | Self::AtomicAcknowledge(_)
                | Self::ExtensionResponse(..)
                | Self::Congestion
                | Self::Refused(_)
        )
    }
}

/// Fields of the IP header, if the network has one: traffic class and hop limit of the path.
///
/// For a received frame, the traffic class is as the network left it: its lower two bits are those of explicit congestion
/// notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpFields {
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// Time to live or hop limit; 0 for the system's default.
    pub hop_limit: u8,
}

impl IpFields {
    /// The bits of explicit congestion notification in a traffic class.
    pub const ECN: u8 = 0b11;

    /// Returns a traffic class that lets routers mark packets instead of dropping them, unless it sets the bits itself (RFC
    /// 3168).
    pub const fn capable(traffic_class: u8) -> u8 {
        if traffic_class & Self::ECN == 0 {
            traffic_class | 0b10
        } else {
            traffic_class
        }
    }

    /// Returns whether a frame has met congestion (RFC 3168).
    pub const fn met_congestion(self) -> bool {
        self.traffic_class & Self::ECN == Self::ECN
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Header {
    /// The service of its queue pair.
    pub service: QpType,
    /// The destination queue pair.
    pub dest_qp: u32,
    /// The source queue pair; [`UNKNOWN_QP`](Self::UNKNOWN_QP) if the frame does not name it, because its receiver knows it
    /// from the connection.
    pub src_qp: u32,
    /// Packet sequence number.
    pub psn: Psn,
    /// The sender requests an acknowledge.
    pub ack_req: bool,
    /// The sender requests a solicited event.
    pub solicited: bool,
    /// For a frame of XRC: the shared receive queue of a request, and 0 in an answer.
    pub xrc: Option<u32>,
    /// The AETH of an answer that has one.
    pub aeth: Aeth,
    /// Traffic class and hop limit.
    pub ip: IpFields,
    /// The ICRC is correct only for an IPv4 identification that could not be verified. Such a frame is accepted only near
    /// the expected PSN.
    pub icrc_unverified: bool,
    /// For a request: its sender waits for the acknowledge. A record in shared memory carries this.
    pub awaited: bool,
    /// Its payload may be several packets, with consecutive numbers, because it came through shared memory.
    pub joined: bool,
    /// For a frame that came through shared memory: log2 of its sender's path MTU. The length of a packet shows by itself
    /// whether both ends have the same.
    pub mtu_shift: u8,
    /// For a request that goes through shared memory: the acknowledge of its receiver's requests, which would otherwise
    /// follow it.
    pub acknowledges: Option<(Psn, Aeth)>,
    /// The part that is specific to the opcode.
    pub body: Body,
}

impl Header {
    /// Creates a header of a frame between two queue pairs, without any request bits.
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

    /// Returns whether a frame at this position of a message may have `length` bytes if the receiver's path MTU is
    /// `1 << mtu_shift`: first and middle packets are full, last ones are not empty (IBTA 9.7.4.1.6).
    #[inline]
    pub const fn fits(&self, position: Position, length: usize, mtu_shift: u8) -> bool {
        match self.joined {
            true => joined_packets_fit(position, length, [mtu_shift, self.mtu_shift]),
            false => position.payload().admits(length, 1 << mtu_shift),
        }
    }

    /// Returns whether it only acknowledges everything up to its number.
    #[inline]
    pub const fn is_ack(&self) -> bool {
        matches!(self.body, Body::Acknowledge) && self.aeth.syndrome.is_ack()
    }

    /// The source queue pair of a frame that does not name it: on the wire only datagrams do.
    pub const UNKNOWN_QP: u32 = u32::MAX;

    /// Returns whether it may come from this queue pair.
    #[inline]
    pub const fn may_come_from(&self, qpn: u32) -> bool {
        self.src_qp == qpn || self.src_qp == Self::UNKNOWN_QP
    }
}

/// Returns whether the packets that are joined in a frame of `length` bytes are as long as both ends expect, whose path MTUs
/// are `1 << mtu_shifts`. If those differ, only a message of one packet is, as on the wire.
#[inline]
pub const fn joined_packets_fit(position: Position, length: usize, mtu_shifts: [u8; 2]) -> bool {
    let [a, b] = mtu_shifts;
    if a == b {
        position.ends() || length > 0 && length.is_multiple_of(1 << a)
    } else {
        matches!(position, Position::Only) && length <= 1 << a && length <= 1 << b
    }
}

/// Returns how many sequence numbers a message of `length` bytes takes: at least one.
#[inline]
pub const fn packets(length: u64, mtu_shift: u8) -> u32 {
    let packets = (length + (1 << mtu_shift) - 1) >> mtu_shift;
    if packets == 0 { 1 } else { packets as u32 }
}

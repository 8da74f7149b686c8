//! The headers of InfiniBand's transport in decoded form.

use verbs_api::qp::QpType;
use verbs_api::{
    Access, RemoteAddress,
    ids::{Gid, Psn},
};

pub use polyverbs_engine::request::SendExtra;
pub use polyverbs_wire::roce::{Aeth, Nak, Position, Syndrome, SyndromeKind};

/// The part of a frame's header that is specific to its opcode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Body {
    /// SEND: the frame's position in the message, and what the last frame carries in addition.
    Send(Position, SendExtra),
    /// RDMA WRITE: the frame's position in the message, the remote address, the length of the message in bytes, and
    /// immediate data. Address and length are those of the first frame, immediate data are in the last.
    Write(Position, RemoteAddress, u32, Option<[u8; 4]>),
    /// RDMA READ request: the remote address, and the number of bytes.
    ReadRequest(RemoteAddress, u32),
    /// COMPARE SWAP: the remote address, the value to compare with, and the value to swap in.
    CompareSwap(RemoteAddress, u64, u64),
    /// FETCH ADD: the remote address, and the value to add.
    FetchAdd(RemoteAddress, u64),
    /// ATOMIC WRITE: the remote address. The payload has the eight bytes.
    AtomicWrite(RemoteAddress),
    /// FLUSH: the remote address, the number of bytes, what the flush guarantees, and whether it flushes the whole region.
    Flush(RemoteAddress, u32, Access, bool),
    /// ACK, NAK or RNR NAK: the syndrome in the AETH distinguishes the three.
    Acknowledge,
    /// RDMA READ response: the frame's position in the answer.
    ReadResponse(Position),
    /// ATOMIC ACKNOWLEDGE: the value of the operand before the operation.
    AtomicAcknowledge(u64),
    /// A request of an extension: the numbers of the extension and of its operation. The payload is the request's message.
    ExtensionRequest(u32, u16),
    /// The answer to an extension's request, with the numbers of the request.
    ExtensionResponse(u32, u16),
    /// UD SEND: the Q_Key that the receiver must have, what the message carries in addition, and the multicast group if it
    /// goes to one.
    Datagram(u32, SendExtra, Option<Gid>),
    /// Congestion notification (CNP): packets that the receiver of this frame has sent have met congestion.
    Congestion,
    /// The system refuses to send packets of the queue pair that gets this frame, with this error number. The link makes
    /// the frame; no packet on the wire has this body.
    Refused(i32),
}

impl Body {
    /// Returns whether this is the body of a read, an atomic or a flush: the responder executes such a request after it
    /// has handled the frames that arrived together with the request.
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

    /// Returns whether a frame with this body goes from a requester to a responder. Frames with other bodies go to a
    /// requester.
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

/// The fields of the IP header that follow from the path, on a network that has IP headers.
///
/// In a received frame, the traffic class is as the network left it: its lower two bits are those of explicit congestion
/// notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpFields {
    /// The TOS of IPv4, or the traffic class of IPv6.
    pub traffic_class: u8,
    /// The time to live of IPv4, or the hop limit of IPv6; 0 for the system's default.
    pub hop_limit: u8,
}

impl IpFields {
    /// The bits of explicit congestion notification in a traffic class.
    pub const ECN: u8 = 0b11;

    /// Returns the traffic class with the bit that lets routers mark packets instead of dropping them, unless it has bits
    /// of congestion notification already (RFC 3168).
    pub const fn capable(traffic_class: u8) -> u8 {
        if traffic_class & Self::ECN == 0 {
            traffic_class | 0b10
        } else {
            traffic_class
        }
    }

    /// Returns whether a router has marked the frame because the frame met congestion (RFC 3168).
    pub const fn met_congestion(self) -> bool {
        self.traffic_class & Self::ECN == Self::ECN
    }
}

/// The decoded header of a frame between emulated InfiniBand devices: the fields of BTH, extended headers and IP header
/// that the devices use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Header {
    /// The service type of the two queue pairs.
    pub service: QpType,
    /// The number of the destination queue pair.
    pub dest_qp: u32,
    /// The number of the source queue pair; [`UNKNOWN_QP`](Self::UNKNOWN_QP) if the frame does not name it, because its
    /// receiver knows it from the connection.
    pub src_qp: u32,
    /// The packet sequence number of the frame, or of its first packet.
    pub psn: Psn,
    /// Whether the frame's sender requests an acknowledge.
    pub ack_req: bool,
    /// Whether the sender requests a solicited event at the receiver.
    pub solicited: bool,
    /// For a frame of XRC, the number of the shared receive queue that a request names, or 0 in an answer; `None` for other
    /// frames.
    pub xrc: Option<u32>,
    /// The AETH of an answer that has one, which reports the responder's progress.
    pub aeth: Aeth,
    /// The fields of the IP header that follow from the path.
    pub ip: IpFields,
    /// Whether the ICRC is correct only for an IPv4 identification that could not be verified. Such a frame is accepted
    /// only near the expected PSN.
    pub icrc_unverified: bool,
    /// For a request, whether its sender waits for the acknowledge. A record in shared memory carries this flag; a
    /// packet on the wire does not.
    pub awaited: bool,
    /// Whether the payload may be several packets with consecutive PSNs, because the frame came through shared memory or
    /// from a network that does not cut messages.
    pub joined: bool,
    /// For a frame whose payload is several packets (`joined`), log2 of the sender's path MTU in bytes. On the wire the
    /// length of a packet shows whether both ends have the same path MTU.
    pub mtu_shift: u8,
    /// For a request through shared memory, the acknowledge (PSN and AETH) of the requests of its receiver, which would
    /// otherwise follow in a frame of its own.
    pub acknowledges: Option<(Psn, Aeth)>,
    /// The part of the header that depends on the opcode, such as the remote address of a write.
    pub body: Body,
}

impl Header {
    /// Creates the decoded header of a frame from the queue pair `src_qp` to the queue pair `dest_qp`. The flags are
    /// false and all further fields are empty; the caller sets those that it needs.
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

    /// Returns whether the payload of a frame at this position of a message may have `length` bytes if the receiver's path
    /// MTU is `1 << mtu_shift`: first and middle packets are full, last ones are not empty (IBTA 9.7.4.1.6).
    #[inline]
    pub const fn fits(&self, position: Position, length: usize, mtu_shift: u8) -> bool {
        match self.joined {
            true => joined_packets_fit(position, length, [mtu_shift, self.mtu_shift]),
            false => position.payload().admits(length, 1 << mtu_shift),
        }
    }

    /// Returns whether the frame is an acknowledge without a refusal: it acknowledges everything up to its PSN, and nothing
    /// else.
    #[inline]
    pub const fn is_ack(&self) -> bool {
        matches!(self.body, Body::Acknowledge) && self.aeth.syndrome.is_ack()
    }

    /// The `src_qp` of a frame that does not name its source queue pair. On the wire only datagrams (DETH) name the
    /// source queue pair.
    pub const UNKNOWN_QP: u32 = u32::MAX;

    /// Returns whether the frame may come from the queue pair `qpn`: the frame names that source queue pair, or none.
    #[inline]
    pub const fn may_come_from(&self, qpn: u32) -> bool {
        self.src_qp == qpn || self.src_qp == Self::UNKNOWN_QP
    }
}

/// Returns whether the packets that are joined in a frame of `length` bytes are as long as both ends expect, whose path
/// MTUs are `1 << mtu_shifts`. If the two MTUs differ, only a message of one packet can be, as on the wire.
#[inline]
pub const fn joined_packets_fit(position: Position, length: usize, mtu_shifts: [u8; 2]) -> bool {
    let [a, b] = mtu_shifts;
    if a == b {
        position.ends() || length > 0 && length.is_multiple_of(1 << a)
    } else {
        matches!(position, Position::Only) && length <= 1 << a && length <= 1 << b
    }
}

/// Returns how many packet sequence numbers a message of `length` bytes takes if the path MTU is `1 << mtu_shift`: at least
/// one.
#[inline]
pub const fn packets(length: u64, mtu_shift: u8) -> u32 {
    let packets = (length + (1 << mtu_shift) - 1) >> mtu_shift;
    if packets == 0 { 1 } else { packets as u32 }
}

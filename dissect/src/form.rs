//! A dissected packet as fields. serde writes and reads it, and [`encode`](crate::encode()) turns it back into bytes.

use std::fmt;
use std::time::Duration;

use polyverbs_wire::iwarp::rdmap::{AtomicRequest, AtomicResponse, ExtensionHeader, ReadRequest};
use polyverbs_wire::iwarp::start::Kind;
use polyverbs_wire::iwarp::terminate::{TerminateControl, TerminatedRequest};
use polyverbs_wire::iwarp::{Enhanced, SegmentHeader, StartHeader};
use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::MadHeader;
use polyverbs_wire::mad::cm::Message;
use polyverbs_wire::mad::rdma_cm::RdmaCm;
use polyverbs_wire::net::{
    Erspan2, Erspan3, Ethernet, Geneve, Gre, Ipv4, Ipv6, Loopback, Mpls, Pppoe, Sll, Sll2, Snap,
    Tcp, Udp, Vlan, Vxlan,
};
use polyverbs_wire::rds::{ConnectData, Extension};
use polyverbs_wire::roce::{Grh, Headers};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::summary::Summary;

/// A dissected capture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// The dissected packets, in the order of the file.
    pub packets: Vec<Packet>,
    /// The bytes of TCP streams that were not parsed when the capture ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfinished: Vec<Pdu>,
    /// Counts of the packets and checksums.
    pub summary: Summary,
    /// The reason why the rest of the file cannot be read; `None` if the whole file was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defect: Option<String>,
}

/// A dissected packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packet {
    /// The number of the packet in the capture, from 1.
    pub number: u64,
    /// The time of capture.
    pub time: Time,
    /// The length on the wire, in bytes, if the capture has cut the packet; otherwise `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_len: Option<u32>,
    /// The link-layer header.
    pub link: Link,
    /// The headers between the link-layer header and the last IP header: tags, labels and tunnels, the outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Layer>,
    /// The last IP header before the content; `None` if the packet has no IP header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<Ip>,
    /// The content after the last IP header.
    pub content: Content,
    /// The whole packet that this fragment completes, for human readers: the bytes of that packet are those of its
    /// fragments. `None` if this packet is no fragment, or fragments are still missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reassembled: Option<Box<Packet>>,
    /// Bytes after the end of the packet: padding of short frames, and frame check sequences.
    #[serde(default, skip_serializing_if = "Hex::is_empty")]
    pub trailer: Hex,
    /// The reason why the packet was not dissected further: an unsupported protocol, or missing headers. `None` if
    /// nothing kept the packet from being dissected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed_over: Option<String>,
    /// The faults that were found in the packet, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub complaints: Vec<String>,
}

/// A time since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Time {
    /// Whole seconds since the epoch.
    pub seconds: u64,
    /// Nanoseconds since the last whole second.
    pub nanoseconds: u32,
}

/// The link-layer header of a packet, by the link type of the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// An Ethernet header.
    Ethernet(Ethernet),
    /// No link-layer header: the packet begins with an IP header.
    Raw,
    /// Linux's cooked capture, first version.
    Sll(Sll),
    /// The header of Linux's cooked capture, second version (SLL2).
    Sll2(Sll2),
    /// The header of BSD's loopback interface: an address family.
    Loopback(Loopback),
    /// Another link type, by its number. Its packets are not dissected.
    Other(u32),
    /// The file does not describe the interface that captured the packet.
    Undescribed,
    /// The packet is too short for its link-layer header.
    Short,
}

/// A header between the link-layer header and the last IP header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// An ERSPAN header of the second version.
    #[serde(rename = "erspan_2")]
    Erspan2(Erspan2),
    /// An ERSPAN header of the third version.
    #[serde(rename = "erspan_3")]
    Erspan3 {
        /// The ERSPAN header.
        header: Erspan3,
        /// The bytes of the optional ERSPAN subheader.
        #[serde(default, skip_serializing_if = "Hex::is_empty")]
        subheader: Hex,
    },
    /// An Ethernet header in a tunnel.
    Ethernet(Ethernet),
    /// A Geneve header.
    Geneve {
        /// The Geneve header.
        header: Geneve,
        /// The bytes of the options that follow the header.
        #[serde(default, skip_serializing_if = "Hex::is_empty")]
        options: Hex,
    },
    /// A GRE header.
    Gre {
        /// The GRE header.
        header: Gre,
        /// The optional fields that the header announces: checksum, key and sequence number.
        #[serde(default, skip_serializing_if = "Hex::is_empty")]
        fields: Hex,
    },
    /// The IP header of a tunnel.
    Ip(Ip),
    /// An MPLS label.
    Mpls(Mpls),
    /// A header of PPP over Ethernet.
    Pppoe(Pppoe),
    /// The LLC and SNAP headers of an IEEE 802.3 frame.
    Snap(Snap),
    /// The UDP header of a tunnel.
    Udp(Udp),
    /// A VLAN tag.
    Vlan(Vlan),
    /// A VXLAN header.
    Vxlan(Vxlan),
}

/// An IP header, or the GRH that RoCEv1 has instead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ip {
    /// An IPv4 header.
    V4 {
        /// The IPv4 header.
        header: Ipv4,
        /// The bytes of the options that follow the header.
        #[serde(default, skip_serializing_if = "Hex::is_empty")]
        options: Hex,
    },
    /// An IPv6 header.
    V6 {
        /// The IPv6 header.
        header: Ipv6,
        /// The bytes of the IPv6 extension headers.
        #[serde(default, skip_serializing_if = "Hex::is_empty")]
        extensions: Hex,
    },
    /// The GRH of RoCEv1.
    Grh {
        /// The GRH.
        header: Grh,
    },
}

/// The content of a packet after its last IP header, or after the link-layer header if the packet has no IP header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// A RoCE packet.
    Roce(Box<Roce>),
    /// RoCEv2 packets that the kernel has joined to one datagram (GSO or GRO).
    Joined(Joined),
    /// A datagram to the UDP port of RoCEv2, or the bytes after a GRH, where these bytes are no valid RoCE packet.
    BadRoce(BadRoce),
    /// A TCP segment of an iWARP connection or of another connection.
    Tcp(TcpSegment),
    /// The payload of a fragment of an IP packet.
    Fragment(Hex),
    /// The bytes of any other content.
    Other(Hex),
}

/// A datagram that has the payloads of several RoCEv2 packets: either its segmentation was left to the device (GSO), or the
/// kernel has joined the packets after they arrived (GRO). All packets but the last have the same length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Joined {
    /// The UDP header of the datagram.
    pub udp: Udp,
    /// Whether the IPv4 identification grows by one from packet to packet.
    pub identification_counts: bool,
    /// The packets, each with the UDP header that it has on the wire.
    pub packets: Vec<Roce>,
    /// The bytes of a further packet, which the capture has cut within its BTH.
    #[serde(default, skip_serializing_if = "Hex::is_empty")]
    pub rest: Hex,
}

/// A RoCE packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roce {
    /// The UDP header; `None` for RoCEv1, which has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<Udp>,
    /// The name of the opcode, for human readers; encoding ignores this name.
    pub opcode: String,
    /// The BTH and the extended headers of its opcode.
    pub headers: Headers,
    /// The payload, decoded if it is a MAD or belongs to RDS.
    pub payload: Payload,
    /// The length of the whole payload in bytes, if the capture has cut the packet, so that the ICRC is missing; otherwise
    /// `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_from: Option<u32>,
    /// The pad of the packet; `None` if all its bytes are zero. In a packet that the capture has cut: the bytes of an
    /// incomplete header, or those after the payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad: Option<Hex>,
    /// The invariant CRC; `None` if the capture has cut the packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icrc: Option<Checksum>,
}

/// A datagram to the UDP port of RoCEv2, or the bytes after a GRH, where these bytes are no valid RoCE packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BadRoce {
    /// The UDP header; `None` for RoCEv1, which has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<Udp>,
    /// The bytes after the UDP header or GRH.
    pub octets: Hex,
}

/// The payload of a RoCE packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// Data of the program.
    Data(Hex),
    /// A management datagram (MAD), with its header parsed.
    Mad(Box<Management>),
    /// A SEND of an RDS connection, or a part of one.
    Rds(Box<Rds>),
}

/// A SEND of an RDS connection, which is a fragment of an RDS message; or a part of one, if the SEND has several packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rds {
    /// The RDS header; `None` if this packet does not begin the SEND.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<RdsHeader>,
    /// Data of the RDS message.
    #[serde(default, skip_serializing_if = "Hex::is_empty")]
    pub data: Hex,
    /// The RDS message that this SEND completes, for human readers; `None` if the SEND completes none. Encoding ignores
    /// this message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completes: Option<RdsMessage>,
}

/// The header of a fragment of an RDS message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RdsHeader {
    /// The sequence number of the message, counted for each direction.
    pub sequence: u64,
    /// The highest sequence number that has arrived in the other direction.
    pub ack: u64,
    /// The length of the whole message, in bytes.
    pub length: u32,
    /// The RDS port of the sending socket.
    pub source_port: u16,
    /// The RDS port of the receiving socket.
    pub destination_port: u16,
    /// The flags of the fragment, as [`Flags`](polyverbs_wire::rds::Flags) names them.
    pub flags: u8,
    /// The number of receives that the sender has posted since its previous header (flow control credit).
    pub credit: u8,
    /// The padding of the header.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub padding: Octets<4>,
    /// The checksum of the header; a value of 0 means that none is used.
    pub checksum: Checksum<2>,
    /// The 16 bytes of the RDS header that hold its extension headers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub extension_octets: Octets<16>,
    /// The RDS extension headers that were decoded from `extension_octets`, for human readers. Encoding writes those
    /// bytes and ignores this list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<Extension>,
}

fn is_zero<const N: usize>(octets: &Octets<N>) -> bool {
    octets.0 == [0; N]
}

/// A complete RDS message, or an acknowledgment without a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RdsMessage {
    /// A message between programs.
    Data {
        /// The length of the message, in bytes.
        length: u32,
    },
    /// A congestion map: the ports of the sender that are congested.
    CongestionMap(Vec<u16>),
    /// A fragment that only acknowledges.
    Acknowledge,
}

/// A management datagram (MAD).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Management {
    /// The header of the MAD.
    pub header: MadHeader,
    /// The data of the MAD after its header.
    pub content: ManagementContent,
    /// The RDMA CM header with which the private data of a CM message begins, for human readers; `None` if there is
    /// none. Encoding ignores this header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma_cm: Option<RdmaCm>,
    /// The RDS private data after the RDMA CM header, for human readers; `None` if the message does not belong to an
    /// RDS connection. Encoding ignores this data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rds: Option<ConnectData>,
}

/// The data of a management datagram, after its header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::large_enum_variant)] // Boxed as a whole.
pub enum ManagementContent {
    /// A CM message.
    Cm(Message),
    /// Data that is no CM message.
    Data(Octets<232>),
}

/// A checksum of `N` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checksum<const N: usize = 4> {
    /// The value in the captured packet.
    pub value: Octets<N>,
    /// Whether the value is right.
    pub verdict: Verdict,
}

/// Whether a checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The checksum is right. Encoding the packet computes the checksum anew.
    Right,
    /// The checksum is wrong. Encoding the packet keeps the captured value.
    Wrong,
    /// The protocol or its two ends have agreed to use no checksum here.
    Unused,
}

/// A TCP segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TcpSegment {
    /// The TCP header.
    pub header: Tcp,
    /// The TCP options.
    #[serde(default, skip_serializing_if = "Hex::is_empty")]
    pub options: Hex,
    /// The payload of the segment.
    pub payload: TcpPayload,
    /// The units of MPA streams that this segment completes, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub completes: Vec<Pdu>,
}

/// The payload of a TCP segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TcpPayload {
    /// The segment has no payload.
    None,
    /// The payload is part of an MPA stream, and its bytes are in the stream's units.
    Stream {
        /// The number of the connection in the capture, from 0.
        connection: u32,
        /// The end of the connection that sent the segment.
        side: Side,
        /// The offset of the payload in the bytes that `side` sends on the connection.
        offset: u64,
        /// The number of bytes of the payload.
        len: u32,
    },
    /// The payload is no part of an MPA stream, or does not fit into it.
    Octets(Hex),
}

/// One of the two ends of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The end that opened the connection; if its SYN was not captured, the end whose segment comes first.
    Initiator,
    /// The end to which the initiator connected.
    Responder,
}

/// A unit of an MPA stream, and its position in the stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pdu {
    /// The number of the connection in the capture, from 0.
    pub connection: u32,
    /// The end of the connection that sent the unit.
    pub side: Side,
    /// The offset of the unit in the bytes that `side` sends on the connection.
    pub offset: u64,
    /// The decoded unit of the MPA stream.
    pub unit: Unit,
}

/// A unit of an MPA stream: a start frame, an FPDU, or unparsed bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// An MPA request or reply.
    Start(Start),
    /// An FPDU.
    Fpdu(Box<Fpdu>),
    /// Bytes that were not parsed.
    Octets {
        /// The reason why the bytes were not parsed; `None` if that is no fault.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        complaint: Option<String>,
        /// The bytes of the stream that were not parsed.
        octets: Hex,
    },
}

/// An MPA request or reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The header of the MPA request or reply.
    pub header: StartHeader,
    /// The header that MPA revision 2 adds; `None` if the request or reply does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enhanced: Option<Enhanced>,
    /// The private data of the program.
    #[serde(default, skip_serializing_if = "Hex::is_empty")]
    pub private_data: Hex,
    /// The private data in RDS's format, for human readers; `None` if the frame does not belong to an RDS connection.
    /// Encoding ignores this data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rds: Option<ConnectData>,
}

impl Start {
    /// Returns `Request` or `Reply`.
    pub(crate) fn kind_name(&self) -> &'static str {
        if self.header.key.0 == *Kind::Request.key() {
            "Request"
        } else {
            "Reply"
        }
    }
}

/// An FPDU: a DDP segment in its MPA frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fpdu {
    /// The name of the RDMAP message, for human readers; encoding ignores this name.
    pub opcode: String,
    /// The DDP header; `None` if the segment could not be parsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<SegmentHeader>,
    /// The part of the DDP segment after its header.
    pub body: SegmentBody,
    /// The MPA markers in the FPDU; `None` if the FPDU has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub markers: Option<Markers>,
    /// The pad of the FPDU; `None` if all its bytes are zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad: Option<Hex>,
    /// The CRC-32C of the FPDU.
    pub crc: Checksum,
}

/// The markers in an FPDU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Markers {
    /// The number of bytes of the stream between the beginning of full operation and the FPDU.
    pub position: u64,
    /// The captured bytes of each marker.
    pub markers: Vec<Octets<4>>,
}

/// The part of a DDP segment after its DDP header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentBody {
    /// Data of the program.
    Data(Hex),
    /// A Send of an RDS connection, or a part of one.
    Rds(Box<Rds>),
    /// The header of an Atomic Request.
    AtomicRequest(AtomicRequest),
    /// The header of an Atomic Response.
    AtomicResponse(AtomicResponse),
    /// Eight bytes of Immediate Data.
    Immediate(Octets<8>),
    /// The header of an RDMA Read Request.
    ReadRequest(ReadRequest),
    /// A Terminate message.
    Terminate(Terminate),
    /// An operation of an extension without a standard encoding.
    Extension {
        /// The header of the operation, which names the extension.
        header: ExtensionHeader,
        /// The bytes of the operation after its header.
        data: Hex,
    },
    /// A whole segment that could not be parsed.
    Undecoded(Hex),
}

/// A Terminate message, with as many of its parts as it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terminate {
    /// The control field of the Terminate message: layer, type and code of the error.
    pub control: TerminateControl,
    /// The name of the error that the control field states, for human readers; `None` if the error has no name.
    /// Encoding ignores this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meaning: Option<String>,
    /// The length of the DDP segment that caused the error, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment_len: Option<u16>,
    /// The DDP header of the segment that caused the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ddp: Option<SegmentHeader>,
    /// The RDMAP header of the segment that caused the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdmap: Option<TerminatedRequest>,
    /// The bytes of the Terminate message after its parsed headers.
    #[serde(default, skip_serializing_if = "Hex::is_empty")]
    pub rest: Hex,
}

/// Bytes that text formats represent as hexadecimal digits.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Hex(pub Vec<u8>);

impl Hex {
    /// Returns whether this has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&[u8]> for Hex {
    fn from(octets: &[u8]) -> Self {
        Self(octets.to_vec())
    }
}

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        octets(&digits).ok_or_else(|| D::Error::custom("not pairs of hexadecimal digits"))
    }
}

fn octets(digits: &str) -> Option<Hex> {
    let digit = |octet: u8| char::from(octet).to_digit(16);
    let octets = digits.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some((digit(*high)? << 4 | digit(*low)?) as u8),
        _ => None,
    });
    octets.collect::<Option<_>>().map(Hex)
}

impl From<Duration> for Time {
    fn from(time: Duration) -> Self {
        Self {
            seconds: time.as_secs(),
            nanoseconds: time.subsec_nanos(),
        }
    }
}

impl Packet {
    /// Returns the RoCE packet; `None` for other content.
    pub fn roce(&self) -> Option<&Roce> {
        match &self.content {
            Content::Roce(roce) => Some(roce),
            _ => None,
        }
    }

    /// Returns the innermost IP header; `None` if the packet has none.
    pub fn innermost_ip(&self) -> Option<&Ip> {
        let outer = self.layers.iter().rev().find_map(|layer| match layer {
            Layer::Ip(ip) => Some(ip),
            _ => None,
        });
        self.ip.as_ref().or(outer)
    }

    /// Returns the units of MPA streams that this packet completes: those of its own TCP segment, or those of the
    /// packet that was reassembled from this fragment and earlier ones.
    pub fn completes(&self) -> &[Pdu] {
        match (&self.content, &self.reassembled) {
            (Content::Tcp(segment), _) => &segment.completes,
            (_, Some(whole)) => whole.completes(),
            _ => &[],
        }
    }
}

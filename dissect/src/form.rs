//! A packet as fields. serde writes and reads it; [`encode`](crate::encode()) turns it back into bytes.

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

/// A capture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// The packets, in the order of the file.
    pub packets: Vec<Packet>,
    /// What was left of the streams when the capture ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfinished: Vec<Pdu>,
    /// The summary.
    pub summary: Summary,
    /// Why the rest of the file cannot be read, where that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defect: Option<String>,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packet {
    /// Its number in the capture, from 1.
    pub number: u64,
    /// Time of capture.
    pub time: Time,
    /// Length on the wire, where the capture has fewer bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_len: Option<u32>,
    /// The link type.
    pub link: Link,
    /// The headers between the link layer's and the last IP header: tags, labels and tunnels, the outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Layer>,
    /// Its last IP header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<Ip>,
    /// What follows the IP header.
    pub content: Content,
    /// Of the last fragment to arrive: the whole packet, for the reader. Its bytes are those of the fragments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reassembled: Option<Box<Packet>>,
    /// Bytes after the packet: padding of short frames, and frame check sequences.
    #[serde(default, skip_serializing_if = "Hex::is_empty")]
    pub trailer: Hex,
    /// Why the packet was not dissected further: the protocol that is not known here, or the headers that are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed_over: Option<String>,
    /// Complaints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub complaints: Vec<String>,
}

/// A time since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Time {
    /// Seconds.
    pub seconds: u64,
    /// Nanoseconds.
    pub nanoseconds: u32,
}

/// The link-layer header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// Ethernet.
    Ethernet(Ethernet),
    /// Raw IP: the packet begins with an IP header.
    Raw,
    /// Linux's cooked capture.
    Sll(Sll),
    /// Linux's cooked capture, second version.
    Sll2(Sll2),
    /// BSD's loopback.
    Loopback(Loopback),
    /// A link type by its number, of whose packets no protocol is known here.
    Other(u32),
    /// The file does not describe the interface of the packet.
    Undescribed,
    /// Bytes that are too short for the header.
    Short,
}

/// A header between the link layer's and the last IP header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// ERSPAN of the second version.
    #[serde(rename = "erspan_2")]
    Erspan2(Erspan2),
    /// ERSPAN of the third version.
    #[serde(rename = "erspan_3")]
    Erspan3 {
        /// The header.
        header: Erspan3,
        /// Its optional subheader.
        #[serde(default, skip_serializing_if = "Hex::is_empty")]
        subheader: Hex,
    },
    /// Ethernet in a tunnel.
    Ethernet(Ethernet),
    /// Geneve.
    Geneve {
        /// The header.
        header: Geneve,
        /// Its options.
        #[serde(default, skip_serializing_if = "Hex::is_empty")]
        options: Hex,
    },
    /// GRE.
    Gre {
        /// The header.
        header: Gre,
        /// Checksum, key and sequence number, those that the header announces.
        #[serde(default, skip_serializing_if = "Hex::is_empty")]
        fields: Hex,
    },
    /// The IP header of a tunnel.
    Ip(Ip),
    /// A label of MPLS.
    Mpls(Mpls),
    /// PPP over Ethernet.
    Pppoe(Pppoe),
    /// LLC and SNAP.
    Snap(Snap),
    /// The UDP header of a tunnel.
    Udp(Udp),
    /// A VLAN tag.
    Vlan(Vlan),
    /// VXLAN.
    Vxlan(Vxlan),
}

/// An IP header, or the GRH in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ip {
    /// IPv4.
    V4 {
        /// The header.
        header: Ipv4,
        /// Its options.
        #[serde(default, skip_serializing_if = "Hex::is_empty")]
        options: Hex,
    },
    /// IPv6.
    V6 {
        /// The header.
        header: Ipv6,
        /// Its extension headers.
        #[serde(default, skip_serializing_if = "Hex::is_empty")]
        extensions: Hex,
    },
    /// The GRH of RoCEv1.
    Grh {
        /// The header.
        header: Grh,
    },
}

/// What follows the IP header, or the link-layer header where there is no IP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// A packet of RoCE.
    Roce(Box<Roce>),
    /// Packets of RoCEv2 that the kernel has joined to one datagram.
    Joined(Joined),
    /// A datagram to the port of RoCEv2, or what follows a GRH, that is no RoCE packet.
    BadRoce(BadRoce),
    /// TCP, with or without iWARP in it.
    Tcp(TcpSegment),
    /// A fragment of an IP packet.
    Fragment(Hex),
    /// Anything else.
    Other(Hex),
}

/// A datagram of several packets of RoCEv2, whose segmentation is left to the device (GSO), or which the kernel has joined
/// when they arrived (GRO). All but the last have the same length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Joined {
    /// UDP's header of the datagram.
    pub udp: Udp,
    /// Whether IP's identification is one higher in each packet.
    pub identification_counts: bool,
    /// The packets, each with the UDP header that it has on the wire.
    pub packets: Vec<Roce>,
    /// Bytes of one more packet, which is cut within its BTH.
    #[serde(default, skip_serializing_if = "Hex::is_empty")]
    pub rest: Hex,
}

/// A packet of RoCE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roce {
    /// UDP's header, which RoCEv1 has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<Udp>,
    /// The opcode's name, for the reader.
    pub opcode: String,
    /// BTH and the extended headers of its opcode.
    pub headers: Headers,
    /// The payload.
    pub payload: Payload,
    /// Length of the whole payload, where the packet is cut and the ICRC is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_from: Option<u32>,
    /// The pad, if it is not zero; of a packet that is cut, the bytes of an incomplete header or those after the payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad: Option<Hex>,
    /// The invariant CRC, unless it is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icrc: Option<Checksum>,
}

/// A datagram to the port of RoCEv2, or what follows a GRH, that is no RoCE packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BadRoce {
    /// UDP's header, which RoCEv1 has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<Udp>,
    /// The payload.
    pub octets: Hex,
}

/// The payload of a packet of RoCE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// The program's data.
    Data(Hex),
    /// A management datagram.
    Mad(Box<Management>),
    /// A SEND of RDS, or part of one.
    Rds(Box<Rds>),
}

/// A SEND of RDS, which is a fragment of a message, or part of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rds {
    /// The header, at the beginning of the SEND.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<RdsHeader>,
    /// The data of the message.
    #[serde(default, skip_serializing_if = "Hex::is_empty")]
    pub data: Hex,
    /// The message that it completes, for the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completes: Option<RdsMessage>,
}

/// The header of a fragment of RDS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RdsHeader {
    /// The message's number among all of this direction.
    pub sequence: u64,
    /// The highest number that has arrived in the other direction.
    pub ack: u64,
    /// Bytes of the whole message.
    pub length: u32,
    /// The socket that has sent it.
    pub source_port: u16,
    /// The socket that it is for.
    pub destination_port: u16,
    /// Its flags, as [`Flags`](polyverbs_wire::rds::Flags) names them.
    pub flags: u8,
    /// Receives that the sender has posted since it said so last.
    pub credit: u8,
    /// Its padding.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub padding: Octets<4>,
    /// The checksum; not in use where it is 0.
    pub checksum: Checksum<2>,
    /// The room for extension headers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub extension_octets: Octets<16>,
    /// The extension headers in it, for the reader.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<Extension>,
}

fn is_zero<const N: usize>(octets: &Octets<N>) -> bool {
    octets.0 == [0; N]
}

/// A message of RDS, or what stands in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RdsMessage {
    /// The program's data.
    Data {
        /// Its length in bytes.
        length: u32,
    },
    /// The ports of the sender that take no more messages.
    CongestionMap(Vec<u16>),
    /// Nothing but an acknowledge, which is no message.
    Acknowledge,
}

/// A management datagram.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Management {
    /// Its header.
    pub header: MadHeader,
    /// The data behind the header.
    pub content: ManagementContent,
    /// The RDMA connection manager's header at the beginning of the private data, if there is one; for the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma_cm: Option<RdmaCm>,
    /// RDS's private data behind it, if the connection is of RDS; for the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rds: Option<ConnectData>,
}

/// The data of a management datagram.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::large_enum_variant)] // Boxed as a whole.
pub enum ManagementContent {
    /// A message of the connection manager.
    Cm(Message),
    /// Anything else.
    Data(Octets<232>),
}

/// A checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checksum<const N: usize = 4> {
    /// The value captured.
    pub value: Octets<N>,
    /// Whether it is correct.
    pub verdict: Verdict,
}

/// Whether a checksum is correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Correct; computed anew when the packet is encoded.
    Right,
    /// Incorrect.
    Wrong,
    /// Not in use, as both sides agreed.
    Unused,
}

/// A segment of TCP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TcpSegment {
    /// The header.
    pub header: Tcp,
    /// Its options.
    #[serde(default, skip_serializing_if = "Hex::is_empty")]
    pub options: Hex,
    /// Its data.
    pub payload: TcpPayload,
    /// The units that it completes in the connection's streams, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub completes: Vec<Pdu>,
}

/// The data of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TcpPayload {
    /// None.
    None,
    /// Part of an MPA stream.
    Stream {
        /// The connection, counted from 0.
        connection: u32,
        /// The sender.
        side: Side,
        /// Their offset in the stream.
        offset: u64,
        /// Their length in bytes.
        len: u32,
    },
    /// No part of an MPA stream, or one that does not fit.
    Octets(Hex),
}

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The side that opened the connection, or, if that was not captured, the one seen first.
    Initiator,
    /// The other side.
    Responder,
}

/// A unit of an MPA stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pdu {
    /// The connection, counted from 0.
    pub connection: u32,
    /// The sender.
    pub side: Side,
    /// Its offset in the stream.
    pub offset: u64,
    /// The unit.
    pub unit: Unit,
}

/// A unit of an MPA stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A request or reply.
    Start(Start),
    /// An FPDU.
    Fpdu(Box<Fpdu>),
    /// Bytes that cannot be parsed.
    Octets {
        /// The complaint, if something is wrong.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        complaint: Option<String>,
        /// The bytes.
        octets: Hex,
    },
}

/// MPA's request or reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// Its header.
    pub header: StartHeader,
    /// The fields of revision 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enhanced: Option<Enhanced>,
    /// The program's private data.
    #[serde(default, skip_serializing_if = "Hex::is_empty")]
    pub private_data: Hex,
    /// The same, if the connection is of RDS; for the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rds: Option<ConnectData>,
}

impl Start {
    /// Request or reply.
    pub(crate) fn kind_name(&self) -> &'static str {
        if self.header.key.0 == *Kind::Request.key() {
            "Request"
        } else {
            "Reply"
        }
    }
}

/// An FPDU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fpdu {
    /// The message's name, for the reader.
    pub opcode: String,
    /// DDP's header; none where the segment cannot be parsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<SegmentHeader>,
    /// What follows the header.
    pub body: SegmentBody,
    /// The markers in the frame, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub markers: Option<Markers>,
    /// The pad, if it is not zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad: Option<Hex>,
    /// The checksum.
    pub crc: Checksum,
}

/// The markers in a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Markers {
    /// Bytes between the beginning of full operation and the frame.
    pub position: u64,
    /// The markers.
    pub markers: Vec<Octets<4>>,
}

/// What follows the header of a DDP segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentBody {
    /// The program's data.
    Data(Hex),
    /// A Send of RDS, or part of one.
    Rds(Box<Rds>),
    /// The header of an Atomic Request.
    AtomicRequest(AtomicRequest),
    /// The header of an Atomic Response.
    AtomicResponse(AtomicResponse),
    /// The program's eight bytes of Immediate Data.
    Immediate(Octets<8>),
    /// The header of an RDMA Read Request.
    ReadRequest(ReadRequest),
    /// A Terminate.
    Terminate(Terminate),
    /// The data of an extension's operation.
    Extension {
        /// The extension.
        header: ExtensionHeader,
        /// Its data.
        data: Hex,
    },
    /// A whole segment that cannot be parsed.
    Undecoded(Hex),
}

/// A Terminate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terminate {
    /// Its header.
    pub control: TerminateControl,
    /// The code's name, for the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meaning: Option<String>,
    /// Length of the terminated segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment_len: Option<u16>,
    /// DDP's header of that segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ddp: Option<SegmentHeader>,
    /// RDMAP's header of that segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdmap: Option<TerminatedRequest>,
    /// The rest.
    #[serde(default, skip_serializing_if = "Hex::is_empty")]
    pub rest: Hex,
}

/// Bytes, as hexadecimal digits.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Hex(pub Vec<u8>);

impl Hex {
    /// Whether it is empty.
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
    /// The RoCE packet, if it is one.
    pub fn roce(&self) -> Option<&Roce> {
        match &self.content {
            Content::Roce(roce) => Some(roce),
            _ => None,
        }
    }

    /// The innermost IP header.
    pub fn innermost_ip(&self) -> Option<&Ip> {
        let outer = self.layers.iter().rev().find_map(|layer| match layer {
            Layer::Ip(ip) => Some(ip),
            _ => None,
        });
        self.ip.as_ref().or(outer)
    }

    /// The units that it completes in MPA streams.
    pub fn completes(&self) -> &[Pdu] {
        match (&self.content, &self.reassembled) {
            (Content::Tcp(segment), _) => &segment.completes,
            (_, Some(whole)) => whole.completes(),
            _ => &[],
        }
    }
}

//! A packet as fields. serde writes and reads it; [`encode`](crate::encode()) makes its octets again.

use std::fmt;
use std::time::Duration;

use polyverbs_wire::iwarp::rdmap::{AtomicRequest, AtomicResponse, ExtensionHeader, ReadRequest};
use polyverbs_wire::iwarp::terminate::{TerminateControl, TerminatedRequest};
use polyverbs_wire::iwarp::{Enhanced, SegmentHeader, StartHeader};
use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::MadHeader;
use polyverbs_wire::mad::cm::Message;
use polyverbs_wire::mad::rdma_cm::RdmaCm;
use polyverbs_wire::net::{Ethernet, Ipv4, Ipv6, Sll, Sll2, Tcp, Udp, Vlan};
use polyverbs_wire::roce::Headers;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::summary::Summary;

/// A capture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// The packets, in the order of the file.
    pub packets: Vec<Packet>,
    /// What the streams had left when the capture ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfinished: Vec<Pdu>,
    /// What was seen, counted.
    pub summary: Summary,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packet {
    /// Its number in the capture, from 1.
    pub number: u64,
    /// When it was captured.
    pub time: Time,
    /// Octets that it had on the wire, where the capture has fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_len: Option<u32>,
    /// What its first header is.
    pub link: Link,
    /// VLAN tags, the outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vlans: Vec<Vlan>,
    /// Its IP header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<Ip>,
    /// What lies behind.
    pub content: Content,
    /// What lies behind that: where links fill up short packets.
    #[serde(default, skip_serializing_if = "Hex::is_empty")]
    pub trailer: Hex,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub complaints: Vec<String>,
}

/// A time since the beginning of 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Time {
    /// Whole seconds.
    pub seconds: u64,
    /// And this many nanoseconds.
    pub nanoseconds: u32,
}

/// What a packet's first header is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// Ethernet.
    Ethernet(Ethernet),
    /// None: an IP header comes first.
    Raw,
    /// Linux's cooked capture.
    Sll(Sll),
    /// Linux's cooked capture, second version.
    Sll2(Sll2),
    /// Octets that are too short for the header.
    Short,
}

/// An IP header.
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
    },
}

/// What lies behind the IP header, or behind the first one where there is no IP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// A packet of RoCEv2.
    Roce(Box<Roce>),
    /// A datagram to the port of RoCEv2 that is no packet of it.
    BadRoce(BadRoce),
    /// TCP, with or without iWARP in it.
    Tcp(TcpSegment),
    /// Anything else.
    Other(Hex),
}

/// A packet of RoCEv2.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roce {
    /// UDP's header.
    pub udp: Udp,
    /// The opcode in words; for the reader.
    pub opcode: String,
    /// BTH, and what its opcode has behind it.
    pub headers: Headers,
    /// The payload.
    pub payload: Payload,
    /// The pad, where it is not zeros.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad: Option<Hex>,
    /// The invariant CRC.
    pub icrc: Checksum,
}

/// A datagram to the port of RoCEv2 that is no packet of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BadRoce {
    /// UDP's header.
    pub udp: Udp,
    /// What is behind it.
    pub octets: Hex,
}

/// The payload of a packet of RoCEv2.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// The program's octets.
    Data(Hex),
    /// A management datagram.
    Mad(Box<Management>),
}

/// A management datagram.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Management {
    /// Its header.
    pub header: MadHeader,
    /// What is behind.
    pub content: ManagementContent,
    /// What the private data of a connection manager's message begins with, where that is the RDMA connection
    /// manager's; for the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma_cm: Option<RdmaCm>,
}

/// What a management datagram has behind its header.
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
pub struct Checksum {
    /// As captured.
    pub value: Octets<4>,
    /// What to think of it.
    pub verdict: Verdict,
}

/// What to think of a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is what it should be, and is computed anew when the packet is built.
    Right,
    /// It is not.
    Wrong,
    /// Both sides agreed not to use it.
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
    /// Its octets.
    pub payload: TcpPayload,
    /// What it completes in the connection's streams, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub completes: Vec<Pdu>,
}

/// The octets of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TcpPayload {
    /// None.
    None,
    /// A stretch of an MPA stream.
    Stream {
        /// The connection, counted from 0.
        connection: u32,
        /// Who sends.
        side: Side,
        /// Octets of the stream before it.
        offset: u64,
        /// Octets.
        len: u32,
    },
    /// Of no MPA stream, or of one but not where they fit.
    Octets(Hex),
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Who opened the connection, or where that was not captured, who was seen first.
    Initiator,
    /// The other.
    Responder,
}

/// A unit of an MPA stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pdu {
    /// The connection, counted from 0.
    pub connection: u32,
    /// Who sends.
    pub side: Side,
    /// Octets of the stream before it.
    pub offset: u64,
    /// What it is.
    pub unit: Unit,
}

/// What a unit of an MPA stream is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A request or reply.
    Start(Start),
    /// A frame.
    Fpdu(Box<Fpdu>),
    /// What cannot be taken apart.
    Octets {
        /// Why, where something is wrong.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        complaint: Option<String>,
        /// The octets.
        octets: Hex,
    },
}

/// MPA's request or reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// What it begins with.
    pub header: StartHeader,
    /// With revision 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enhanced: Option<Enhanced>,
    /// The program's.
    #[serde(default, skip_serializing_if = "Hex::is_empty")]
    pub private_data: Hex,
}

/// MPA's frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fpdu {
    /// The message in words; for the reader.
    pub opcode: String,
    /// DDP's header; none where the segment does not parse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<SegmentHeader>,
    /// What is behind it.
    pub body: SegmentBody,
    /// The markers in the frame, where there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub markers: Option<Markers>,
    /// The pad, where it is not zeros.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad: Option<Hex>,
    /// The checksum.
    pub crc: Checksum,
}

/// The markers in a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Markers {
    /// Octets of the stream between the beginning of full operation and the frame.
    pub position: u64,
    /// The markers.
    pub markers: Vec<Octets<4>>,
}

/// What a DDP segment has behind its header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentBody {
    /// The program's octets.
    Data(Hex),
    /// Of an Atomic Request.
    AtomicRequest(AtomicRequest),
    /// Of an Atomic Response.
    AtomicResponse(AtomicResponse),
    /// The program's eight octets.
    Immediate(Octets<8>),
    /// Of an RDMA Read Request.
    ReadRequest(ReadRequest),
    /// Of a Terminate.
    Terminate(Terminate),
    /// Of an extension.
    Extension {
        /// Which.
        header: ExtensionHeader,
        /// What it has behind.
        data: Hex,
    },
    /// A whole segment that does not parse.
    Undecoded(Hex),
}

/// A Terminate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terminate {
    /// What it begins with.
    pub control: TerminateControl,
    /// The code in words; for the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meaning: Option<String>,
    /// Octets of the segment that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment_len: Option<u16>,
    /// DDP's header of that segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ddp: Option<SegmentHeader>,
    /// RDMAP's header of that segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdmap: Option<TerminatedRequest>,
    /// What is behind.
    #[serde(default, skip_serializing_if = "Hex::is_empty")]
    pub rest: Hex,
}

/// Octets, written as hexadecimal digits.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Hex(pub Vec<u8>);

impl Hex {
    /// Whether there is none.
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
    /// The packet of RoCEv2, if it is one.
    pub fn roce(&self) -> Option<&Roce> {
        match &self.content {
            Content::Roce(roce) => Some(roce),
            _ => None,
        }
    }

    /// What it completes in MPA streams.
    pub fn completes(&self) -> &[Pdu] {
        match &self.content {
            Content::Tcp(segment) => &segment.completes,
            _ => &[],
        }
    }
}

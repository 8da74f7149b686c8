//! Counts of the packets and checksums of a capture.

use polyverbs_wire::rds::{CONGESTION_MAP_BYTES, HEADER};
use serde::{Deserialize, Serialize};

use crate::form::{
    Checksum, Content, Fpdu, Packet, Payload, Pdu, Rds, RdsMessage, Roce, SegmentBody, TcpPayload,
    Unit, Verdict,
};

/// Counts of a dissected capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// All packets of the capture.
    pub packets: u64,
    /// Datagrams of RoCEv2. A datagram of several joined packets counts once.
    pub roce: u64,
    /// RoCEv1 packets.
    #[serde(default)]
    pub roce_v1: u64,
    /// Packets of RoCEv2 in joined datagrams.
    #[serde(default)]
    pub joined: u64,
    /// IP packets that were reassembled from fragments.
    #[serde(default)]
    pub reassembled: u64,
    /// RoCE packets whose ICRC is missing because the capture has cut them.
    #[serde(default)]
    pub cut: u64,
    /// TCP segments with bytes of MPA streams.
    pub iwarp: u64,
    /// The ICRCs of RoCE packets.
    pub icrc: Tally,
    /// The CRC-32Cs of FPDUs.
    pub crc32c: Tally,
    /// Packets with at least one complaint, and streams with one at the end of the capture.
    pub complaints: u64,
    /// Ranges of streams that were not parsed when the capture ended, without a fault.
    pub unfinished: u64,
    /// How often each opcode occurred, sorted by protocol and name.
    pub opcodes: Vec<OpcodeCount>,
    /// How many packets were not dissected further, for each reason.
    #[serde(default)]
    pub passed_over: Vec<PassedOver>,
}

/// The number of packets that were not dissected further for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassedOver {
    /// The unsupported protocol, or the missing headers, in words.
    pub reason: String,
    /// The number of packets.
    pub count: u64,
}

/// How many checksums were right and wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tally {
    /// Checksums that are right.
    pub right: u64,
    /// Checksums that are wrong.
    pub wrong: u64,
    /// Checksum fields that are not used, because the protocol or its two ends have agreed on that.
    pub unused: u64,
}

/// How often an opcode occurred.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpcodeCount {
    /// The protocol to which the opcode belongs.
    pub protocol: Protocol,
    /// The name of the opcode.
    pub opcode: String,
    /// How many packets, segments or messages had this opcode.
    pub count: u64,
    /// How many payload bytes they had together.
    pub octets: u64,
}

/// A protocol with opcodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// RoCEv1 packets, by the opcode of the BTH.
    RoceV1,
    /// RoCEv2 packets, by the opcode of the BTH.
    RoceV2,
    /// CM messages, which are payload of RoCE packets.
    Cm,
    /// MPA requests and replies.
    Mpa,
    /// DDP segments of RDMAP messages.
    Rdmap,
    /// RDS messages, each in one or several SENDs.
    Rds,
}

impl Protocol {
    /// The name of the protocol.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoceV1 => "RoCEv1",
            Self::RoceV2 => "RoCEv2",
            Self::Cm => "CM",
            Self::Mpa => "MPA",
            Self::Rdmap => "RDMAP",
            Self::Rds => "RDS",
        }
    }
}

impl Summary {
    /// Returns whether the capture has no complaint: everything was parsed, and every checksum in use was right.
    pub const fn is_clean(&self) -> bool {
        self.complaints == 0
    }

    pub(crate) fn packet(&mut self, packet: &Packet) {
        self.packets += 1;
        self.complaints += u64::from(!packet.complaints.is_empty());
        self.content(&packet.content);
        if let Some(whole) = &packet.reassembled {
            self.reassembled += 1;
            self.content(&whole.content);
        }
        if let Some(reason) = &packet.passed_over {
            self.pass_over(reason, 1);
        }
    }

    fn content(&mut self, content: &Content) {
        match content {
            Content::Roce(roce) => {
                *self.roce_packets(roce.udp.is_some()) += 1;
                self.roce(roce);
            }
            Content::Joined(joined) => {
                self.roce += 1;
                self.joined += joined.packets.len() as u64;
                joined.packets.iter().for_each(|roce| self.roce(roce));
            }
            Content::BadRoce(bad) => *self.roce_packets(bad.udp.is_some()) += 1,
            Content::Tcp(segment) => {
                let has = matches!(segment.payload, TcpPayload::Stream { .. });
                self.iwarp += u64::from(has);
                segment.completes.iter().for_each(|pdu| self.pdu(pdu));
            }
            Content::Fragment(_) | Content::Other(_) => {}
        }
    }

    fn roce_packets(&mut self, has_udp: bool) -> &mut u64 {
        if has_udp {
            &mut self.roce
        } else {
            &mut self.roce_v1
        }
    }

    pub(crate) fn pass_over(&mut self, reason: &str, count: u64) {
        let place = self
            .passed_over
            .binary_search_by(|known| known.reason.as_str().cmp(reason));
        match place {
            Ok(at) => self.passed_over[at].count += count,
            Err(at) => {
                let reason = reason.to_owned();
                self.passed_over.insert(at, PassedOver { reason, count });
            }
        }
    }

    pub(crate) fn unfinished(&mut self, left: &[Pdu]) {
        let wrong = left.iter().filter(|pdu| pdu.complaint().is_some()).count() as u64;
        self.complaints += wrong;
        self.unfinished += left.len() as u64 - wrong;
    }

    fn roce(&mut self, roce: &Roce) {
        match &roce.icrc {
            Some(icrc) => self.icrc.count(icrc),
            None => self.cut += 1,
        }
        let octets = match &roce.payload {
            Payload::Data(data) => data.0.len(),
            Payload::Mad(mad) => {
                if let crate::form::ManagementContent::Cm(message) = &mad.content {
                    self.opcode(Protocol::Cm, message.name(), message.private_data().len());
                }
                polyverbs_wire::mad::MAD_LEN
            }
            Payload::Rds(rds) => {
                self.rds(rds);
                rds_len(rds)
            }
        };
        let protocol = if roce.udp.is_some() {
            Protocol::RoceV2
        } else {
            Protocol::RoceV1
        };
        self.opcode(protocol, &roce.opcode, octets);
    }

    fn pdu(&mut self, pdu: &Pdu) {
        match &pdu.unit {
            Unit::Start(start) => {
                self.opcode(Protocol::Mpa, start.kind_name(), start.private_data.0.len());
            }
            Unit::Fpdu(fpdu) => {
                self.crc32c.count(&fpdu.crc);
                if let SegmentBody::Rds(rds) = &fpdu.body {
                    self.rds(rds);
                }
                self.opcode(Protocol::Rdmap, &fpdu.opcode, payload_len(fpdu));
            }
            Unit::Octets { .. } => {}
        }
    }

    fn rds(&mut self, rds: &Rds) {
        let (opcode, octets) = match &rds.completes {
            Some(RdsMessage::Data { length }) => ("Message", *length as usize),
            Some(RdsMessage::CongestionMap(_)) => ("Congestion map", CONGESTION_MAP_BYTES),
            Some(RdsMessage::Acknowledge) => ("Acknowledge", 0),
            None => return,
        };
        self.opcode(Protocol::Rds, opcode, octets);
    }

    fn opcode(&mut self, protocol: Protocol, opcode: &str, octets: usize) {
        let place = self
            .opcodes
            .binary_search_by(|known| (known.protocol, &known.opcode[..]).cmp(&(protocol, opcode)));
        let at = place.unwrap_or_else(|at| {
            let new = OpcodeCount {
                protocol,
                opcode: opcode.to_owned(),
                count: 0,
                octets: 0,
            };
            self.opcodes.insert(at, new);
            at
        });
        self.opcodes[at].count += 1;
        self.opcodes[at].octets += octets as u64;
    }
}

impl Tally {
    fn count(&mut self, checksum: &Checksum) {
        match checksum.verdict {
            Verdict::Right => self.right += 1,
            Verdict::Wrong => self.wrong += 1,
            Verdict::Unused => self.unused += 1,
        }
    }
}

fn payload_len(fpdu: &Fpdu) -> usize {
    match &fpdu.body {
        SegmentBody::Data(data) | SegmentBody::Extension { data, .. } => data.0.len(),
        SegmentBody::Rds(rds) => rds_len(rds),
        SegmentBody::Immediate(_) => 8,
        _ => 0,
    }
}

fn rds_len(rds: &Rds) -> usize {
    rds.header.as_ref().map_or(0, |_| HEADER) + rds.data.0.len()
}

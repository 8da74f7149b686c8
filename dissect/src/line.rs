//! Prints a packet in one line.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use polyverbs_wire::iwarp::SegmentHeader;
use polyverbs_wire::mad::cm::{Message, reason};
use polyverbs_wire::net::{Tcp, protocol};
use polyverbs_wire::rds::{ConnectData, Flags};
use polyverbs_wire::roce::Headers;

use crate::form::{
    Content, Fpdu, Ip, Layer, Link, Management, ManagementContent, Packet, Payload, Pdu, Rds,
    RdsMessage, Roce, SegmentBody, Start, TcpPayload, TcpSegment, Time, Unit, Verdict,
};

/// Returns a packet in one line, without its complaints: number, time since `first`, addresses, headers and content.
pub fn line(packet: &Packet, first: Time) -> String {
    let mut line = format!(
        "{:>5} {:>12.6} ",
        packet.number,
        seconds(packet.time, first)
    );
    if let Some(ip) = packet.innermost_ip() {
        let (source, destination) = addresses(ip);
        let _ = write!(line, " {:<24}", format!("{source} > {destination}"));
    }
    let _ = write!(line, " {}", headers(packet).join(" "));
    let content = about(packet);
    if !content.is_empty() {
        let _ = write!(line, "  {content}");
    }
    if let Some(whole) = &packet.reassembled {
        let names = headers(whole).join(" ");
        let _ = write!(line, ", completes {names}  {}", about(whole));
    }
    if let Some(reason) = &packet.passed_over {
        let _ = write!(line, ", passed over: {reason}");
    }
    line
}

/// Returns the source and the destination address of an IP header.
pub fn addresses(ip: &Ip) -> (IpAddr, IpAddr) {
    match ip {
        Ip::V4 { header, .. } => (
            Ipv4Addr::from(header.source.0).into(),
            Ipv4Addr::from(header.destination.0).into(),
        ),
        Ip::V6 { header, .. } => (
            Ipv6Addr::from(header.source.0).into(),
            Ipv6Addr::from(header.destination.0).into(),
        ),
        Ip::Grh { header } => (
            Ipv6Addr::from(header.sgid.0).into(),
            Ipv6Addr::from(header.dgid.0).into(),
        ),
    }
}

/// Returns the names of a packet's headers, the outermost first.
pub fn headers(packet: &Packet) -> Vec<&'static str> {
    let mut names = match packet.link {
        Link::Ethernet(_) => vec!["Ethernet"],
        Link::Sll(_) => vec!["SLL"],
        Link::Sll2(_) => vec!["SLL2"],
        Link::Loopback(_) => vec!["loopback"],
        Link::Raw | Link::Other(_) | Link::Undescribed | Link::Short => vec![],
    };
    names.extend(packet.layers.iter().map(layer_name));
    names.extend(packet.ip.as_ref().map(ip_name));
    match &packet.content {
        Content::Roce(roce) => {
            names.extend(roce.udp.map(|_| "UDP"));
            names.extend(roce_names(roce));
        }
        Content::Joined(joined) => {
            names.push("UDP");
            names.extend(joined.packets.iter().flat_map(roce_names));
            names.dedup();
        }
        Content::BadRoce(bad) => names.extend(bad.udp.map(|_| "UDP")),
        Content::Tcp(segment) => {
            names.push("TCP");
            let units = segment.completes.iter().map(|pdu| &pdu.unit);
            let is_mpa = matches!(segment.payload, TcpPayload::Stream { .. });
            names.extend(is_mpa.then_some("MPA"));
            let bodies: Vec<_> = units
                .filter_map(|unit| match unit {
                    Unit::Fpdu(fpdu) => Some(&fpdu.body),
                    _ => None,
                })
                .collect();
            if !bodies.is_empty() {
                names.extend(["DDP", "RDMAP"]);
            }
            let begins_rds =
                |body: &&SegmentBody| matches!(body, SegmentBody::Rds(rds) if rds.header.is_some());
            names.extend(bodies.into_iter().find(begins_rds).map(|_| "RDS"));
        }
        Content::Fragment(_) | Content::Other(_) => names.extend(other(packet)),
    }
    names
}

fn layer_name(layer: &Layer) -> &'static str {
    match layer {
        Layer::Erspan2(_) | Layer::Erspan3 { .. } => "ERSPAN",
        Layer::Ethernet(_) => "Ethernet",
        Layer::Geneve { .. } => "Geneve",
        Layer::Gre { .. } => "GRE",
        Layer::Ip(ip) => ip_name(ip),
        Layer::Mpls(_) => "MPLS",
        Layer::Pppoe(_) => "PPPoE",
        Layer::Snap(_) => "SNAP",
        Layer::Udp(_) => "UDP",
        Layer::Vlan(_) => "VLAN",
        Layer::Vxlan(_) => "VXLAN",
    }
}

fn ip_name(ip: &Ip) -> &'static str {
    match ip {
        Ip::V4 { .. } => "IPv4",
        Ip::V6 { .. } => "IPv6",
        Ip::Grh { .. } => "GRH",
    }
}

fn roce_names(roce: &Roce) -> Vec<&'static str> {
    let mut names = vec!["BTH"];
    let facts = roce.headers.bth.opcode.facts();
    names.extend(facts.into_iter().flat_map(|facts| facts.headers.names()));
    match &roce.payload {
        Payload::Mad(management) => {
            names.push("MAD");
            names.extend(management.rdma_cm.map(|_| "RDMA-CM"));
        }
        Payload::Rds(rds) => names.extend(rds.header.iter().map(|_| "RDS")),
        Payload::Data(_) => {}
    }
    names
}

// Returns the names of well-known protocols other than RoCEv2 and iWARP.
fn other(packet: &Packet) -> Option<&'static str> {
    const ARP: u16 = 0x0806;
    let number = match &packet.ip {
        Some(Ip::V4 { header, .. }) => header.protocol,
        Some(Ip::V6 { header, .. }) => header.next_header,
        Some(Ip::Grh { .. }) => return None,
        None => {
            let is_arp = matches!(packet.link, Link::Ethernet(header) if header.ethertype == ARP);
            return is_arp.then_some("ARP");
        }
    };
    match number {
        1 => Some("ICMP"),
        58 => Some("ICMPv6"),
        protocol::UDP => Some("UDP"),
        protocol::TCP => Some("TCP"),
        _ => None,
    }
}

fn about(packet: &Packet) -> String {
    match &packet.content {
        Content::Roce(roce) => about_roce(roce),
        Content::Joined(joined) => {
            let packets: Vec<_> = joined.packets.iter().map(about_roce).collect();
            format!("{} joined: {}", packets.len(), packets.join("; "))
        }
        Content::BadRoce(bad) => format!("{} octets", bad.octets.0.len()),
        Content::Tcp(segment) => about_segment(segment),
        Content::Fragment(octets) => format!("fragment of {} octets", octets.0.len()),
        Content::Other(octets) => format!("{} octets", octets.0.len()),
    }
}

fn about_roce(roce: &Roce) -> String {
    let Headers { bth, .. } = &roce.headers;
    let mut text = format!("{}  QP {:#x} PSN {:#x}", roce.opcode, bth.dest_qp, bth.psn);
    let flags = [
        (bth.ack_req, "ack-req"),
        (bth.solicited, "solicited"),
        (bth.fecn, "FECN"),
        (bth.becn, "BECN"),
    ];
    for (_, name) in flags.into_iter().filter(|(set, _)| *set) {
        let _ = write!(text, " {name}");
    }
    if let Some(reth) = &roce.headers.reth {
        let _ = write!(
            text,
            ", {} octets at {:#x}, rkey {:#x}",
            reth.dma_length, reth.va, reth.rkey
        );
    }
    if let Some(ieth) = &roce.headers.ieth {
        let _ = write!(text, ", invalidates {:#x}", ieth.rkey);
    }
    if let Some(imm_dt) = &roce.headers.imm_dt {
        let _ = write!(text, ", immediate {}", imm_dt.immediate);
    }
    if let Some(aeth) = &roce.headers.aeth {
        let _ = write!(text, ", {} MSN {}", aeth.syndrome, aeth.msn);
    }
    match &roce.payload {
        Payload::Data(data) => {
            let len = data.0.len();
            let _ = match roce.cut_from {
                Some(whole) if whole as usize > len => {
                    write!(text, ", {len} of {whole} octets captured")
                }
                _ if len == 0 => Ok(()),
                _ => write!(text, ", {len} octets"),
            };
        }
        Payload::Mad(management) => {
            let _ = write!(text, ", {}", about_management(management));
            if let Some(data) = &management.rds {
                let _ = write!(text, ", {}", about_connect(data));
            }
        }
        Payload::Rds(rds) => {
            let _ = write!(text, ", {}", about_rds(rds));
        }
    }
    text + match roce.icrc.map(|icrc| icrc.verdict) {
        Some(Verdict::Right) => ", ICRC right",
        Some(Verdict::Wrong | Verdict::Unused) => ", ICRC wrong",
        None => ", cut",
    }
}

fn about_management(management: &Management) -> String {
    let header = &management.header;
    match &management.content {
        ManagementContent::Cm(Message::Rej(rej)) => {
            let name = reason::name(rej.reason).unwrap_or("unknown reason");
            format!("CM REJ ({}, {name})", rej.reason)
        }
        ManagementContent::Cm(message) => format!("CM {}", message.name()),
        ManagementContent::Data(_) => format!(
            "class {:#x} method {:#x} attribute {:#x}",
            header.management_class, header.method, header.attribute_id
        ),
    }
}

fn about_connect(data: &ConnectData) -> String {
    let mut text = format!("RDS {}, ack {}", data.version, data.ack_sequence);
    let others = [
        ("class", data.tos.into()),
        ("member", data.member.into()),
        ("credit", data.credit),
    ];
    for (name, number) in others {
        if number != 0 {
            let _ = write!(text, ", {name} {number}");
        }
    }
    text
}

fn about_rds(rds: &Rds) -> String {
    let mut text = String::new();
    if let Some(header) = &rds.header {
        let _ = write!(
            text,
            "RDS {} > {} sequence {} ack {}, ",
            header.source_port, header.destination_port, header.sequence, header.ack
        );
        for (name, _) in Flags::from_bits_retain(header.flags).iter_names() {
            let _ = write!(text, "{name}, ");
        }
        if header.credit != 0 {
            let _ = write!(text, "credit {}, ", header.credit);
        }
        for extension in &header.extensions {
            let _ = write!(text, "{extension:?}, ");
        }
    }
    let _ = write!(text, "{} octets", rds.data.0.len());
    match &rds.completes {
        Some(RdsMessage::Data { length }) => {
            let _ = write!(text, ", a message of {length} is whole");
        }
        Some(RdsMessage::CongestionMap(ports)) => {
            let mut shown: Vec<_> = ports.iter().take(8).map(u16::to_string).collect();
            if ports.is_empty() {
                shown.push("none".to_owned());
            } else if ports.len() > shown.len() {
                shown.push(format!("and {} more", ports.len() - shown.len()));
            }
            let _ = write!(text, ", congested ports: {}", shown.join(" "));
        }
        Some(RdsMessage::Acknowledge) => text += ", acknowledge only",
        None => {}
    }
    text
}

fn about_segment(segment: &TcpSegment) -> String {
    let tcp = &segment.header;
    if !segment.completes.is_empty() {
        let units: Vec<_> = segment.completes.iter().map(about_pdu).collect();
        return units.join("; ");
    }
    let octets = match &segment.payload {
        TcpPayload::None => return flags(tcp),
        TcpPayload::Stream { len, .. } => *len as usize,
        TcpPayload::Octets(octets) => octets.0.len(),
    };
    format!("{} {octets} octets", flags(tcp))
}

fn flags(tcp: &Tcp) -> String {
    let flags = [
        (tcp.syn, "SYN"),
        (tcp.ack, "ACK"),
        (tcp.fin, "FIN"),
        (tcp.rst, "RST"),
    ];
    let set = flags
        .into_iter()
        .filter(|(set, _)| *set)
        .map(|(_, name)| name);
    set.collect::<Vec<_>>().join(" ")
}

fn about_pdu(pdu: &Pdu) -> String {
    match &pdu.unit {
        Unit::Start(start) => about_start(start),
        Unit::Fpdu(fpdu) => about_fpdu(fpdu),
        Unit::Octets { octets, .. } => format!("{} octets of the stream", octets.0.len()),
    }
}

fn about_start(start: &Start) -> String {
    let header = &start.header;
    let mut text = format!("MPA {}, revision {}", start.kind_name(), header.revision);
    let flags = [
        (header.markers, "markers"),
        (header.crc, "CRC"),
        (header.reject, "rejected"),
    ];
    for (_, name) in flags.into_iter().filter(|(set, _)| *set) {
        let _ = write!(text, ", {name}");
    }
    if let Some(enhanced) = &start.enhanced {
        let _ = write!(text, ", IRD {} ORD {}", enhanced.ird, enhanced.ord);
    }
    if !start.private_data.is_empty() {
        let _ = write!(text, ", {} octets", start.private_data.0.len());
    }
    if let Some(data) = &start.rds {
        let _ = write!(text, ", {}", about_connect(data));
    }
    text
}

fn about_fpdu(fpdu: &Fpdu) -> String {
    let mut text = fpdu.opcode.clone();
    match &fpdu.header {
        Some(SegmentHeader::Tagged(header)) => {
            let _ = write!(text, "  STag {:#x} TO {:#x}", header.stag, header.to);
        }
        Some(SegmentHeader::Untagged(header)) => {
            let _ = write!(
                text,
                "  QN {} MSN {} MO {}",
                header.qn, header.msn, header.mo
            );
            let invalidates = header.opcode.facts().is_some_and(|facts| facts.invalidates);
            if invalidates {
                let _ = write!(text, ", invalidates {:#x}", header.invalidate_stag);
            }
        }
        None => {}
    }
    match &fpdu.body {
        SegmentBody::Data(data) => {
            let _ = write!(text, ", {} octets", data.0.len());
        }
        SegmentBody::Rds(rds) => {
            let _ = write!(text, ", {}", about_rds(rds));
        }
        SegmentBody::ReadRequest(read) => {
            let _ = write!(
                text,
                ", {} octets from STag {:#x} TO {:#x}",
                read.length, read.source_stag, read.source_to
            );
        }
        SegmentBody::Terminate(terminate) => {
            let control = &terminate.control;
            let _ = write!(
                text,
                ", {}/{}/{:02x} {}",
                control.layer,
                control.etype,
                control.code,
                terminate.meaning.as_deref().unwrap_or("")
            );
        }
        _ => {}
    }
    text + match fpdu.crc.verdict {
        Verdict::Right => ", CRC right",
        Verdict::Wrong => ", CRC wrong",
        Verdict::Unused => "",
    }
}

fn seconds(time: Time, first: Time) -> f64 {
    let seconds = time.seconds as f64 - first.seconds as f64;
    seconds + (f64::from(time.nanoseconds) - f64::from(first.nanoseconds)) / 1e9
}

//! Dissects a capture, packet by packet.

use std::collections::HashMap;

use polyverbs_wire::layout::Header;
use polyverbs_wire::net::{
    Ethernet, Ipv4, Ipv6, Loopback, ROCE_PORT, Sll, Sll2, Tcp, Udp, Vlan, ethertype, protocol,
};

use crate::connection::Connection;
use crate::file::{Captured, LinkType};
use crate::form::{BadRoce, Content, Hex, Ip, Link, Packet, Pdu, Side, TcpPayload, TcpSegment};
use crate::rds::{self, QueuePairs};
use crate::roce;
use crate::summary::Summary;

/// Dissects a capture: call [`packet`](Self::packet) for each packet, then [`finish`](Self::finish).
#[derive(Debug, Default)]
pub struct Dissector {
    connections: Vec<Connection>,
    /// The initiator of the connection between these endpoints, and the connection's index.
    by_ends: HashMap<Ends, (End, usize)>,
    rds: QueuePairs,
    summary: Summary,
}

type End = (Vec<u8>, u16);
type Ends = (End, End);

/// Most VLAN tags of a packet.
const MAX_VLANS: usize = 4;

impl Dissector {
    /// A dissector before the first packet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Dissects the next packet.
    pub fn packet(&mut self, captured: &Captured) -> Packet {
        let mut complaints = Vec::new();
        let (link, vlans, ethertype, octets) = below_ip(captured);
        let (ip, content, trailer) = match ip(ethertype, octets) {
            Some((ip, octets)) => self.within(ip, octets, &mut complaints),
            None => (None, Content::Other(octets.into()), Hex::default()),
        };
        let is_cut = (captured.octets.len() as u64) < u64::from(captured.original_len);
        if is_cut && !complaints.is_empty() {
            complaints.push("the capture has only the front of the packet".to_owned());
        }
        let packet = Packet {
            number: self.summary.packets + 1,
            time: captured.time.into(),
            original_len: is_cut.then_some(captured.original_len),
            link,
            vlans,
            ip,
            content,
            trailer,
            complaints,
        };
        self.summary.packet(&packet);
        packet
    }

    /// What is left of the streams, and the summary.
    pub fn finish(mut self) -> (Vec<Pdu>, Summary) {
        let left: Vec<_> = self
            .connections
            .iter()
            .flat_map(Connection::finish)
            .collect();
        self.summary.unfinished(&left);
        (left, self.summary)
    }

    /// The summary so far.
    pub const fn summary(&self) -> &Summary {
        &self.summary
    }

    // Dissects what follows an IP header. `octets` are those that the capture has.
    fn within(
        &mut self,
        ip: Ip,
        octets: &[u8],
        complaints: &mut Vec<String>,
    ) -> (Option<Ip>, Content, Hex) {
        let announced = announced(&ip).unwrap_or(octets.len());
        let (octets, trailer) = octets.split_at(announced.min(octets.len()));
        let cut = announced - octets.len();
        let taken = match transport(&ip) {
            Some(protocol::UDP) => datagram(&ip, octets, cut, &mut self.rds, complaints),
            Some(protocol::TCP) => self
                .segment(&ip, octets, cut, complaints)
                .map(|content| (content, &[][..])),
            _ => None,
        };
        let (content, rest) = taken.unwrap_or((Content::Other(octets.into()), &[]));
        (Some(ip), content, Hex([rest, trailer].concat()))
    }

    fn segment(
        &mut self,
        ip: &Ip,
        octets: &[u8],
        cut: usize,
        complaints: &mut Vec<String>,
    ) -> Option<Content> {
        let (header, rest) = Tcp::split(octets)?;
        let options = usize::from(header.header_words).checked_sub(5)? * 4;
        let (options, octets) = rest.split_at_checked(options)?;
        let (connection, side) = self.connection(ip, &header);
        // A truncated segment would leave a gap in the stream: none of it is inserted.
        let octets_for_stream = if cut == 0 { octets } else { &[] };
        let (payload, completes) = connection.segment(side, &header, octets_for_stream, complaints);
        let payload = if cut == 0 {
            payload
        } else {
            TcpPayload::Octets(octets.into())
        };
        complaints.extend(completes.iter().filter_map(Pdu::complaint));
        Some(Content::Tcp(TcpSegment {
            header,
            options: options.into(),
            payload,
            completes,
        }))
    }

    fn connection(&mut self, ip: &Ip, tcp: &Tcp) -> (&mut Connection, Side) {
        let (source, destination) = addresses(ip);
        let (from, to) = (
            (source, tcp.source_port),
            (destination, tcp.destination_port),
        );
        let ends = if from < to {
            (from.clone(), to)
        } else {
            (to, from.clone())
        };
        let known = self.by_ends.get(&ends);
        let known = known.filter(|(_, at)| {
            let connection = self.connections.get(*at);
            connection.is_some_and(|connection| !connection.is_reopened_by(tcp))
        });
        let (initiator, at) = match known {
            Some(known) => known.clone(),
            None => {
                let at = self.connections.len();
                // A SYN-ACK whose SYN was not captured comes from the responder.
                let initiator = match (tcp.syn && tcp.ack, ends.0 == from) {
                    (true, true) => ends.1.clone(),
                    (true, false) => ends.0.clone(),
                    (false, _) => from.clone(),
                };
                let responder = if initiator == ends.0 {
                    &ends.1
                } else {
                    &ends.0
                };
                let rds = rds::is_v6(responder.1);
                self.connections.push(Connection::new(at as u32, rds));
                self.by_ends.insert(ends, (initiator.clone(), at));
                (initiator, at)
            }
        };
        let side = if initiator == from {
            Side::Initiator
        } else {
            Side::Responder
        };
        (&mut self.connections[at], side)
    }
}

// The headers below IP, the Ethernet type of what follows, and the bytes behind.
fn below_ip(captured: &Captured) -> (Link, Vec<Vlan>, u16, &[u8]) {
    let octets = &captured.octets[..];
    let first = match captured.link_type {
        LinkType::Ethernet => Ethernet::split(octets)
            .map(|(header, rest)| (Link::Ethernet(header), header.ethertype, rest)),
        LinkType::Sll => {
            Sll::split(octets).map(|(header, rest)| (Link::Sll(header), header.protocol, rest))
        }
        LinkType::Sll2 => {
            Sll2::split(octets).map(|(header, rest)| (Link::Sll2(header), header.protocol, rest))
        }
        LinkType::Loopback => Loopback::split(octets).map(|(header, rest)| {
            let ethertype = header.ethertype().unwrap_or(0);
            (Link::Loopback(header), ethertype, rest)
        }),
        LinkType::Other(number) => Some((Link::Other(number), 0, octets)),
        LinkType::Undescribed => Some((Link::Undescribed, 0, octets)),
        LinkType::Raw => match octets.first().map(|octet| octet >> 4) {
            Some(6) => Some((Link::Raw, ethertype::IPV6, octets)),
            _ => Some((Link::Raw, ethertype::IPV4, octets)),
        },
    };
    let Some((link, mut ethertype, mut octets)) = first else {
        return (Link::Short, Vec::new(), 0, octets);
    };
    let mut vlans = Vec::new();
    while matches!(ethertype, ethertype::VLAN | ethertype::SERVICE_VLAN)
        && vlans.len() < MAX_VLANS
        && let Some((vlan, rest)) = Vlan::split(octets)
    {
        vlans.push(vlan);
        (ethertype, octets) = (vlan.ethertype, rest);
    }
    (link, vlans, ethertype, octets)
}

fn ip(ethertype: u16, octets: &[u8]) -> Option<(Ip, &[u8])> {
    match ethertype {
        ethertype::IPV4 => {
            let (header, rest) = Ipv4::split(octets)?;
            let options = usize::from(header.header_words).checked_sub(5)? * 4;
            let (options, rest) = rest.split_at_checked(options)?;
            let options = options.into();
            (header.version == 4).then_some((Ip::V4 { header, options }, rest))
        }
        ethertype::IPV6 => {
            let (header, rest) = Ipv6::split(octets)?;
            (header.version == 6).then_some((Ip::V6 { header }, rest))
        }
        _ => None,
    }
}

// The bytes behind the header, by its length; `None` where that is 0, as in captures of packets that an adapter segments.
fn announced(ip: &Ip) -> Option<usize> {
    let (total, own) = match ip {
        Ip::V4 { header, .. } => (header.total_length, 4 * u16::from(header.header_words)),
        Ip::V6 { header } => (header.payload_length, 0),
    };
    (total != 0).then(|| total.saturating_sub(own).into())
}

// What follows the header; `None` for a fragment.
fn transport(ip: &Ip) -> Option<u8> {
    match ip {
        Ip::V4 { header, .. } => {
            let is_whole = !header.more_fragments && header.fragment_offset == 0;
            is_whole.then_some(header.protocol)
        }
        Ip::V6 { header } => Some(header.next_header),
    }
}

fn addresses(ip: &Ip) -> (Vec<u8>, Vec<u8>) {
    match ip {
        Ip::V4 { header, .. } => (header.source.0.to_vec(), header.destination.0.to_vec()),
        Ip::V6 { header } => (header.source.0.to_vec(), header.destination.0.to_vec()),
    }
}

// Dissects a datagram to the port of RoCEv2, and returns what follows it.
fn datagram<'o>(
    ip: &Ip,
    octets: &'o [u8],
    cut: usize,
    rds: &mut QueuePairs,
    complaints: &mut Vec<String>,
) -> Option<(Content, &'o [u8])> {
    let (udp, rest) = Udp::split(octets)?;
    if udp.destination_port != ROCE_PORT {
        return None;
    }
    let len = usize::from(udp.length).checked_sub(Udp::LEN);
    let fits = len.and_then(|len| rest.split_at_checked(len));
    Some(match fits {
        Some((datagram, rest)) if cut == 0 => {
            (roce::dissect(ip, &udp, datagram, rds, complaints), rest)
        }
        _ => {
            complaints.push("no packet of RoCEv2: UDP's length does not fit".to_owned());
            let octets = rest.into();
            (Content::BadRoce(BadRoce { udp, octets }), &[])
        }
    })
}

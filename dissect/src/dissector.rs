//! Dissects a capture, packet by packet.

use std::collections::HashMap;

use polyverbs_wire::layout::Header;
use polyverbs_wire::net::{Tcp, Udp};

use crate::connection::Connection;
use crate::file::{Captured, LinkType};
use crate::form::{BadRoce, Content, Hex, Ip, Packet, Pdu, Side, TcpPayload, TcpSegment};
use crate::fragments::{self, Fragments};
use crate::layers::{Layers, Reason, Transport};
use crate::rds::{self, QueuePairs};
use crate::roce::{self, Datagram};
use crate::summary::Summary;

/// Dissects the packets of a capture. Call [`packet`](Self::packet) for each packet in order, then
/// [`finish`](Self::finish).
#[derive(Debug, Default)]
pub struct Dissector {
    connections: Vec<Connection>,
    /// The initiator of the newest connection between two endpoints, and the connection's index.
    by_ends: HashMap<Ends, (End, usize)>,
    rds: QueuePairs,
    fragments: Fragments,
    /// Whether the capture has cut at least one packet.
    has_cut: bool,
    summary: Summary,
}

type End = (Vec<u8>, u16);
type Ends = (End, End);

impl Dissector {
    /// Creates a dissector that has seen no packet yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Dissects the next packet of the capture.
    pub fn packet(&mut self, captured: &Captured) -> Packet {
        let mut packet = self.dissect(captured, false);
        let whole = self.fragments.poll_whole();
        packet.reassembled = whole.map(|octets| {
            let len = octets.len() as u32;
            let captured = Captured {
                time: captured.time,
                link_type: LinkType::Raw,
                original_len: len,
                octets,
            };
            let mut whole = self.dissect(&captured, true);
            packet.complaints.append(&mut whole.complaints);
            packet.passed_over = whole.passed_over.take();
            Box::new(whole)
        });
        self.summary.packet(&packet);
        packet
    }

    // Dissects a packet. A reassembled packet that is a fragment again is not reassembled: a peer chooses how deep its
    // tunnels are.
    fn dissect(&mut self, captured: &Captured, is_reassembled: bool) -> Packet {
        let mut complaints = Vec::new();
        let (layers, transport) = Layers::of(captured);
        let rest = layers.rest();
        let content = transport
            .and_then(|transport| match transport {
                Transport::Fragment(_) if is_reassembled => Err("a fragment in fragments".into()),
                transport => self.content(&layers, transport, &mut complaints),
            })
            .map(|(content, passed_over, len)| (content, passed_over, &rest[len..]))
            .unwrap_or_else(|reason| (Content::Other(rest.into()), Some(reason), &[]));
        let (content, passed_over, behind) = content;
        let is_cut = captured.is_cut();
        self.has_cut |= is_cut;
        if is_cut && !complaints.is_empty() {
            complaints.push("the capture has only the front of the packet".to_owned());
        }
        Packet {
            number: self.summary.packets + 1,
            time: captured.time.into(),
            original_len: is_cut.then_some(captured.original_len),
            trailer: Hex([behind, layers.trailer()].concat()),
            link: layers.link,
            layers: layers.between,
            ip: layers.ip,
            content,
            reassembled: None,
            passed_over,
            complaints,
        }
    }

    /// Ends the capture. Returns the bytes of TCP streams that were not parsed, and the summary.
    pub fn finish(mut self) -> (Vec<Pdu>, Summary) {
        let left: Vec<_> = self
            .connections
            .iter()
            .flat_map(|connection| connection.finish(self.has_cut))
            .collect();
        self.summary.unfinished(&left);
        for (reason, count) in self.fragments.of_incomplete_packets() {
            self.summary.pass_over(&reason, count);
        }
        (left, self.summary)
    }

    /// The summary of the packets so far.
    pub const fn summary(&self) -> &Summary {
        &self.summary
    }

    // Dissects the content after the last IP header. Returns it, the reason if some of its bytes are passed over, and the
    // number of captured bytes that it takes.
    fn content(
        &mut self,
        layers: &Layers<'_>,
        transport: Transport,
        complaints: &mut Vec<String>,
    ) -> Result<(Content, Option<Reason>, usize), Reason> {
        let ip = layers.ip.as_ref().ok_or("no IP header")?;
        let octets = layers.rest();
        match transport {
            Transport::RoceV1 => {
                let datagram = Datagram {
                    ip,
                    udp: None,
                    octets,
                    len: octets.len() + layers.missing(),
                };
                let content = roce::dissect(&datagram, &mut self.rds, complaints)?;
                Ok((content, None, octets.len()))
            }
            Transport::RoceV2 => {
                let (content, len) = self.datagram(layers, ip, complaints)?;
                Ok((content, None, len))
            }
            Transport::Fragment(fragment) => {
                if layers.missing() > 0 {
                    return Err(format!("{} fragment that is cut", fragments::version(ip)));
                }
                self.fragments.insert(ip, fragment, octets)?;
                Ok((Content::Fragment(octets.into()), None, octets.len()))
            }
            Transport::Tcp => {
                let (content, passed_over) = self.segment(ip, octets, layers, complaints)?;
                Ok((content, passed_over, octets.len()))
            }
        }
    }

    fn datagram(
        &mut self,
        layers: &Layers<'_>,
        ip: &Ip,
        complaints: &mut Vec<String>,
    ) -> Result<(Content, usize), Reason> {
        let octets = layers.rest();
        let (udp, rest) = Udp::split(octets).ok_or_else(|| layers.too_short())?;
        let on_wire = rest.len() + layers.missing();
        let len = usize::from(udp.length).checked_sub(Udp::LEN);
        let len = len.filter(|len| *len <= on_wire && (layers.is_cut() || *len <= rest.len()));
        let Some(len) = len else {
            complaints.push("no packet of RoCEv2: UDP's length does not fit".to_owned());
            let content = Content::BadRoce(BadRoce {
                udp: Some(udp),
                octets: rest.into(),
            });
            return Ok((content, octets.len()));
        };
        let captured = &rest[..len.min(rest.len())];
        let datagram = Datagram {
            ip,
            udp: Some(&udp),
            octets: captured,
            len,
        };
        let content = roce::dissect(&datagram, &mut self.rds, complaints)?;
        Ok((content, Udp::LEN + captured.len()))
    }

    // Dissects a TCP segment. Returns with it the reason if its bytes are in no MPA stream.
    fn segment(
        &mut self,
        ip: &Ip,
        octets: &[u8],
        layers: &Layers<'_>,
        complaints: &mut Vec<String>,
    ) -> Result<(Content, Option<Reason>), Reason> {
        let (header, rest) = Tcp::split(octets).ok_or_else(|| layers.too_short())?;
        let options = usize::from(header.header_words).checked_sub(5);
        let options = options.ok_or("a TCP header that is not valid")? * 4;
        let (options, octets) = rest
            .split_at_checked(options)
            .ok_or_else(|| layers.too_short())?;
        let is_whole = layers.missing() == 0;
        let (connection, side) = self.connection(ip, &header);
        // A truncated segment would leave a gap in the stream: none of it is inserted.
        let octets_for_stream = if is_whole { octets } else { &[] };
        let (payload, completes) = connection.segment(side, &header, octets_for_stream, complaints);
        let payload = if is_whole {
            payload
        } else {
            TcpPayload::Octets(octets.into())
        };
        complaints.extend(completes.iter().filter_map(Pdu::complaint));
        let has_octets = matches!(&payload, TcpPayload::Octets(octets) if !octets.is_empty());
        let reason = if layers.is_cut() && !is_whole {
            "TCP that is cut"
        } else {
            connection.why_passed_over(side)
        };
        let passed_over = has_octets.then(|| reason.to_owned());
        let content = Content::Tcp(TcpSegment {
            header,
            options: options.into(),
            payload,
            completes,
        });
        Ok((content, passed_over))
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

fn addresses(ip: &Ip) -> (Vec<u8>, Vec<u8>) {
    match ip {
        Ip::V4 { header, .. } => (header.source.0.to_vec(), header.destination.0.to_vec()),
        Ip::V6 { header, .. } => (header.source.0.to_vec(), header.destination.0.to_vec()),
        Ip::Grh { header } => (header.sgid.0.to_vec(), header.dgid.0.to_vec()),
    }
}

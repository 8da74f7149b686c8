//! Dissects a RoCE packet, or a datagram of several joined RoCEv2 packets, into fields.

use std::net::IpAddr;

use polyverbs_wire::layout::{Header as _, Octets, view};
use polyverbs_wire::mad::rdma_cm::{self, RdmaCm};
use polyverbs_wire::mad::{self, Mad, MadHeader, cm};
use polyverbs_wire::net::{Ipv6, Udp};
use polyverbs_wire::roce::packet::{ICRC_LEN, MAX_HEADER_LEN, MAX_TRAILER_LEN};
use polyverbs_wire::roce::{self, Bth, Grh, Icrc, Packet, Service};

use crate::form::{
    BadRoce, Checksum, Content, Hex, Ip, Joined, Management, ManagementContent, Payload, Roce,
    Verdict,
};
use crate::layers::{self, Reason};
use crate::line::addresses;
use crate::rds::QueuePairs;

/// A RoCE packet, or a datagram of several joined ones, before it is dissected.
#[derive(Clone, Copy)]
pub(crate) struct Datagram<'o> {
    pub(crate) ip: &'o Ip,
    pub(crate) udp: Option<&'o Udp>,
    /// The captured bytes from the BTH on.
    pub(crate) octets: &'o [u8],
    /// The length on the wire from the BTH on, ICRC included.
    pub(crate) len: usize,
}

/// Dissects a RoCE packet or a datagram of several, and adds the faults that it finds to `complaints`.
///
/// # Errors
/// The reason why the packet is not dissected further.
pub(crate) fn dissect(
    datagram: &Datagram<'_>,
    rds: &mut QueuePairs,
    complaints: &mut Vec<String>,
) -> Result<Content, Reason> {
    if datagram.octets.len() < datagram.len.min(Bth::LEN) {
        return Err(layers::CUT.to_owned());
    }
    if !datagram.is_intact()
        && let Some(joined) = datagram.segments()
    {
        return Ok(Content::Joined(joined.dissect(rds, complaints)));
    }
    Ok(match datagram.packet(rds, complaints) {
        Ok(roce) => Content::Roce(Box::new(roce)),
        Err(reject) => {
            let version = datagram.udp.map_or("RoCEv1", |_| "RoCEv2");
            complaints.push(format!("no packet of {version}: {reject}"));
            Content::BadRoce(BadRoce {
                udp: datagram.udp.copied(),
                octets: datagram.octets.into(),
            })
        }
    })
}

impl<'o> Datagram<'o> {
    fn is_cut(&self) -> bool {
        self.octets.len() < self.len
    }

    fn is_intact(&self) -> bool {
        let packet = (!self.is_cut()).then(|| roce::decode(self.octets).ok());
        packet
            .flatten()
            .is_some_and(|packet| self.expected_icrc(&packet) == Some(packet.icrc))
    }

    fn expected_icrc(&self, packet: &Packet<'_>) -> Option<[u8; ICRC_LEN]> {
        begin(self.ip, self.udp, packet.bth).map(|icrc| packet.finish(icrc))
    }

    fn packet(
        &self,
        rds: &mut QueuePairs,
        complaints: &mut Vec<String>,
    ) -> Result<Roce, roce::Reject> {
        if self.is_cut() {
            return self.front(rds, complaints);
        }
        let packet = roce::decode(self.octets)?;
        let icrc = self.icrc(&packet, complaints);
        let is_intact = icrc.verdict == Verdict::Right;
        let opcode = packet.bth.opcode();
        if !packet.facts.payload.admits_somewhere(packet.payload.len()) {
            let len = packet.payload.len();
            complaints.push(format!("{opcode} with a payload of {len} octets"));
        }
        let is_pad = packet.pad.iter().any(|octet| *octet != 0);
        let payload = payload(addresses(self.ip), &packet, is_intact, rds, complaints);
        Ok(Roce {
            pad: is_pad.then(|| packet.pad.into()),
            icrc: Some(icrc),
            ..self.fields(&packet, payload)
        })
    }

    // Dissects a packet of which the capture has only the beginning. Any length is possible, because several packets may be
    // joined.
    fn front(
        &self,
        rds: &mut QueuePairs,
        complaints: &mut Vec<String>,
    ) -> Result<Roce, roce::Reject> {
        let mut packet = roce::decode_front(self.octets)?;
        let trailer = usize::from(packet.bth.pad_count()) + ICRC_LEN;
        let len = self
            .len
            .checked_sub(Bth::LEN + packet.facts.headers_len + trailer)
            .ok_or(roce::Reject::Pad)?;
        let captured = packet.payload.len().min(len);
        packet.payload = &packet.payload[..captured];
        let payload = if captured == len {
            payload(addresses(self.ip), &packet, false, rds, complaints)
        } else {
            Payload::Data(packet.payload.into())
        };
        let mut room = [0; MAX_HEADER_LEN];
        let headers = packet.headers().encode_front(&mut room).unwrap_or(0);
        let rest = self.octets.get(headers + captured..).unwrap_or(&[]);
        Ok(Roce {
            cut_from: Some(len as u32),
            pad: (!rest.is_empty()).then(|| rest.into()),
            ..self.fields(&packet, payload)
        })
    }

    // Returns the fields that a packet has whether the capture has cut it or not.
    fn fields(&self, packet: &Packet<'_>, payload: Payload) -> Roce {
        Roce {
            udp: self.udp.copied(),
            opcode: packet.bth.opcode().to_string(),
            headers: packet.headers(),
            payload,
            cut_from: None,
            pad: None,
            icrc: None,
        }
    }

    fn icrc(&self, packet: &Packet<'_>, complaints: &mut Vec<String>) -> Checksum {
        let value = Octets(packet.icrc);
        let expected = self.expected_icrc(packet);
        let verdict = if expected == Some(packet.icrc) {
            Verdict::Right
        } else {
            let right = Octets(expected.unwrap_or_default());
            complaints.push(format!("ICRC {value} where {right} is right"));
            Verdict::Wrong
        };
        Checksum { value, verdict }
    }

    // Finds the packets that were joined to this datagram: their length is the one for which an ICRC is right.
    fn segments(&self) -> Option<Segments<'o>> {
        self.udp?;
        let longest = MAX_SEGMENT.min(self.len.saturating_sub(1));
        let lengths = (Bth::LEN + ICRC_LEN..=longest).step_by(4);
        lengths
            .map(|len| Segments {
                datagram: *self,
                len,
                counts: false,
            })
            .filter(Segments::can_be_decoded)
            .map(|segments| {
                let counting = Segments {
                    counts: true,
                    ..segments
                };
                if counting.intact() > segments.intact() {
                    counting
                } else {
                    segments
                }
            })
            .find(|segments| segments.intact() > 0)
    }
}

/// Bytes of the longest packet of a joined datagram, whose payload has at most 4096 bytes.
const MAX_SEGMENT: usize = MAX_HEADER_LEN + 4096 + MAX_TRAILER_LEN;

/// A datagram of several packets, all of one length but the last.
struct Segments<'o> {
    datagram: Datagram<'o>,
    len: usize,
    /// Whether the IPv4 identification grows by one from packet to packet.
    counts: bool,
}

impl Segments<'_> {
    fn count(&self) -> usize {
        self.datagram.len.div_ceil(self.len)
    }

    fn can_be_decoded(&self) -> bool {
        self.each_whole()
            .all(|(_, octets)| roce::decode(octets).is_ok())
    }

    // Returns how many packets have the right ICRC.
    fn intact(&self) -> usize {
        let is_intact = |(index, octets): &(usize, &[u8])| {
            let (ip, udp) = self.envelope(*index, octets.len());
            let segment = Datagram {
                ip: &ip,
                udp: Some(&udp),
                octets,
                len: octets.len(),
            };
            segment.is_intact()
        };
        self.each_whole().filter(is_intact).count()
    }

    // Returns the packets that the capture has not cut, each with its index.
    fn each_whole(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let last = self.count() - 1;
        let last_len = self.datagram.len - last * self.len;
        let chunks = self.datagram.octets.chunks(self.len).enumerate();
        chunks.filter(move |(index, octets)| {
            octets.len() == if *index == last { last_len } else { self.len }
        })
    }

    fn envelope(&self, index: usize, len: usize) -> (Ip, Udp) {
        let udp = Udp {
            length: (Udp::LEN + len) as u16,
            ..self.datagram.udp.copied().unwrap_or_default()
        };
        let ip = ip_of_segment(self.datagram.ip, &udp, index, self.counts);
        (ip, udp)
    }

    fn dissect(&self, rds: &mut QueuePairs, complaints: &mut Vec<String>) -> Joined {
        let mut packets = Vec::new();
        let mut rest = Hex::default();
        for (index, octets) in self.datagram.octets.chunks(self.len).enumerate() {
            let len = self.len.min(self.datagram.len - index * self.len);
            let (ip, udp) = self.envelope(index, len);
            let segment = Datagram {
                ip: &ip,
                udp: Some(&udp),
                octets,
                len,
            };
            let mut of_segment = Vec::new();
            match segment.packet(rds, &mut of_segment) {
                Ok(packet) => packets.push(packet),
                Err(_) => rest = octets.into(),
            }
            let number = index + 1;
            let of_segment = of_segment.into_iter();
            complaints.extend(of_segment.map(|said| format!("packet {number}: {said}")));
        }
        Joined {
            udp: self.datagram.udp.copied().unwrap_or_default(),
            identification_counts: self.counts,
            packets,
            rest,
        }
    }
}

/// Returns the IP header that a packet of a joined datagram has on the wire. `index` is the packet's position in the
/// datagram.
pub(crate) fn ip_of_segment(ip: &Ip, udp: &Udp, index: usize, counts: bool) -> Ip {
    let mut ip = ip.clone();
    match &mut ip {
        Ip::V4 { header, .. } => {
            header.total_length = udp.length.wrapping_add(4 * u16::from(header.header_words));
            if counts {
                header.identification = header.identification.wrapping_add(index as u16);
            }
        }
        Ip::V6 { header, extensions } => {
            header.payload_length = udp.length.wrapping_add(extensions.0.len() as u16);
        }
        Ip::Grh { .. } => {}
    }
    ip
}

/// Begins the ICRC of a packet: covers its headers up to the BTH. Returns `None` if these are neither RoCEv1's nor
/// RoCEv2's.
pub(crate) fn begin(ip: &Ip, udp: Option<&Udp>, bth: &roce::BthView) -> Option<Icrc> {
    let udp = udp.map(Udp::to_view);
    Some(match (ip, udp) {
        (Ip::V4 { header, options }, Some(udp)) => {
            let mut header = *header;
            // In a capture of packets that an adapter segments, the length is 0; the adapter fills it in.
            if header.total_length == 0 {
                header.total_length = udp
                    .length()
                    .wrapping_add(4 * u16::from(header.header_words));
            }
            Icrc::of_ipv4(&header.to_view(), &options.0, &udp, bth)
        }
        (Ip::V6 { header, extensions }, Some(udp)) => {
            Icrc::of_ipv6(&Ipv6::to_view(header), &extensions.0, &udp, bth)
        }
        (Ip::Grh { header }, None) => Icrc::of_grh(&Grh::to_view(header), bth),
        _ => return None,
    })
}

fn payload(
    ends: (IpAddr, IpAddr),
    packet: &Packet<'_>,
    is_intact: bool,
    rds: &mut QueuePairs,
    complaints: &mut Vec<String>,
) -> Payload {
    let is_general_service =
        packet.facts.service == Service::Ud && packet.bth.dest_qp() == mad::GSI_QP;
    if !is_general_service {
        let fragment = rds.packet(ends, packet, is_intact, complaints);
        return match fragment {
            Some(fragment) => Payload::Rds(Box::new(fragment)),
            None => Payload::Data(packet.payload.into()),
        };
    }
    match mad::decode(packet.payload) {
        Ok(mad) => {
            let mut management = management(&mad, complaints);
            if let ManagementContent::Cm(message) = &management.content
                && is_intact
            {
                management.rds = rds.message(ends, message, complaints);
            }
            Payload::Mad(Box::new(management))
        }
        Err(reject) => {
            complaints.push(format!("no management datagram: {reject}"));
            Payload::Data(packet.payload.into())
        }
    }
}

fn management(mad: &Mad<'_>, complaints: &mut Vec<String>) -> Management {
    let header = MadHeader::of(mad.header);
    let data = ManagementContent::Data(Octets(*mad.data));
    if header.management_class != mad::CM_CLASS {
        return Management {
            header,
            content: data,
            rdma_cm: None,
            rds: None,
        };
    }
    match cm::decode(mad) {
        Ok(message) => {
            complaints.extend(reserved_mtu(&message));
            Management {
                header,
                rdma_cm: rdma_cm_of(&message),
                content: ManagementContent::Cm(message),
                rds: None,
            }
        }
        Err(reject) => {
            complaints.push(format!("no message of the connection manager: {reject}"));
            Management {
                header,
                content: data,
                rdma_cm: None,
                rds: None,
            }
        }
    }
}

fn reserved_mtu(message: &cm::Message) -> Option<String> {
    match message {
        cm::Message::Req(req) if req.path_mtu_bytes().is_none() => Some(format!(
            "a request with the path MTU code {}, which is reserved: 1 to 5 are 256 to 4096 bytes",
            req.path_mtu
        )),
        _ => None,
    }
}

fn rdma_cm_of(message: &cm::Message) -> Option<RdmaCm> {
    let service_id = match message {
        cm::Message::Req(req) => req.service_id,
        cm::Message::SidrReq(request) => request.service_id,
        _ => return None,
    };
    rdma_cm::port_of(service_id)?;
    let (header, _) = view::<RdmaCm>(message.private_data())?;
    Some(RdmaCm::of(header))
}

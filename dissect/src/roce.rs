//! A packet of RoCE, or several that are joined to one datagram, as fields.

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

/// A packet of RoCE, or several that are joined, from the BTH on.
#[derive(Clone, Copy)]
pub(crate) struct Datagram<'o> {
    pub(crate) ip: &'o Ip,
    pub(crate) udp: Option<&'o Udp>,
    /// The captured bytes.
    pub(crate) octets: &'o [u8],
    /// The length on the wire, ICRC included.
    pub(crate) len: usize,
}

/// Dissects a datagram, and adds to `complaints`.
///
/// # Errors
/// The reason to pass it over.
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

    // A packet of which the capture has only the front. Any length is possible, because several packets may be joined.
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

    // The fields that a packet has whether it is cut or not.
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

    // The packets that were joined to this datagram: the length of all but the last is the one with which an ICRC is right.
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

/// The longest packet: its payload has at most 4096 bytes.
const MAX_SEGMENT: usize = MAX_HEADER_LEN + 4096 + MAX_TRAILER_LEN;

/// A datagram of several packets, of a certain length each.
struct Segments<'o> {
    datagram: Datagram<'o>,
    len: usize,
    /// Whether IP's identification is one higher in each.
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

    // How many packets have the right ICRC.
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

    // The packets that are not cut.
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

/// The IP header that a packet of a joined datagram has on the wire.
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

/// The ICRC over the headers of a packet, to be continued; `None` where the headers are of no version of RoCE.
pub(crate) fn begin(ip: &Ip, udp: Option<&Udp>, bth: &roce::BthView) -> Option<Icrc> {
    let udp = udp.map(Udp::to_view);
    Some(match (ip, udp) {
        (Ip::V4 { header, options }, Some(udp)) => {
            let mut header = *header;
            // The device fills in a length that is 0 in the capture.
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
        Ok(message) => Management {
            header,
            rdma_cm: rdma_cm_of(&message),
            content: ManagementContent::Cm(message),
            rds: None,
        },
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

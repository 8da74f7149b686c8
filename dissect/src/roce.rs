//! A datagram to the port of RoCEv2, as fields.

use std::net::IpAddr;

use polyverbs_wire::layout::{Header as _, Octets, view};
use polyverbs_wire::mad::rdma_cm::{self, RdmaCm};
use polyverbs_wire::mad::{self, Mad, MadHeader, cm};
use polyverbs_wire::net::{Ipv4, Ipv6, Udp};
use polyverbs_wire::roce::{self, Icrc, Packet, Service};

use crate::form::{
    BadRoce, Checksum, Content, Ip, Management, ManagementContent, Payload, Roce, Verdict,
};
use crate::line::addresses;
use crate::rds::QueuePairs;

/// Dissects a datagram, and adds to `complaints`.
pub(crate) fn dissect(
    ip: &Ip,
    udp: &Udp,
    datagram: &[u8],
    rds: &mut QueuePairs,
    complaints: &mut Vec<String>,
) -> Content {
    match roce::decode(datagram) {
        Ok(packet) => Content::Roce(Box::new(fields(ip, udp, &packet, rds, complaints))),
        Err(reject) => {
            complaints.push(format!("no packet of RoCEv2: {reject}"));
            Content::BadRoce(BadRoce {
                udp: *udp,
                octets: datagram.into(),
            })
        }
    }
}

fn fields(
    ip: &Ip,
    udp: &Udp,
    packet: &Packet<'_>,
    rds: &mut QueuePairs,
    complaints: &mut Vec<String>,
) -> Roce {
    let expected = packet.finish(begin(ip, udp, packet.bth));
    let verdict = if expected == packet.icrc {
        Verdict::Right
    } else {
        complaints.push(format!(
            "ICRC {} where {} is right",
            Octets(packet.icrc),
            Octets(expected)
        ));
        Verdict::Wrong
    };
    let opcode = packet.bth.opcode();
    if !packet.facts.payload.admits_somewhere(packet.payload.len()) {
        let len = packet.payload.len();
        complaints.push(format!("{opcode} with a payload of {len} octets"));
    }
    let is_pad = packet.pad.iter().any(|octet| *octet != 0);
    Roce {
        udp: *udp,
        opcode: opcode.to_string(),
        headers: packet.headers(),
        payload: payload(
            addresses(ip),
            packet,
            verdict == Verdict::Right,
            rds,
            complaints,
        ),
        pad: is_pad.then(|| packet.pad.into()),
        icrc: Checksum {
            value: Octets(packet.icrc),
            verdict,
        },
    }
}

/// The ICRC over the headers of a packet, to be continued.
pub(crate) fn begin(ip: &Ip, udp: &Udp, bth: &roce::BthView) -> Icrc {
    let udp = udp.to_view();
    match ip {
        Ip::V4 { header, options } => Icrc::of_ipv4(&Ipv4::to_view(header), &options.0, &udp, bth),
        Ip::V6 { header } => Icrc::of_ipv6(&Ipv6::to_view(header), &udp, bth),
    }
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

//! Unreliable datagrams: one frame each, to a queue pair or to a multicast group.

use std::net::IpAddr;

use polyverbs_engine::cq::Done;
use polyverbs_engine::emulation::Station;
use polyverbs_engine::fault::Fault;
use polyverbs_engine::link::Frame;
use polyverbs_engine::payload::{Payload, Spans, scatter_at};
use polyverbs_engine::request::{Op, Request, SendExtra};
use polyverbs_engine::rules::{self, Rule};
use polyverbs_wire::layout::{Header as _, Octets};
use polyverbs_wire::mad::GSI_QP;
use polyverbs_wire::net::{Ipv4, Ipv6, Udp, protocol};
use polyverbs_wire::roce::bth::MULTICAST_QP;
use polyverbs_wire::roce::{Bth, Deth, packet::ICRC_LEN, route::Grh};
use verbs_api::qp::{QpState, QpType};
use verbs_api::{
    WcStatus,
    completion::{WcFlags, WcOpcode},
    event::EventType,
    ids::LinkAddress,
    wr::SendFlags,
};

use crate::header::{Body, Header, IpFields};
use crate::subnet::{self, Subnet};
use crate::{Cx, Device, Qp, Sending};

/// If a request's Q_Key has this bit, the datagram carries the sending queue pair's own Q_Key instead (IBTA 10.2.5).
const CONTROLLED_QKEY: u32 = 1 << 31;

/// Sends a datagram to a queue pair or a multicast group. The request completes as soon as the datagram has left.
///
/// # Errors
/// The status of a request whose local memory was refused, or that is no datagram.
pub fn send(
    qp: &Qp,
    half: &mut Sending,
    request: &Request<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), WcStatus> {
    let mut spans = Spans::new();
    let payload = qp.gather_request(request, cx, &mut spans);
    let payload = payload.map_err(Fault::local_status)?;
    let (Some(destination), Op::Send(extra)) = (&request.destination, request.op) else {
        return Err(WcStatus::LocQpOpErr);
    };
    let path = destination.ah().path();
    let (dest_qp, qkey) = destination.qpn_and_qkey();
    let qkey = if qkey & CONTROLLED_QKEY != 0 {
        half.driver.rest.qkey
    } else {
        qkey
    };
    let is_multicast = dest_qp == MULTICAST_QP;
    let group = is_multicast.then(|| qp.device.carried_group(path.dgid));
    let group = group.flatten();
    let body = Body::Datagram(qkey, extra, group);
    let header = Header {
        solicited: request.flags.contains(SendFlags::SOLICITED),
        ip: IpFields {
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
        },
        ..Header::new(QpType::Ud, qp.qpn, dest_qp, half.driver.next_psn, body)
    };
    half.driver.next_psn = half.driver.next_psn.plus(1);
    if !qp.device.is_port_active() {
        return Ok(());
    }
    let network = qp.device.network();
    let (from, now) = (qp.device.address(), cx.moment());
    let mut send_to = |to| {
        let frame = Frame {
            from,
            to,
            header,
            payload: payload.clone(),
            damaged: false,
        };
        if let Some(link) = network.link() {
            return link.send(frame, now);
        }
        if let Some(device) = network.device(to).filter(|device| device.is_port_active()) {
            receive(&device, &frame, cx);
        }
    };
    // On an IP network the group has an address of its own.
    if group.is_some() && !matches!(from, LinkAddress::Ip(_)) {
        let devices = network.devices();
        devices.iter().for_each(|device| send_to(device.address()));
    } else {
        send_to(path.address);
    }
    Ok(())
}

/// Delivers a datagram that has arrived to the queue pair that it names, or to all that are attached to its multicast
/// group. A failure of one queue pair does not affect the others.
pub fn receive(device: &Device, frame: &Frame<'_, Header>, cx: &mut Cx<'_>) {
    match frame.header.body {
        Body::Datagram(_, _, Some(group)) => {
            for qp in device.group(group) {
                deliver(&qp, frame, cx);
            }
        }
        _ => match (device.qp(frame.header.dest_qp), &device.driver().subnet) {
            (Some(qp), _) => deliver(&qp, frame, cx),
            // No program's queue pair has such a number.
            (None, Some(Subnet::Own(port))) if frame.header.dest_qp <= GSI_QP => {
                subnet::handle(device, port, frame, cx);
            }
            (None, _) => {}
        },
    }
}

// Delivers a datagram to one queue pair. A wrong state, a wrong Q_Key, a missing receive or too little room drop the
// datagram, which is counted (IBTA 9.8.3.1).
fn deliver(qp: &Qp, frame: &Frame<'_, Header>, cx: &mut Cx<'_>) {
    let Body::Datagram(qkey, extra, group) = frame.header.body else {
        return;
    };
    if let Some(group) = group {
        let sender = Station {
            address: frame.from,
            qpn: frame.header.src_qp,
        };
        let receiver = Station {
            address: qp.device.address(),
            qpn: qp.qpn,
        };
        let extensions = qp.extensions();
        if !extensions.is_none_or(|all| all.takes_multicast(sender, receiver, group)) {
            return;
        }
    }
    let mut responder = qp.responder();
    let half = &mut *responder;
    let ready = matches!(
        qp.state(),
        QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    );
    if qp.qp_type != QpType::Ud || !ready {
        half.counters.dropped += 1;
        return;
    }
    if qkey != half.driver.rest.qkey && !rules::is_broken(Rule::DatagramQkey) {
        qp.device.note_qkey_violation();
        half.counters.dropped += 1;
        return;
    }
    if qp.device.network().link().is_some() && !half.driver.rest.is_new(frame) {
        half.counters.duplicates += 1;
        return;
    }
    let Some(receive) = half
        .current
        .take()
        .or_else(|| qp.take_receive(half, None, &mut cx.effects))
    else {
        half.counters.dropped += 1;
        return;
    };
    let needed = Grh::LEN + frame.payload.len();
    let mut spans = Spans::new();
    let gathered = qp.gather_receive(&receive, needed as u64, cx, &mut spans);
    if let Err(fault) = gathered {
        half.current = Some(receive);
        return qp.fail_responder(half, fault.local_status(), EventType::QpFatal, cx);
    }
    let room: usize = spans.iter().map(|span| span.len()).sum();
    if room < needed {
        // The receive stays for the next datagram.
        half.current = Some(receive);
        half.counters.dropped += 1;
        return;
    }
    qp.note_arrival(half, cx);
    scatter_at(&spans, 0, &Payload::Bytes(&routing_header(frame)));
    scatter_at(&spans, Grh::LEN as u64, &frame.payload);
    let (flags, imm) = match extra {
        SendExtra::Immediate(imm) => (WcFlags::GRH | WcFlags::WITH_IMM, imm),
        _ => (WcFlags::GRH, [0; 4]),
    };
    half.counters.receives += 1;
    let done = Done {
        status: WcStatus::Success,
        opcode: WcOpcode::Recv,
        flags,
        imm,
        byte_len: needed as u32,
        src_qp: Some(frame.header.src_qp),
        solicited: frame.header.solicited,
        ..Done::default()
    };
    qp.complete_receive(&receive, done, cx);
}

// Builds the 40 bytes before a datagram: an IPv6 header, or one of IPv4 in the last 20 bytes as in RoCEv2, with the
// addresses of the link. Fields that a socket does not report have the values that a sender of this transport uses.
fn routing_header(frame: &Frame<'_, Header>) -> [u8; Grh::LEN] {
    let mut grh = [0; Grh::LEN];
    let behind_ip = Udp::LEN + Bth::LEN + Deth::LEN + frame.payload.len() + ICRC_LEN;
    let traffic_class = frame.header.ip.traffic_class;
    let hops = 64;
    if let (LinkAddress::Ip(IpAddr::V6(from)), LinkAddress::Ip(IpAddr::V6(to))) =
        (frame.from, frame.to)
    {
        let ip = Ipv6 {
            version: 6,
            traffic_class,
            payload_length: behind_ip as u16,
            next_header: protocol::UDP,
            hop_limit: hops,
            source: Octets(from.octets()),
            destination: Octets(to.octets()),
            ..Ipv6::default()
        };
        ip.put(&mut grh);
        return grh;
    }
    let ip = Ipv4 {
        version: 4,
        header_words: 5,
        dscp: traffic_class >> 2,
        ecn: traffic_class,
        total_length: (Ipv4::LEN + behind_ip) as u16,
        time_to_live: hops,
        protocol: protocol::UDP,
        source: Octets(ipv4(frame.from)),
        destination: Octets(ipv4(frame.to)),
        ..Ipv4::default()
    };
    ip.put(&mut grh[Grh::LEN - Ipv4::LEN..]);
    grh
}

fn ipv4(address: LinkAddress) -> [u8; 4] {
    match address {
        LinkAddress::Ip(IpAddr::V4(ip)) => ip.octets(),
        LinkAddress::InProcess(number) => (0x7f00_0000 | number as u32 & 0xff_ffff).to_be_bytes(),
        _ => [0; 4],
    }
}

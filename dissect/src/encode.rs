//! Encodes a dissected capture back into the bytes of its packets.

use std::collections::HashMap;

use polyverbs_wire::iwarp::fpdu::{self, Layout};
use polyverbs_wire::iwarp::{self, SegmentHeader, terminate::MAX_LEN};
use polyverbs_wire::layout::{Header, view};
use polyverbs_wire::mad;
use polyverbs_wire::roce::{Bth, packet::MAX_HEADER_LEN};

use crate::form::{
    Capture, Content, Fpdu, Hex, Ip, Layer, Link, ManagementContent, Packet, Payload, Rds, Roce,
    SegmentBody, Side, Start, TcpPayload, Unit, Verdict,
};
use crate::rds;

/// The reason why a capture cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The headers of the packet with this number do not match its opcode.
    #[error("packet {0}: its headers do not match its opcode")]
    Headers(u64),
    /// The packet with this number has a part of a TCP stream that is in no unit of the capture.
    #[error("packet {0}: no unit of the capture has the bytes that it carries of its stream")]
    Stream(u64),
    /// The FPDU has more than fits into a frame, or markers at positions where its frame has none.
    #[error("the frame at byte {offset} of connection {connection} cannot be built")]
    Frame {
        /// The connection of the frame, counted from 0.
        connection: u32,
        /// The offset of the frame in its stream.
        offset: u64,
    },
}

/// Encodes each packet of a capture. Checksums that were right are computed anew.
///
/// # Errors
/// The capture contradicts itself, as none from [`dissect`](crate::dissect()) does.
pub fn encode(capture: &Capture) -> Result<Vec<Vec<u8>>, EncodeError> {
    let streams = streams(capture)?;
    let packets = capture.packets.iter();
    packets.map(|packet| octets(packet, &streams)).collect()
}

type Streams = HashMap<(u32, Side), Vec<(u64, Vec<u8>)>>;

fn streams(capture: &Capture) -> Result<Streams, EncodeError> {
    let mut streams = Streams::new();
    let completed = capture.packets.iter().flat_map(Packet::completes);
    for pdu in completed.chain(&capture.unfinished) {
        let stream = streams.entry((pdu.connection, pdu.side)).or_default();
        let octets = unit(&pdu.unit).ok_or(EncodeError::Frame {
            connection: pdu.connection,
            offset: pdu.offset,
        })?;
        stream.push((pdu.offset, octets));
    }
    for stream in streams.values_mut() {
        stream.sort();
    }
    Ok(streams)
}

fn octets(packet: &Packet, streams: &Streams) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::new();
    match &packet.link {
        Link::Ethernet(header) => append(&mut out, header),
        Link::Sll(header) => append(&mut out, header),
        Link::Sll2(header) => append(&mut out, header),
        Link::Loopback(header) => append(&mut out, header),
        Link::Raw | Link::Other(_) | Link::Undescribed | Link::Short => {}
    }
    for layer in &packet.layers {
        append_layer(&mut out, layer);
    }
    if let Some(ip) = &packet.ip {
        append_ip(&mut out, ip);
    }
    match &packet.content {
        Content::Roce(roce) => {
            if let Some(udp) = &roce.udp {
                append(&mut out, udp);
            }
            let datagram = datagram(roce, packet.ip.as_ref());
            out.extend(datagram.ok_or(EncodeError::Headers(packet.number))?);
        }
        Content::Joined(joined) => {
            append(&mut out, &joined.udp);
            for (index, roce) in joined.packets.iter().enumerate() {
                let ip = packet.ip.as_ref().zip(roce.udp.as_ref()).map(|(ip, udp)| {
                    crate::roce::ip_of_segment(ip, udp, index, joined.identification_counts)
                });
                let datagram = datagram(roce, ip.as_ref());
                out.extend(datagram.ok_or(EncodeError::Headers(packet.number))?);
            }
            out.extend(&joined.rest.0);
        }
        Content::BadRoce(bad) => {
            if let Some(udp) = &bad.udp {
                append(&mut out, udp);
            }
            out.extend(&bad.octets.0);
        }
        Content::Tcp(segment) => {
            append(&mut out, &segment.header);
            out.extend(&segment.options.0);
            match &segment.payload {
                TcpPayload::None => {}
                TcpPayload::Octets(octets) => out.extend(&octets.0),
                TcpPayload::Stream {
                    connection,
                    side,
                    offset,
                    len,
                } => {
                    let stream = streams.get(&(*connection, *side));
                    let stretch = stream.and_then(|stream| stretch(stream, *offset, *len));
                    out.extend(stretch.ok_or(EncodeError::Stream(packet.number))?);
                }
            }
        }
        Content::Fragment(octets) | Content::Other(octets) => out.extend(&octets.0),
    }
    out.extend(&packet.trailer.0);
    Ok(out)
}

fn append_layer(out: &mut Vec<u8>, layer: &Layer) {
    match layer {
        Layer::Erspan2(header) => append(out, header),
        Layer::Erspan3 { header, subheader } => append_both(out, header, subheader),
        Layer::Ethernet(header) => append(out, header),
        Layer::Geneve { header, options } => append_both(out, header, options),
        Layer::Gre { header, fields } => append_both(out, header, fields),
        Layer::Ip(ip) => append_ip(out, ip),
        Layer::Mpls(header) => append(out, header),
        Layer::Pppoe(header) => append(out, header),
        Layer::Snap(header) => append(out, header),
        Layer::Udp(header) => append(out, header),
        Layer::Vlan(header) => append(out, header),
        Layer::Vxlan(header) => append(out, header),
    }
}

pub(crate) fn append_ip(out: &mut Vec<u8>, ip: &Ip) {
    match ip {
        Ip::V4 { header, options } => append_both(out, header, options),
        Ip::V6 { header, extensions } => append_both(out, header, extensions),
        Ip::Grh { header } => append(out, header),
    }
}

fn append_both<H: Header>(out: &mut Vec<u8>, header: &H, rest: &Hex) {
    append(out, header);
    out.extend(&rest.0);
}

fn append<H: Header>(out: &mut Vec<u8>, header: &H) {
    let at = out.len();
    out.resize(at + H::LEN, 0);
    header.put(&mut out[at..]);
}

// Returns `len` bytes of a stream from `offset` on, which adjacent units have.
fn stretch(stream: &[(u64, Vec<u8>)], offset: u64, len: u32) -> Option<Vec<u8>> {
    let len = len as usize;
    let mut out = Vec::new();
    let first = stream.partition_point(|(begin, _)| *begin <= offset);
    let mut units = stream.get(first.checked_sub(1)?..)?.iter();
    while out.len() < len {
        let (begin, octets) = units.next()?;
        let from = offset.checked_add(out.len() as u64)?.checked_sub(*begin)?;
        let octets = octets.get(usize::try_from(from).ok()?..)?;
        out.extend(&octets[..octets.len().min(len - out.len())]);
    }
    Some(out)
}

fn datagram(roce: &Roce, ip: Option<&Ip>) -> Option<Vec<u8>> {
    let mut out = vec![0; MAX_HEADER_LEN];
    let len = if roce.cut_from.is_some() {
        roce.headers.encode_front(&mut out)?
    } else {
        roce.headers.encode(&mut out)?
    };
    out.truncate(len);
    match &roce.payload {
        Payload::Data(data) => out.extend(&data.0),
        Payload::Mad(management) => {
            let data = match &management.content {
                ManagementContent::Cm(message) => message.to_data(),
                ManagementContent::Data(data) => data.0,
            };
            out.extend(mad::encode(&management.header, &data));
        }
        Payload::Rds(rds) => append_rds(&mut out, rds),
    }
    let pad = usize::from(roce.headers.bth.pad_count & 3);
    match &roce.pad {
        Some(octets) => out.extend(&octets.0),
        None if roce.cut_from.is_some() => {}
        None => out.extend([0; 3].iter().take(pad)),
    }
    match &roce.icrc {
        Some(checksum) if checksum.verdict == Verdict::Right => {
            let (bth, rest) = view::<Bth>(&out)?;
            let mut icrc = crate::roce::begin(ip?, roce.udp.as_ref(), bth)?;
            icrc.update(rest);
            out.extend(icrc.finish());
        }
        Some(checksum) => out.extend(checksum.value.0),
        None => {}
    }
    Some(out)
}

fn append_rds(out: &mut Vec<u8>, rds: &Rds) {
    if let Some(header) = &rds.header {
        out.extend(rds::octets(header));
    }
    out.extend(&rds.data.0);
}

fn unit(unit: &Unit) -> Option<Vec<u8>> {
    match unit {
        Unit::Start(start) => Some(start_octets(start)),
        Unit::Fpdu(fpdu) => frame(fpdu),
        Unit::Octets { octets, .. } => Some(octets.0.clone()),
    }
}

fn start_octets(start: &Start) -> Vec<u8> {
    let mut out = Vec::new();
    append(&mut out, &start.header);
    if let Some(enhanced) = &start.enhanced {
        append(&mut out, enhanced);
    }
    out.extend(&start.private_data.0);
    out
}

fn frame(fpdu: &Fpdu) -> Option<Vec<u8>> {
    let ulpdu = ulpdu(fpdu);
    let position = fpdu.markers.as_ref().map_or(0, |markers| markers.position);
    let layout = Layout::new(
        ulpdu.len().try_into().ok()?,
        position,
        fpdu.markers.is_some(),
    );
    let mut out = (ulpdu.len() as u16).to_be_bytes().to_vec();
    out.extend(ulpdu);
    match &fpdu.pad {
        Some(octets) => out.extend(&octets.0),
        None => out.extend([0; 3].iter().take(layout.pad_len())),
    }
    let markers = fpdu
        .markers
        .as_ref()
        .map_or(&[][..], |markers| &markers.markers);
    if markers.len() != layout.markers() {
        return None;
    }
    for ((at, _), marker) in layout.each_marker().zip(markers) {
        if at > out.len() {
            return None;
        }
        let behind = out.split_off(at);
        out.extend(marker.0);
        out.extend(behind);
    }
    let crc = match fpdu.crc.verdict {
        Verdict::Right => fpdu::checksum(&out),
        Verdict::Wrong | Verdict::Unused => fpdu.crc.value.0,
    };
    out.extend(crc);
    Some(out)
}

fn ulpdu(fpdu: &Fpdu) -> Vec<u8> {
    let Some(header) = &fpdu.header else {
        return match &fpdu.body {
            SegmentBody::Undecoded(octets) => octets.0.clone(),
            _ => Vec::new(),
        };
    };
    let mut out = Vec::new();
    match header {
        SegmentHeader::Tagged(header) => append(&mut out, header),
        SegmentHeader::Untagged(header) => append(&mut out, header),
    }
    match &fpdu.body {
        SegmentBody::Data(Hex(data)) | SegmentBody::Undecoded(Hex(data)) => out.extend(data),
        SegmentBody::Rds(rds) => append_rds(&mut out, rds),
        SegmentBody::AtomicRequest(request) => append(&mut out, request),
        SegmentBody::AtomicResponse(response) => append(&mut out, response),
        SegmentBody::Immediate(immediate) => out.extend(immediate.0),
        SegmentBody::ReadRequest(request) => append(&mut out, request),
        SegmentBody::Terminate(terminate) => {
            let said = iwarp::Terminate {
                control: terminate.control,
                segment_len: terminate.segment_len,
                ddp: terminate.ddp,
                rdmap: terminate.rdmap,
            };
            out.extend(said.encode(&mut [0; MAX_LEN]));
            out.extend(&terminate.rest.0);
        }
        SegmentBody::Extension { header, data } => {
            append(&mut out, header);
            out.extend(&data.0);
        }
    }
    out
}

//! Encodes header values as packets of RoCEv2, and decodes them.
//!
//! The codec does not check a queue pair's state: a packet that parses, belongs to the default partition and has a correct
//! ICRC is a frame.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Instant;

use polyverbs_io::{Arrival, Common, DatagramCodec, Envelope, Opened, QpnRange, TxMeta};
use polyverbs_wire::layout::{Header as _, Octets, view};
use polyverbs_wire::mad::{self, cm};
use polyverbs_wire::roce::bth::{DEFAULT_P_KEY, MULTICAST_QP};
use polyverbs_wire::roce::icrc::{self, Icrc, Recovery, step_is_plausible};
use polyverbs_wire::roce::packet::{MAX_HEADER_LEN, MAX_TRAILER_LEN};
use polyverbs_wire::roce::{
    self, Aeth, AtomicAckEth, AtomicEth, Bth, Deth, ExtensionEth, Feth, Headers, Ieth, ImmDt,
    Opcode, Operation, Packet, Position, Reth, Service, SyndromeKind, Xrceth,
};
use verbs_api::provider::Mutex;
use verbs_api::qp::QpType;
use verbs_api::{
    Access, RKey, RemoteAddress,
    ids::{Gid, Psn},
};

use crate::header::{Body, Header, SendExtra};

/// The codec for the wire format of RoCEv2, with the IPv4 identifications that it has seen from each peer.
#[derive(Default)]
pub struct RoceV2 {
    recoveries: Recoveries,
    last_seen: Mutex<HashMap<IpAddr, (u16, Instant)>>,
}

impl RoceV2 {
    /// Creates the codec. It has seen no packet of a peer yet.
    pub fn new() -> Self {
        Self::default()
    }
}

impl DatagramCodec for RoceV2 {
    type Header = Header;

    const OVERHEAD: usize = MAX_HEADER_LEN + MAX_TRAILER_LEN;

    fn tx_meta(&self, header: &Header) -> TxMeta {
        TxMeta {
            sender: header.src_qp,
            // The requests and the answers of a connection are two flows; each keeps its order.
            flow: header.src_qp ^ header.dest_qp.rotate_left(7),
            traffic_class: header.ip.traffic_class,
            hop_limit: header.ip.hop_limit,
        }
    }

    fn encode_header(&self, header: &Header, payload: usize, into: &mut [u8]) -> Option<usize> {
        let bth = bth_of(header, payload)?;
        // Most packets have only the BTH.
        match bth.opcode.facts()?.headers.is_empty() {
            true => bth.put(into).map(|_| Bth::LEN),
            false => headers_of(bth, header, payload).encode(into),
        }
    }

    fn encode_record(&self, header: &Header, payload: usize, into: &mut [u8]) -> Option<usize> {
        let headers = self.encode_header(header, payload, into)?;
        // Every message in shared memory is acknowledged, so the bit says whether the sender waits for that. The reserved
        // bits next to the bit carry the path MTU.
        let bits = into.get_mut(ACK_REQ_AT)?;
        *bits = header.mtu_shift & MTU_SHIFT | if header.awaited { ACK_REQ } else { 0 };
        let Some((psn, aeth)) = header.acknowledges else {
            return Some(headers);
        };
        let (room, behind) = into.get_mut(headers..)?.split_first_chunk_mut()?;
        *room = psn.value().to_be_bytes();
        aeth.put(behind)?;
        Some(headers + room.len() + Aeth::LEN)
    }

    fn trailer(&self, payload: usize) -> usize {
        usize::from(roce::pad_count(payload)) + roce::packet::ICRC_LEN
    }

    fn seal(&self, envelope: &Envelope, payload_end: usize, datagram: &mut [u8]) {
        let length = datagram.len();
        let end = length.saturating_sub(roce::packet::ICRC_LEN);
        let Some(pad) = datagram.get_mut(payload_end..end) else {
            return;
        };
        pad.fill(0);
        let Some((bth, behind)) = view::<Bth>(&datagram[..end]) else {
            return;
        };
        let envelope = icrc::Envelope {
            source: envelope.from,
            destination: envelope.to,
            identification: envelope.identification,
        };
        let mut icrc = Icrc::new(&envelope, length, bth);
        icrc.update(behind);
        let bytes = icrc.finish();
        if let Some(room) = datagram.last_chunk_mut() {
            *room = bytes;
        }
    }

    fn open<'d>(&self, arrival: &Arrival, datagram: &'d [u8]) -> Option<Opened<'d, Header>> {
        let packet = roce::decode(datagram).ok()?;
        let mut header = header_of(&packet, arrival)?;
        let checked = self.check(&packet, arrival, datagram.len());
        header.icrc_unverified = checked == IcrcCheck::Unverified;
        Some(Opened {
            header,
            payload: packet.payload,
            damaged: checked == IcrcCheck::Invalid,
        })
    }

    fn open_record(&self, arrival: &Arrival, head: &[u8]) -> Option<Header> {
        let packet = roce::decode_headers(head).ok()?;
        let mtu_shift = head.get(ACK_REQ_AT)? & MTU_SHIFT;
        let acknowledges = match packet.payload.split_first_chunk() {
            Some((psn, behind)) => {
                let psn = Psn::new(u32::from_be_bytes(*psn));
                let aeth = Aeth::of(view::<Aeth>(behind)?.0);
                aeth.syndrome.is_ack().then_some((psn, aeth))
            }
            None => None,
        };
        let header = header_of(&packet, arrival)?;
        Some(Header {
            awaited: header.ack_req,
            ack_req: header.body.is_request(),
            joined: true,
            mtu_shift,
            acknowledges,
            ..header
        })
    }

    fn refusal(&self, sender: u32, errno: i32) -> Header {
        let body = Body::Refused(errno);
        Header::new(QpType::Rc, Header::UNKNOWN_QP, sender, Psn::default(), body)
    }

    fn group(&self, header: &Header) -> Option<IpAddr> {
        match header.body {
            Body::Datagram(_, _, group) => group.map(Gid::as_ip),
            _ => None,
        }
    }

    fn address_of_group(&self, group: Gid) -> Option<IpAddr> {
        group.group_address()
    }

    fn common(&self, datagram: &[u8]) -> Common {
        let packet = roce::decode(datagram).ok();
        let mad = packet.and_then(|packet| mad::decode(packet.payload).ok());
        let message = mad.and_then(|mad| cm::decode(&mad).ok());
        message.map_or(Common::Anybody, |message| recipient_of(&message))
    }
}

// ---- out

fn bth_of(header: &Header, payload: usize) -> Option<Bth> {
    Some(Bth {
        opcode: opcode_of(header)?,
        solicited: header.solicited,
        mig_req: !matches!(header.body, Body::Congestion),
        pad_count: roce::pad_count(payload),
        p_key: DEFAULT_P_KEY,
        becn: matches!(header.body, Body::Congestion),
        dest_qp: header.dest_qp,
        ack_req: header.ack_req,
        psn: header.psn.value(),
        ..Bth::default()
    })
}

fn opcode_of(header: &Header) -> Option<Opcode> {
    let service = service(header)?;
    let operation = match header.body {
        Body::Send(position, extra) => {
            return Some(Opcode::send(service, position, send_extra(extra)));
        }
        Body::Datagram(_, extra, _) => {
            return Some(Opcode::send(service, Position::Only, send_extra(extra)));
        }
        Body::Write(position, _, _, immediate) => {
            return Some(Opcode::write(service, position, immediate.is_some()));
        }
        Body::ReadResponse(position) => return Some(Opcode::read_response(service, position)),
        Body::ExtensionRequest(..) | Body::ExtensionResponse(..) => {
            return matches!(service, Service::Rc | Service::Xrc).then_some(Opcode::EXTENSION);
        }
        Body::Congestion => return Some(Opcode::CNP),
        Body::Refused(_) => return None,
        Body::ReadRequest(..) => Operation::ReadRequest,
        Body::AtomicWrite(_) => Operation::AtomicWrite,
        Body::Flush(..) => Operation::Flush,
        Body::CompareSwap(..) => Operation::CompareSwap,
        Body::FetchAdd(..) => Operation::FetchAdd,
        Body::Acknowledge => Operation::Acknowledge,
        Body::AtomicAcknowledge(_) => Operation::AtomicAcknowledge,
    };
    Opcode::single(service, operation)
}

fn headers_of(bth: Bth, header: &Header, payload: usize) -> Headers {
    let mut headers = Headers {
        bth,
        ..Headers::default()
    };
    match header.body {
        Body::Send(position, extra) if position.ends() => put_send_extra(&mut headers, extra),
        Body::Datagram(q_key, extra, _) => {
            put_send_extra(&mut headers, extra);
            headers.deth = Some(Deth {
                q_key,
                src_qp: header.src_qp,
                ..Deth::default()
            });
        }
        Body::Write(position, remote, length, immediate) => {
            headers.reth = position.begins().then(|| reth(remote, length));
            headers.imm_dt = immediate.filter(|_| position.ends()).map(imm_dt);
        }
        Body::ReadRequest(remote, length) => headers.reth = Some(reth(remote, length)),
        Body::AtomicWrite(remote) => headers.reth = Some(reth(remote, payload as u32)),
        Body::Flush(remote, length, placement, whole) => {
            headers.reth = Some(reth(remote, length));
            headers.feth = Some(feth(placement, whole));
        }
        Body::CompareSwap(remote, compare, swap) => {
            headers.atomic_eth = Some(atomic_eth(remote, compare, swap));
        }
        Body::FetchAdd(remote, add) => headers.atomic_eth = Some(atomic_eth(remote, 0, add)),
        Body::AtomicAcknowledge(original) => {
            headers.atomic_ack_eth = Some(AtomicAckEth { original });
        }
        // An extension's answer has its AETH, and its request the XRCETH, in the extension's own header.
        Body::ExtensionRequest(extension, operation)
        | Body::ExtensionResponse(extension, operation) => {
            let Aeth { syndrome, msn } = header.aeth;
            headers.extension_eth = Some(ExtensionEth {
                extension,
                is_response: !header.body.is_request(),
                operation,
                syndrome,
                msn,
                srq: header.xrc.unwrap_or(0),
                ..ExtensionEth::default()
            });
            return headers;
        }
        Body::Congestion => headers.cnp = Some(roce::Cnp::default()),
        Body::Send(..) | Body::Acknowledge | Body::ReadResponse(_) | Body::Refused(_) => {}
    }
    headers.aeth = header.body.has_aeth().then_some(header.aeth);
    let srq = header.xrc.filter(|_| header.body.is_request());
    headers.xrceth = srq.map(|srq| Xrceth {
        srq,
        ..Xrceth::default()
    });
    headers
}

fn put_send_extra(headers: &mut Headers, extra: SendExtra) {
    match extra {
        SendExtra::Nothing => {}
        SendExtra::Immediate(bytes) => headers.imm_dt = Some(imm_dt(bytes)),
        SendExtra::Invalidate(rkey) => headers.ieth = Some(Ieth { rkey }),
    }
}

const fn imm_dt(bytes: [u8; 4]) -> ImmDt {
    ImmDt {
        immediate: Octets(bytes),
    }
}

const fn reth(remote: RemoteAddress, dma_length: u32) -> Reth {
    Reth {
        va: remote.addr,
        rkey: remote.rkey.value(),
        dma_length,
    }
}

const fn atomic_eth(remote: RemoteAddress, compare: u64, swap_or_add: u64) -> AtomicEth {
    AtomicEth {
        va: remote.addr,
        rkey: remote.rkey.value(),
        swap_or_add,
        compare,
    }
}

fn feth(placement: Access, whole: bool) -> Feth {
    let bit = |access, bit| if placement.contains(access) { bit } else { 0 };
    Feth {
        selectivity: u8::from(whole),
        placement: bit(Access::FLUSH_GLOBAL, GLOBAL_VISIBILITY)
            | bit(Access::FLUSH_PERSISTENT, PERSISTENCE),
        ..Feth::default()
    }
}

const fn send_extra(extra: SendExtra) -> roce::SendExtra {
    match extra {
        SendExtra::Nothing => roce::SendExtra::Nothing,
        SendExtra::Immediate(_) => roce::SendExtra::Immediate,
        SendExtra::Invalidate(_) => roce::SendExtra::Invalidate,
    }
}

const fn service(header: &Header) -> Option<Service> {
    match header.service {
        QpType::Rc if header.xrc.is_some() => Some(Service::Xrc),
        QpType::Rc => Some(Service::Rc),
        QpType::Uc => Some(Service::Uc),
        QpType::Ud => Some(Service::Ud),
        _ => None,
    }
}

// ---- in

#[inline]
fn header_of(packet: &Packet<'_>, arrival: &Arrival) -> Option<Header> {
    // Partitions match if their numbers do and one of the two is a full member, as this one is (IBTA 10.9.3).
    if packet.bth.p_key() | FULL_MEMBER != DEFAULT_P_KEY {
        return None;
    }
    let (service, dest_qp) = (qp_type(packet.facts.service), packet.bth.dest_qp());
    let psn = Psn::new(packet.bth.psn());
    let send = Body::Send(packet.facts.position, SendExtra::Nothing);
    let mut header = Header {
        ack_req: packet.bth.ack_req(),
        solicited: packet.bth.solicited(),
        ..Header::new(service, Header::UNKNOWN_QP, dest_qp, psn, send)
    };
    // Most sends have only the BTH.
    if packet.facts.operation != Operation::Send || !packet.facts.headers.is_empty() {
        read_extended_headers(&mut header, packet, arrival.to.ip())?;
    }
    header.ip.traffic_class = arrival.traffic_class;
    Some(header)
}

// Reads the opcode and the headers after the BTH.
#[inline(never)]
fn read_extended_headers(header: &mut Header, packet: &Packet<'_>, to: IpAddr) -> Option<()> {
    header.body = body_of(packet, to)?;
    if let Some(deth) = packet.get::<Deth>() {
        header.src_qp = deth.src_qp();
    }
    header.xrc = xrc_of(packet);
    header.aeth = aeth_of(packet)?;
    Some(())
}

fn body_of(packet: &Packet<'_>, to: IpAddr) -> Option<Body> {
    let position = packet.facts.position;
    let immediate = || packet.get::<ImmDt>().map(|header| header.immediate().0);
    // Returns the address and the number of bytes.
    let reth = || {
        let reth = packet.get::<Reth>()?;
        let remote = RemoteAddress::new(reth.va(), RKey::new(reth.rkey()));
        Some((remote, reth.dma_length()))
    };
    let atomic = || {
        let eth = packet.get::<AtomicEth>()?;
        Some((RemoteAddress::new(eth.va(), RKey::new(eth.rkey())), eth))
    };
    let extra = || match (immediate(), packet.get::<Ieth>()) {
        (Some(bytes), _) => SendExtra::Immediate(bytes),
        (None, Some(ieth)) => SendExtra::Invalidate(ieth.rkey()),
        (None, None) => SendExtra::Nothing,
    };
    Some(match packet.facts.operation {
        Operation::Send if packet.facts.service == Service::Ud => {
            let q_key = packet.get::<Deth>()?.q_key();
            let group = (packet.bth.dest_qp() == MULTICAST_QP).then(|| Gid::from(to));
            Body::Datagram(q_key, extra(), group)
        }
        Operation::Send => Body::Send(position, extra()),
        Operation::Write => {
            let (remote, length) = reth().unwrap_or_default();
            Body::Write(position, remote, length, immediate())
        }
        Operation::ReadRequest => {
            let (remote, length) = reth()?;
            Body::ReadRequest(remote, length)
        }
        Operation::AtomicWrite => Body::AtomicWrite(reth()?.0),
        Operation::Flush => {
            let feth = packet.get::<Feth>()?;
            let whole = match feth.selectivity() {
                0 => false,
                1 => true,
                _ => return None,
            };
            let placement = placement_of(feth.placement())?;
            let (remote, length) = reth()?;
            Body::Flush(remote, length, placement, whole)
        }
        Operation::CompareSwap => {
            let (target, eth) = atomic()?;
            Body::CompareSwap(target, eth.compare(), eth.swap_or_add())
        }
        Operation::FetchAdd => {
            let (target, eth) = atomic()?;
            Body::FetchAdd(target, eth.swap_or_add())
        }
        Operation::Acknowledge => Body::Acknowledge,
        Operation::ReadResponse => Body::ReadResponse(position),
        Operation::AtomicAcknowledge => {
            Body::AtomicAcknowledge(packet.get::<AtomicAckEth>()?.original())
        }
        Operation::CongestionNotification => Body::Congestion,
        Operation::Extension => {
            let eth = packet.get::<ExtensionEth>()?;
            let (extension, operation) = (eth.extension(), eth.operation());
            if eth.is_response() {
                Body::ExtensionResponse(extension, operation)
            } else {
                Body::ExtensionRequest(extension, operation)
            }
        }
    })
}

// Returns the AETH of an answer. Only an acknowledge may have the syndrome of a refusal: an answer with data that has it is
// dropped.
fn aeth_of(packet: &Packet<'_>) -> Option<Aeth> {
    let aeth = match (packet.get::<Aeth>(), packet.get::<ExtensionEth>()) {
        (Some(aeth), _) => Aeth::of(aeth),
        (None, Some(eth)) if eth.is_response() => Aeth {
            syndrome: eth.syndrome(),
            msn: eth.msn(),
        },
        _ => return Some(Aeth::default()),
    };
    let says = match packet.facts.operation {
        Operation::Acknowledge => aeth.syndrome.kind() != SyndromeKind::Reserved,
        _ => aeth.syndrome.is_ack(),
    };
    says.then_some(aeth)
}

fn placement_of(bits: u8) -> Option<Access> {
    if bits == 0 || bits & !(GLOBAL_VISIBILITY | PERSISTENCE) != 0 {
        return None;
    }
    let mut placement = Access::empty();
    placement.set(Access::FLUSH_GLOBAL, bits & GLOBAL_VISIBILITY != 0);
    placement.set(Access::FLUSH_PERSISTENT, bits & PERSISTENCE != 0);
    Some(placement)
}

const fn qp_type(service: Service) -> QpType {
    match service {
        // A notification does not name the service of its connection; extensions use reliable ones.
        Service::Rc | Service::Xrc | Service::Cnp | Service::Manufacturer => QpType::Rc,
        Service::Uc => QpType::Uc,
        Service::Ud => QpType::Ud,
    }
}

fn xrc_of(packet: &Packet<'_>) -> Option<u32> {
    if let Some(eth) = packet.get::<ExtensionEth>() {
        // An answer names no queue.
        return Some(eth.srq()).filter(|&number| number != 0 && !eth.is_response());
    }
    let of_request = packet.get::<Xrceth>().map(|eth| eth.srq());
    of_request.or((packet.facts.service == Service::Xrc).then_some(0))
}

fn recipient_of(message: &cm::Message) -> Common {
    use cm::Message as M;
    let id = match message {
        M::Req(message) => return Common::Service(message.service_id),
        M::SidrReq(message) => return Common::Service(message.service_id),
        M::Mra(message) => message.remote_comm_id,
        M::Rej(message) => message.remote_comm_id,
        M::Rep(message) => message.remote_comm_id,
        M::Rtu(message) => message.remote_comm_id,
        M::Dreq(message) => message.remote_comm_id,
        M::Drep(message) => message.remote_comm_id,
        M::Lap(message) => message.remote_comm_id,
        M::Apr(message) => message.remote_comm_id,
        M::SidrRep(message) => message.request_id,
    };
    match QpnRange::of_communication(id) {
        // No process allocates such ids. A REJ of a request that could not be parsed has one, for example.
        QpnRange::COMMON => Common::Anybody,
        range => Common::Range(range),
    }
}

// ---- the ICRC

/// The result of checking a packet's ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IcrcCheck {
    Valid,
    /// The ICRC is correct only for an IPv4 identification that no earlier packet of the peer makes plausible.
    Unverified,
    Invalid,
}

impl RoceV2 {
    fn check(&self, packet: &Packet<'_>, arrival: &Arrival, length: usize) -> IcrcCheck {
        let computed = packet.expected_icrc(&icrc::Envelope {
            source: arrival.from,
            destination: arrival.to,
            identification: arrival.segment,
        });
        match computed == packet.icrc {
            true => IcrcCheck::Valid,
            false => self.check_identification(packet, arrival, length, computed),
        }
    }

    // Checks whether the ICRC is correct for an unexpected identification: the kernel's driver numbers its packets.
    #[inline(never)]
    fn check_identification(
        &self,
        packet: &Packet<'_>,
        arrival: &Arrival,
        length: usize,
        computed: [u8; 4],
    ) -> IcrcCheck {
        if arrival.from.is_ipv6() {
            return IcrcCheck::Invalid;
        }
        let recovery = self.recoveries.of(length);
        let Some(difference) = recovery.identification(packet.icrc, computed) else {
            return IcrcCheck::Invalid;
        };
        let (peer, identification) = (arrival.from.ip(), difference ^ arrival.segment);
        if identification == 0 {
            return IcrcCheck::Valid;
        }
        // The sender counts its packets, so this checks whether it may have come to this number.
        let now = Instant::now();
        let last_seen = &mut *self.last_seen.lock();
        if last_seen.len() >= PEERS && !last_seen.contains_key(&peer) {
            last_seen.clear();
        }
        match last_seen.insert(peer, (identification, now)) {
            Some((last, then)) if step_is_plausible(last, identification, now - then) => {
                IcrcCheck::Valid
            }
            _ => IcrcCheck::Unverified,
        }
    }
}

/// For each length of a datagram, the table that finds the IPv4 identification for which an ICRC is correct. It is created
/// when the length first occurs.
struct Recoveries(Box<[OnceLock<Recovery>]>);

impl Default for Recoveries {
    fn default() -> Self {
        Self((0..LENGTHS).map(|_| OnceLock::new()).collect())
    }
}

impl Recoveries {
    // The length of a packet is a multiple of four bytes.
    fn of(&self, length: usize) -> Recovery {
        let make = || Recovery::for_datagrams_of(length);
        match self.0.get(length / 4) {
            Some(place) if length.is_multiple_of(4) => *place.get_or_init(make),
            _ => make(),
        }
    }
}

/// The bit of a partition key that marks a full member.
const FULL_MEMBER: u16 = 0x8000;
/// The byte of the BTH with AckReq (IBTA 9.2).
const ACK_REQ_AT: usize = 8;
const ACK_REQ: u8 = 0x80;
/// The bits of a record that carry log2 of its sender's path MTU.
const MTU_SHIFT: u8 = 0x0f;
/// The bits of FETH's placement type, which say what a flush guarantees.
const GLOBAL_VISIBILITY: u8 = 1;
const PERSISTENCE: u8 = 2;
/// The number of packet lengths, in words of four bytes, up to that of the largest path MTU.
const LENGTHS: usize = (4096 + MAX_HEADER_LEN + MAX_TRAILER_LEN) / 4 + 1;
/// The most peers whose IPv4 identifications are stored.
const PEERS: usize = 1024;

#[cfg(test)]
mod tests;

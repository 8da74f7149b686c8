use std::net::IpAddr;

use polyverbs_dissect::file::Captured;
use polyverbs_dissect::form::{Payload, Rds, RdsMessage, SegmentBody, Unit, Verdict};
use polyverbs_dissect::summary::Protocol;
use polyverbs_dissect::{Capture, Packet, line};
use polyverbs_wire::iwarp::ddp::queue;
use polyverbs_wire::iwarp::start::{Kind, Start};
use polyverbs_wire::iwarp::{self, Direction, Framing, Untagged};
use polyverbs_wire::layout::{Header as _, Octets};
use polyverbs_wire::mad::cm::{Message, Rep, Req, header_of};
use polyverbs_wire::mad::rdma_cm::{RdmaCm, port_space, service_id};
use polyverbs_wire::mad::{self, GSI_Q_KEY, GSI_QP};
use polyverbs_wire::rds::{
    CongestionMap, ConnectData, Extension, Extensions, FRAGMENT, Flags, HEADER, Header, MINOR_MASK,
    PORT, Version,
};
use polyverbs_wire::roce::{
    Bth, Deth, Headers, Opcode, Operation, Position, Reth, SendExtra, Service,
};

use crate::made::maker::*;

const PATH_MTU: usize = 1024;
const COMM_ID: u32 = 77;
const QPNS: [u32; 2] = [0x11, 0x12];
const FIRST_PSNS: [u32; 2] = [0xff_fffe, 100];

/// Packets between two queue pairs.
struct Made {
    packets: Vec<Captured>,
    psns: [u32; 2],
}

fn connect_data(from: usize) -> ConnectData {
    ConnectData {
        source: IpAddr::from(V4[from]),
        destination: IpAddr::from(V4[1 - from]),
        version: Version::V4_1,
        minor_mask: MINOR_MASK,
        tos: 0,
        member: from as u16,
        ack_sequence: 9,
        credit: 0,
        incarnation: 0,
    }
}

fn cm(from: usize, message: impl Into<Message>) -> Captured {
    let message = message.into();
    let headers = Headers {
        bth: Bth {
            opcode: Opcode::send(Service::Ud, Position::Only, SendExtra::Nothing),
            dest_qp: GSI_QP,
            ..Bth::default()
        },
        deth: Some(Deth {
            q_key: GSI_Q_KEY,
            src_qp: GSI_QP,
            ..Deth::default()
        }),
        ..Headers::default()
    };
    let mad = mad::encode(&header_of(&message, 5), &message.to_data());
    roce_from(from, headers, &mad)
}

fn request(port: u16) -> Req {
    let rdma_cm = RdmaCm::new(V4[0].into(), 40_000, V4[1].into()).unwrap();
    let private_data = [octets_of(&rdma_cm), connect_data(0).to_bytes()].concat();
    Req {
        local_comm_id: COMM_ID,
        service_id: service_id(port_space::TCP, port),
        qpn: QPNS[0],
        starting_psn: FIRST_PSNS[0],
        path_mtu: 3,
        private_data: Octets::padded(&private_data).unwrap(),
        ..Req::default()
    }
}

fn reply() -> Rep {
    Rep {
        local_comm_id: 78,
        remote_comm_id: COMM_ID,
        qpn: QPNS[1],
        starting_psn: FIRST_PSNS[1],
        private_data: Octets::padded(&connect_data(1).to_bytes()).unwrap(),
        ..Rep::default()
    }
}

impl Made {
    fn new() -> Self {
        Self {
            packets: vec![cm(0, request(PORT)), cm(1, reply())],
            psns: FIRST_PSNS,
        }
    }

    fn packet(&mut self, from: usize, opcode: Opcode, reth: Option<Reth>, payload: &[u8]) {
        let to = 1 - from;
        let headers = Headers {
            bth: Bth {
                opcode,
                dest_qp: QPNS[to],
                psn: self.psns[to],
                ..Bth::default()
            },
            reth,
            ..Headers::default()
        };
        self.packets.push(roce_from(from, headers, payload));
        self.skip(to, 1);
    }

    fn skip(&mut self, to: usize, packets: u32) {
        self.psns[to] = (self.psns[to] + packets) % (1 << 24);
    }

    fn send(&mut self, from: usize, octets: &[u8]) {
        let mut at = 0;
        for piece in octets.chunks(PATH_MTU) {
            let position = Position::of(at, piece.len() as u64, octets.len() as u64);
            let opcode = Opcode::send(Service::Rc, position, SendExtra::Nothing);
            self.packet(from, opcode, None, piece);
            at += piece.len() as u64;
        }
    }

    fn message(&mut self, from: usize, header: Header, data: &[u8]) {
        fragments(header, data)
            .iter()
            .for_each(|fragment| self.send(from, fragment));
    }
}

fn header(sequence: u64, length: usize) -> Header {
    Header {
        sequence,
        ack: 3,
        length: length as u32,
        source_port: 4000,
        destination_port: 5000,
        ..Header::default()
    }
}

fn fragments(header: Header, data: &[u8]) -> Vec<Vec<u8>> {
    let fragment = |data: &[u8]| [&header.to_bytes(), data].concat();
    match data {
        [] => vec![fragment(data)],
        data => data.chunks(FRAGMENT).map(fragment).collect(),
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7) as u8).collect()
}

fn rds(capture: &Capture) -> Vec<&Rds> {
    let in_packets = capture.packets.iter().flat_map(|packet| {
        let of_roce = packet.roce().and_then(|roce| match &roce.payload {
            Payload::Rds(rds) => Some(&**rds),
            _ => None,
        });
        let of_iwarp = packet.completes().iter().filter_map(|pdu| match &pdu.unit {
            Unit::Fpdu(fpdu) => match &fpdu.body {
                SegmentBody::Rds(rds) => Some(&**rds),
                _ => None,
            },
            _ => None,
        });
        of_roce.into_iter().chain(of_iwarp)
    });
    in_packets.collect()
}

fn completed(capture: &Capture) -> Vec<&RdsMessage> {
    rds(capture)
        .into_iter()
        .filter_map(|rds| rds.completes.as_ref())
        .collect()
}

fn whole(length: u32) -> RdsMessage {
    RdsMessage::Data { length }
}

/// Messages of every kind in both directions.
pub(crate) fn packets() -> Vec<Captured> {
    let mut made = Made::new();
    let mut map = CongestionMap::new();
    map.set(4000);
    map.set(5001);
    let update = Header {
        flags: Flags::CONG_BITMAP,
        length: map.bytes().len() as u32,
        ..Header::default()
    };
    made.message(1, update, map.bytes());
    made.message(0, header(1, 8193), &pattern(8193));
    let acknowledge = Header {
        ack: 1,
        credit: 7,
        ..Header::default()
    };
    made.send(1, &acknowledge.to_bytes());
    let cookie = Header {
        flags: Flags::ACK_REQUIRED | Flags::RETRANSMITTED,
        extensions: Extensions::of(Extension::RdmaDestination {
            rkey: 0xabcd,
            offset: 123,
        }),
        ..header(2, 0)
    };
    made.message(0, cookie, &[]);
    made.packets
}

#[test]
fn messages_are_put_together_and_nothing_is_left_over() {
    let capture = dissected(&packets());
    assert_eq!(complaints(&capture), [""; 0]);
    assert_eq!(
        completed(&capture),
        [
            &RdsMessage::CongestionMap(vec![4000, 5001]),
            &whole(8193),
            &RdsMessage::Acknowledge,
            &whole(0),
        ]
    );
    let of_rds = capture.summary.opcodes.iter();
    let counted: Vec<_> = of_rds
        .filter(|known| known.protocol == Protocol::Rds)
        .map(|known| (&known.opcode[..], known.count, known.octets))
        .collect();
    assert_eq!(
        counted,
        [
            ("Acknowledge", 1, 0),
            ("Congestion map", 1, 8192),
            ("Message", 2, 8193)
        ]
    );
}

#[test]
fn a_line_says_what_a_fragment_and_private_data_say() {
    let capture = dissected(&packets());
    let lines: Vec<_> = capture
        .packets
        .iter()
        .map(|packet| line(packet, capture.packets[0].time))
        .collect();
    let has = |at: usize, what: &str| assert!(lines[at].contains(what), "{}", lines[at]);
    has(0, "CM REQ, RDS 4.1, ack 9");
    has(1, "CM REP, RDS 4.1, ack 9, member 1");
    has(2, "BTH RDS  RC SEND First");
    has(2, "RDS 0 > 0 sequence 0 ack 0, CONG_BITMAP, 976 octets");
    has(11, "congested ports: 4000 5001, ICRC right");
    let last = lines.len() - 1;
    has(last - 1, "credit 7, 0 octets, acknowledge only");
    has(
        last,
        "RDS 4000 > 5000 sequence 2 ack 3, ACK_REQUIRED, RETRANSMITTED, RdmaDestination { rkey: 43981, offset: 123 }, \
         0 octets, a message of 0 is whole",
    );
}

#[test]
fn packets_that_are_sent_again_complete_nothing() {
    let mut packets = packets();
    let again = packets.clone();
    packets.extend(again);
    let capture = dissected(&packets);
    assert_eq!(complaints(&capture), [""; 0]);
    assert_eq!(completed(&capture).len(), 4);
    let (once, again) = capture.packets.split_at(capture.packets.len() / 2);
    for (once, again) in once.iter().zip(again).skip(2) {
        let fields = |packet: &Packet| match &packet.roce().unwrap().payload {
            Payload::Rds(rds) => (rds.header.clone(), rds.data.clone()),
            other => panic!("{other:?}"),
        };
        assert_eq!(fields(once), fields(again));
    }
}

#[test]
fn a_missing_packet_costs_its_message_and_is_no_complaint() {
    let mut made = Made::new();
    for sequence in 1..4 {
        made.message(0, header(sequence, 5000), &pattern(5000));
    }
    for at in 2..made.packets.len() {
        let mut packets = made.packets.clone();
        packets.remove(at);
        // The responder's NAK makes the requester retransmit this packet and the following ones.
        packets.extend_from_slice(&made.packets[at..]);
        let capture = dissected(&packets);
        assert_eq!(complaints(&capture), [""; 0], "{at}");
        let missing = usize::from(at + 1 < made.packets.len());
        assert_eq!(completed(&capture).len(), 3 - missing, "{at}");
    }
}

#[test]
fn reads_and_writes_between_fragments_lose_nothing() {
    let mut made = Made::new();
    let reth = |dma_length| Reth {
        va: 0x1000,
        rkey: 7,
        dma_length,
    };
    let data = pattern(5000);
    let fragments = fragments(header(1, data.len()), &data);
    made.send(0, &fragments[0]);
    let read = Opcode::single(Service::Rc, Operation::ReadRequest).unwrap();
    made.packet(0, read, Some(reth(2049)), b"");
    made.skip(1, 2);
    let write = Opcode::write(Service::Rc, Position::Only, false);
    made.packet(0, write, Some(reth(4)), b"data");
    made.send(0, &fragments[1]);
    let capture = dissected(&made.packets);
    assert_eq!(complaints(&capture), [""; 0]);
    assert_eq!(completed(&capture), [&whole(5000)]);
}

#[test]
fn a_connection_is_rds_only_if_its_request_names_the_port() {
    let mut made = Made::new();
    made.message(0, header(1, 5), b"hello");
    let late = dissected(&made.packets[2..]);
    assert_eq!(complaints(&late), [""; 0]);
    assert!(rds(&late).is_empty());

    // The queue pairs are connected again, to the port of another service.
    let mut packets = made.packets.clone();
    packets.extend([cm(0, request(4420)), cm(1, reply())]);
    packets.push(made.packets[2].clone());
    assert_eq!(rds(&dissected(&packets)).len(), 1);
}

#[test]
fn a_fault_in_a_fragment_is_a_complaint() {
    let complaint = |sends: &[&[u8]]| {
        let mut made = Made::new();
        sends.iter().for_each(|octets| made.send(0, octets));
        let capture = dissected(&made.packets);
        let complaints = complaints(&capture);
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        complaints[0].to_owned()
    };
    let good = fragments(header(1, 5), b"hello").concat();
    let mut flipped = good.clone();
    flipped[3] ^= 1;
    assert_eq!(
        complaint(&[&flipped]),
        "no fragment of RDS: a wrong checksum"
    );
    assert_eq!(
        complaint(&[&good[..HEADER - 1]]),
        "no fragment of RDS: fewer bytes than a header has"
    );
    assert_eq!(
        complaint(&[&[&good[..], b"!"].concat()]),
        "a fragment of RDS with 6 octets where 5 are right"
    );
    let long = fragments(header(1, 5000), &pattern(5000));
    assert_eq!(
        complaint(&[&long[0][..HEADER + 4000]]),
        "a fragment of RDS with 4000 octets where 4096 are right"
    );
    assert_eq!(
        complaint(&[&long[0], &good]),
        "a fragment of another message of RDS than the last"
    );
    let map = Header {
        flags: Flags::CONG_BITMAP,
        ..header(1, 5)
    };
    assert_eq!(
        complaint(&[&fragments(map, b"hello").concat()]),
        "a congestion map of 5 octets"
    );
    let unknown = Header {
        extensions: Extensions::from_bytes([9; 16]),
        ..header(1, 0)
    };
    assert_eq!(
        complaint(&[&unknown.to_bytes()]),
        "an unknown extension header of RDS"
    );
}

#[test]
fn a_request_with_a_reserved_path_mtu_is_a_complaint() {
    for path_mtu in 0..16 {
        let request = Req {
            path_mtu,
            ..request(PORT)
        };
        let capture = dissected(&[cm(0, request)]);
        let expected = match path_mtu {
            1..=5 => vec![],
            _ => vec![format!(
                "a request with the path MTU code {path_mtu}, which is reserved: 1 to 5 are 256 to 4096 bytes"
            )],
        };
        assert_eq!(complaints(&capture), expected);
    }
}

#[test]
fn bytes_after_private_data_are_a_complaint() {
    let mut reply = reply();
    reply.private_data.0[40] = 1;
    let capture = dissected(&[cm(0, request(PORT)), cm(1, reply)]);
    assert_eq!(complaints(&capture), ["private data that is not all RDS's"]);
}

#[test]
fn padding_and_a_header_without_a_checksum_are_kept() {
    let mut made = Made::new();
    let mut octets = header(1, 0).to_bytes();
    octets[30..32].fill(0);
    octets[27] = 5;
    made.send(0, &octets);
    let sum = polyverbs_wire::rds::checksum(&octets);
    octets[30..32].copy_from_slice(&sum.to_be_bytes());
    made.send(0, &octets);
    let capture = dissected(&made.packets);
    assert_eq!(complaints(&capture), [""; 0]);
    let verdicts: Vec<_> = rds(&capture)
        .iter()
        .map(|rds| rds.header.as_ref().unwrap().checksum.verdict)
        .collect();
    assert_eq!(verdicts, [Verdict::Unused, Verdict::Right]);
}

/// An iWARP stream to the port of RDS.
pub(crate) fn stream() -> Vec<Captured> {
    let (mut initiator, mut responder) = End::pair(PORT);
    let start = |kind, from| {
        let private_data = connect_data(from).to_bytes();
        let start = Start::new(kind, None, &private_data).unwrap();
        let mut octets = [0; 100];
        let len = start.encode(&mut octets).unwrap();
        octets[..len].to_vec()
    };
    let mut packets = vec![
        initiator.syn(false),
        responder.syn(true),
        initiator.send(&start(Kind::Request, 0)),
        responder.send(&start(Kind::Reply, 1)),
    ];
    let mut sender = Direction::new(Framing {
        markers: false,
        crc: false,
    });
    let mut stream = Vec::new();
    let data = pattern(5000);
    for (msn, fragment) in (1..).zip(fragments(header(1, data.len()), &data)) {
        let mut mo = 0;
        for piece in fragment.chunks(1400) {
            let last = mo + piece.len() == fragment.len();
            let opcode = iwarp::Opcode::send(false, false);
            let header = Untagged::new(opcode, queue::SEND, msn, mo as u32, last);
            let ulpdu = [&header.to_view().0, piece].concat();
            let mut out = [0; 1500];
            let len = sender.frame(&[&ulpdu], &mut out).unwrap();
            stream.extend(&out[..len]);
            mo += piece.len();
        }
    }
    packets.extend(stream.chunks(1000).map(|piece| initiator.send(piece)));
    packets.push(initiator.fin());
    packets
}

#[test]
fn streams_of_iwarp_to_the_port_carry_rds() {
    let capture = dissected(&stream());
    assert_eq!(complaints(&capture), [""; 0]);
    assert_eq!(completed(&capture), [&whole(5000)]);
    let said = |at: usize| match &capture.packets[at].completes()[0].unit {
        Unit::Start(start) => start.rds,
        other => panic!("{other:?}"),
    };
    assert_eq!(said(2), Some(connect_data(0)));
    assert_eq!(said(3), Some(connect_data(1)));
    let text = line(&capture.packets[5], capture.packets[0].time);
    assert!(text.contains("TCP MPA DDP RDMAP RDS  Send"), "{text}");
}

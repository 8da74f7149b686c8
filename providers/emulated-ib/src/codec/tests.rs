use std::net::{Ipv6Addr, SocketAddr};

use proptest::prelude::*;

use super::*;
use crate::header::{IpFields, Nak, Syndrome};

const CODEC_PORT: u16 = 4791;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn envelope(v6: bool, identification: u16) -> Envelope {
    let (from, to) = if v6 {
        ("[fd00::1]:49153", "[fd00::2]:4791")
    } else {
        ("10.0.0.1:49153", "10.0.0.2:4791")
    };
    Envelope {
        from: address(from),
        to: address(to),
        identification,
    }
}

fn arrival(envelope: &Envelope, segment: u16) -> Arrival {
    Arrival {
        from: envelope.from,
        to: envelope.to,
        traffic_class: 0,
        segment,
    }
}

fn header(service: QpType, body: Body) -> Header {
    let src_qp = match body {
        Body::Datagram(..) => 0x51,
        _ => Header::UNKNOWN_QP,
    };
    Header {
        service,
        dest_qp: 0x40_0011,
        src_qp,
        psn: Psn::new(0xff_fffe),
        ack_req: false,
        solicited: false,
        xrc: None,
        aeth: Aeth::default(),
        ip: IpFields::default(),
        icrc_unverified: false,
        awaited: false,
        joined: false,
        mtu_shift: 0,
        acknowledges: None,
        body,
    }
}

fn packet(codec: &RoceV2, header: &Header, payload: &[u8], envelope: &Envelope) -> Vec<u8> {
    let mut bytes = vec![0xa5; payload.len() + RoceV2::OVERHEAD];
    let length = payload.len();
    let headers = codec.encode_header(header, length, &mut bytes).unwrap();
    let end = headers + length;
    bytes[headers..end].copy_from_slice(payload);
    bytes.truncate(end + codec.trailer(length));
    codec.seal(envelope, end, &mut bytes);
    bytes
}

fn comes_back(header: Header, payload: &[u8]) {
    let codec = RoceV2::new();
    for v6 in [false, true] {
        let envelope = envelope(v6, 0);
        let bytes = packet(&codec, &header, payload, &envelope);
        assert_eq!(bytes.len() % 4, 0);
        let opened = codec.open(&arrival(&envelope, 0), &bytes).unwrap();
        assert_eq!(opened.header, header);
        assert_eq!((opened.payload, opened.damaged), (payload, false));
    }
}

fn remote() -> RemoteAddress {
    RemoteAddress::new(0x1234_5678_9abc_def0, RKey::new(0x55aa))
}

// covers 9.01 9.07
#[test]
fn every_encoded_request_decodes_to_the_same_header() {
    use Position::{First, Last, Middle, Only};
    let extras = [
        SendExtra::Nothing,
        SendExtra::Immediate([1, 2, 3, 4]),
        SendExtra::Invalidate(0x77),
    ];
    for length in 0..9 {
        let payload = &[0x5a; 8][..length];
        for extra in extras {
            let whole = Body::Send(Only, extra);
            let last = Body::Send(Last, extra);
            comes_back(header(QpType::Rc, whole), payload);
            comes_back(header(QpType::Rc, last), payload);
        }
        comes_back(header(QpType::Uc, Body::Send(Only, extras[1])), payload);
        let datagram = Body::Datagram(0x1111_1111, extras[length % 2], None);
        comes_back(header(QpType::Ud, datagram), payload);
        for immediate in [None, Some([4, 3, 2, 1])] {
            let only = Body::Write(Only, remote(), length as u32, immediate);
            comes_back(header(QpType::Rc, only), payload);
            // Only the first packet has the address and the length.
            let last = Body::Write(Last, RemoteAddress::default(), 0, immediate);
            comes_back(header(QpType::Uc, last), payload);
        }
    }
    let full = [7; 256];
    for service in [QpType::Rc, QpType::Uc] {
        for position in [First, Middle] {
            let send = Body::Send(position, SendExtra::Nothing);
            comes_back(header(service, send), &full);
        }
        let first = Body::Write(First, remote(), 300, None);
        comes_back(header(service, first), &full);
        let middle = Body::Write(Middle, RemoteAddress::default(), 0, None);
        comes_back(header(service, middle), &full);
    }
    for body in [
        Body::ReadRequest(remote(), 4097),
        Body::CompareSwap(remote(), 1, u64::MAX),
        Body::FetchAdd(remote(), 3),
        Body::Flush(remote(), 64, Access::FLUSH_GLOBAL, false),
        Body::Flush(remote(), 0, Access::FLUSH_PERSISTENT, true),
    ] {
        let asks = Header {
            ack_req: true,
            solicited: true,
            ..header(QpType::Rc, body)
        };
        comes_back(asks, &[]);
    }
    comes_back(header(QpType::Rc, Body::AtomicWrite(remote())), &[9; 8]);
    let extension = Body::ExtensionRequest(0x1234_5678, 9);
    comes_back(header(QpType::Rc, extension), &[1; 13]);
    let mut answer = header(QpType::Rc, Body::ExtensionResponse(0x1234_5678, 9));
    answer.aeth = Aeth::ack(7, Some(3));
    comes_back(answer, &[2; 6]);
}

// covers 4.08
#[test]
fn xrc_requests_name_the_shared_queue_and_answers_do_not() {
    let of_xrc = |number, body| Header {
        xrc: Some(number),
        ..header(QpType::Rc, body)
    };
    let send = of_xrc(0xab_cdef, Body::Send(Position::Only, SendExtra::Nothing));
    let bytes = packet(&RoceV2::new(), &send, &[1; 4], &envelope(false, 0));
    // The packet consists of BTH, XRCETH, payload and ICRC.
    assert_eq!((bytes[0], bytes.len()), (0xa4, 12 + 4 + 4 + 4));
    assert_eq!(bytes[12..16], [0, 0xab, 0xcd, 0xef]);
    for body in [
        Body::Send(Position::Only, SendExtra::Immediate([1; 4])),
        Body::Send(Position::Only, SendExtra::Invalidate(7)),
        Body::Write(Position::Only, remote(), 4, None),
        Body::ExtensionRequest(1, 2),
    ] {
        comes_back(of_xrc(0xab_cdef, body), &[1; 4]);
    }
    for body in [
        Body::ReadRequest(remote(), 4),
        Body::CompareSwap(remote(), 1, 2),
        Body::FetchAdd(remote(), 1),
    ] {
        comes_back(of_xrc(0xab_cdef, body), &[]);
    }
    for body in [
        Body::Acknowledge,
        Body::ReadResponse(Position::Only),
        Body::AtomicAcknowledge(9),
    ] {
        let answer = of_xrc(0, body);
        let bytes = packet(&RoceV2::new(), &answer, &[], &envelope(false, 0));
        assert_eq!(bytes[0] >> 5, 0b101, "the service");
        comes_back(answer, &[]);
    }
}

#[test]
fn every_encoded_answer_decodes_to_the_same_header() {
    let timers = (0..32).map(Syndrome::rnr_nak);
    let naks = (0..32).map(|code| Syndrome::nak(Nak(code)));
    for syndrome in timers.chain(naks) {
        let mut header = header(QpType::Rc, Body::Acknowledge);
        let msn = 0xab_cdef;
        header.aeth = Aeth { syndrome, msn };
        comes_back(header, &[]);
    }
    for credit in 0..32 {
        let mut ack = header(QpType::Rc, Body::Acknowledge);
        let (syndrome, msn) = (Syndrome::ack(credit), 5);
        ack.aeth = Aeth { syndrome, msn };
        comes_back(ack, &[]);
        ack.body = Body::AtomicAcknowledge(u64::MAX - 1);
        comes_back(ack, &[]);
        for position in [Position::First, Position::Last, Position::Only] {
            ack.body = Body::ReadResponse(position);
            comes_back(ack, &[3; 256]);
        }
    }
    let middle = header(QpType::Rc, Body::ReadResponse(Position::Middle));
    comes_back(middle, &[3; 256]);
    let mut congestion = header(QpType::Rc, Body::Congestion);
    congestion.psn = Psn::new(0);
    comes_back(congestion, &[]);
}

#[test]
fn an_operation_that_the_service_lacks_is_not_encoded() {
    let codec = RoceV2::new();
    for body in [
        Body::ReadRequest(remote(), 1),
        Body::Send(Position::Only, SendExtra::Invalidate(1)),
        Body::Acknowledge,
    ] {
        let headers = codec.encode_header(&header(QpType::Uc, body), 0, &mut [0; 256]);
        assert_eq!(headers, None, "{body:?}");
    }
}

// covers 3.58
#[test]
fn every_flipped_bit_makes_a_packet_damaged_or_invalid() {
    let codec = RoceV2::new();
    for v6 in [false, true] {
        let envelope = envelope(v6, 0);
        let body = Body::Write(Position::Only, remote(), 5, Some([9; 4]));
        let whole = packet(&codec, &header(QpType::Rc, body), b"hello", &envelope);
        for bit in 0..whole.len() * 8 {
            // FECN, BECN and the reserved bits next to them may change on the way.
            if bit / 8 == 4 {
                continue;
            }
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let opened = codec.open(&arrival(&envelope, 0), &bytes);
            assert!(opened.is_none_or(|opened| opened.damaged), "bit {bit}");
        }
    }
}

// covers 3.56 3.59
#[test]
fn packets_of_another_partition_or_version_are_refused() {
    let codec = RoceV2::new();
    let envelope = envelope(true, 0);
    let send = header(QpType::Rc, Body::Send(Position::Only, SendExtra::Nothing));
    let whole = packet(&codec, &send, b"", &envelope);
    let opens = |change: fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        codec.open(&arrival(&envelope, 0), &bytes).is_some()
    };
    assert!(opens(|_| {}));
    // A limited member of the partition: the packet is a frame, but a damaged one, because the ICRC covers the key.
    assert!(opens(|bytes| bytes[2] = 0x7f));
    assert!(!opens(|bytes| bytes[3] = 0xfe));
    assert!(!opens(|bytes| bytes[1] |= 1));
    assert!(!opens(|bytes| bytes[1] |= 0x30));
    assert!(!opens(|bytes| bytes[0] = 0x1f));
    assert!(!opens(|bytes| bytes.truncate(15)));
}

#[test]
fn a_packet_out_of_its_senders_count_is_marked_unverified() {
    let codec = RoceV2::new();
    let send = header(QpType::Rc, Body::Send(Position::Only, SendExtra::Nothing));
    let check = |identification, segment| {
        let sent = envelope(false, identification);
        let bytes = packet(&codec, &send, b"counted", &sent);
        let opened = codec.open(&arrival(&sent, segment), &bytes).unwrap();
        (opened.damaged, opened.header.icrc_unverified)
    };
    assert_eq!(check(0, 0), (false, false));
    // With segmentation offload the number counts within one call.
    assert_eq!(check(3, 3), (false, false));
    assert_eq!(check(0, 3), (false, false));
    // The first number of a counter proves nothing, its successors do, and a leap is unverified again.
    assert_eq!(check(0x7000, 0), (false, true));
    assert_eq!(check(0x7001, 0), (false, false));
    assert_eq!(check(0x7009, 7), (false, false));
    assert_eq!(check(0x6000, 0), (false, true));
    assert_eq!(check(0x6002, 0), (false, false));
}

#[test]
fn multicast_groups_have_addresses_in_both_families() {
    let codec = RoceV2::new();
    for (gid, address) in [
        ("::ffff:239.1.2.3", "239.1.2.3"),
        ("ff0e::ffff:224.0.0.9", "224.0.0.9"),
        ("ff12::7", "ff12::7"),
        ("ff0e::1", "ff0e::1"),
    ] {
        let gid: Ipv6Addr = gid.parse().unwrap();
        let group = codec.address_of_group(Gid(gid.octets()));
        assert_eq!(group, Some(address.parse().unwrap()));
    }
    let to = SocketAddr::new("239.1.2.3".parse().unwrap(), CODEC_PORT);
    let envelope = Envelope {
        to,
        ..envelope(false, 0)
    };
    let group = Some(Gid::from(to.ip()));
    let body = Body::Datagram(1, SendExtra::Nothing, group);
    let sent = Header {
        dest_qp: MULTICAST_QP,
        ..header(QpType::Ud, body)
    };
    assert_eq!(codec.group(&sent), Some(to.ip()));
    let bytes = packet(&codec, &sent, b"all", &envelope);
    let opened = codec.open(&arrival(&envelope, 0), &bytes).unwrap();
    assert_eq!(opened.header, sent);
}

proptest! {
    #[test]
    fn decoding_arbitrary_bytes_does_not_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200), segment in any::<u16>(),
    ) {
        let codec = RoceV2::new();
        let envelope = envelope(false, 0);
        let _ = codec.open(&arrival(&envelope, segment), &bytes);
        let _ = codec.common(&bytes);
    }

    #[test]
    fn a_decoded_packet_survives_encoding_and_decoding_again(
        opcode in any::<u8>(), bytes in prop::collection::vec(any::<u8>(), 40..120),
    ) {
        let codec = RoceV2::new();
        let envelope = envelope(true, 0);
        let mut bytes = bytes;
        bytes.truncate(bytes.len() / 4 * 4);
        bytes[..4].copy_from_slice(&[opcode, 0x40, 0xff, 0xff]);
        bytes[4] = 0;
        let end = bytes.len() - 4;
        codec.seal(&envelope, end, &mut bytes);
        if let Some(opened) = codec.open(&arrival(&envelope, 0), &bytes) {
            prop_assert!(!opened.damaged);
            let (header, payload) = (opened.header, opened.payload.to_vec());
            let built = packet(&codec, &header, &payload, &envelope);
            let again = codec.open(&arrival(&envelope, 0), &built).unwrap();
            prop_assert_eq!((again.header, again.payload), (header, &payload[..]));
        }
    }
}

#[test]
fn a_record_keeps_its_piggybacked_and_awaited_acknowledge() {
    let codec = RoceV2::new();
    let bodies = [
        Body::Send(Position::Middle, SendExtra::Nothing),
        Body::Write(Position::Only, remote(), 64, Some(*b"imm!")),
    ];
    let acknowledge = Some((Psn::new(0xff_ffff), Aeth::ack(7, Some(3))));
    for (awaited, acknowledges) in [(false, None), (true, None), (true, acknowledge)] {
        for body in bodies {
            let header = Header {
                awaited,
                acknowledges,
                ack_req: true,
                joined: true,
                mtu_shift: 12,
                ..header(QpType::Rc, body)
            };
            let mut room = [0xa5; 128];
            let length = codec.encode_record(&header, 64, &mut room).unwrap();
            let arrival = arrival(&envelope(false, 0), 0);
            assert_eq!(codec.open_record(&arrival, &room[..length]), Some(header));
            assert_eq!(codec.open_record(&arrival, &room[..length - 1]), None);
        }
    }
}

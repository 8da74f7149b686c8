use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use hex_literal::hex;
use proptest::prelude::*;

use super::*;
use crate::layout::Octets;
use crate::roce::{Opcode, Position, SendExtra, Service};

const ENVELOPE: Envelope = Envelope {
    source: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), 0xc0de),
    destination: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)), 4791),
    identification: 3,
};

fn octets_of(headers: &Headers) -> Option<Vec<u8>> {
    let mut room = [0xa5; MAX_HEADER_LEN];
    let len = headers.encode(&mut room)?;
    Some(room[..len].to_vec())
}

// A packet as a sender makes it: headers, payload in two pieces, pad, ICRC.
fn encode(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let headers = octets_of(headers).unwrap();
    let pad = &[0; 3][..usize::from(pad_count(payload.len()))];
    let length = headers.len() + payload.len() + pad.len() + ICRC_LEN;
    let (bth, behind) = view::<Bth>(&headers).unwrap();
    let mut icrc = Icrc::new(&ENVELOPE, length, bth);
    let (front, back) = payload.split_at(payload.len() / 3);
    for octets in [behind, front, back, pad] {
        icrc.update(octets);
    }
    [&headers, payload, pad, &icrc.finish()].concat()
}

fn write_only(payload: &[u8]) -> Headers {
    Headers {
        bth: Bth {
            opcode: Opcode::write(Service::Rc, Position::Only, true),
            pad_count: pad_count(payload.len()),
            p_key: 0xffff,
            dest_qp: 0x11,
            ack_req: true,
            psn: 0xff_fffe,
            ..Bth::default()
        },
        reth: Some(Reth {
            va: 0x1000,
            rkey: 0x1a05,
            dma_length: payload.len() as u32,
        }),
        imm_dt: Some(ImmDt {
            immediate: Octets(*b"imm!"),
        }),
        ..Headers::default()
    }
}

// covers 9.01
#[test]
fn the_icrc_covers_the_zeros_that_pad_the_payload() {
    for length in 0..=8 {
        let payload = vec![0xa5; length];
        let octets = encode(&write_only(&payload), &payload);
        assert_eq!(octets.len() % 4, 0);
        let packet = decode(&octets).unwrap();
        assert_eq!(packet.payload, payload);
        assert_eq!(packet.pad, &[0; 3][..(4 - length % 4) % 4]);
        assert!(packet.is_intact(&ENVELOPE));
        if let Some(at) = packet.pad.first().map(|_| octets.len() - ICRC_LEN - 1) {
            let mut damaged = octets.clone();
            damaged[at] = 1;
            assert!(!decode(&damaged).unwrap().is_intact(&ENVELOPE));
        }
    }
}

#[test]
fn the_opcode_decides_which_headers_are_present() {
    let octets = encode(&write_only(b"hello"), b"hello");
    let packet = decode(&octets).unwrap();
    assert_eq!(packet.get::<Reth>().map(|reth| reth.dma_length()), Some(5));
    let immediate = packet.get::<ImmDt>().map(|imm_dt| imm_dt.immediate());
    assert_eq!(immediate, Some(Octets(*b"imm!")));
    assert!(packet.get::<Aeth>().is_none() && packet.get::<Ieth>().is_none());
    assert_eq!(packet.bth.psn(), 0xff_fffe);
    assert_eq!(packet.facts.headers, HeaderSet::RETH | HeaderSet::IMM_DT);
}

// concerns 3.59
#[test]
fn malformed_packets_are_refused_with_a_reason() {
    let good = encode(&write_only(b"12345"), b"12345");
    let with = |at: usize, octet: u8| {
        let mut octets = good.clone();
        octets[at] = octet;
        decode(&octets).map(|_| ()).unwrap_err()
    };
    assert_eq!(with(1, 0x31), Reject::TransportVersion);
    assert_eq!(with(0, 0x15), Reject::Opcode);
    assert_eq!(with(0, 0x4a), Reject::Opcode);
    assert_eq!(with(0, 0xc1), Reject::Opcode);

    let mut lies = encode(&write_only(b""), b"");
    lies[1] |= 0x30;
    assert_eq!(decode(&lies).map(|_| ()).unwrap_err(), Reject::Pad);
    let mut odd = good.clone();
    odd.push(0);
    assert_eq!(decode(&odd).map(|_| ()).unwrap_err(), Reject::Pad);
}

#[test]
fn headers_that_the_opcode_does_not_have_are_not_encoded() {
    let mut headers = decode(&encode(&write_only(b""), b"")).unwrap().headers();
    assert!(octets_of(&headers).is_some());
    headers.imm_dt = None;
    assert!(octets_of(&headers).is_none());
    headers.bth.opcode = Opcode::write(Service::Rc, Position::Only, false);
    assert!(octets_of(&headers).is_some());
    headers.bth.opcode = Opcode::send(Service::Rc, Position::Only, SendExtra::Nothing);
    assert!(octets_of(&headers).is_none());
    headers.bth.opcode = Opcode(0x15);
    assert!(octets_of(&headers).is_none());
}

#[test]
fn a_congestion_notification_equals_a_connectxs() {
    let bth = Bth {
        opcode: Opcode::CNP,
        p_key: 0xffff,
        becn: true,
        dest_qp: 0x118,
        ..Bth::default()
    };
    let headers = Headers {
        bth,
        cnp: Some(Cnp::default()),
        ..Headers::default()
    };
    let octets = hex!("8100ffff4000011800000000" "00000000000000000000000000000000");
    assert_eq!(octets_of(&headers).unwrap(), octets);
}

#[test]
fn no_opcode_has_more_headers_than_the_longest() {
    let longest = Opcode::known().map(|(_, facts)| Bth::LEN + facts.headers_len);
    assert_eq!(longest.max(), Some(MAX_HEADER_LEN));
}

#[test]
fn every_opcode_encodes_to_the_bytes_it_came_from() {
    for (opcode, facts) in Opcode::known() {
        let mut octets = [0xa5; MAX_HEADER_LEN + 12];
        let octets = &mut octets[..Bth::LEN + facts.headers_len + 8 + ICRC_LEN];
        octets[0] = opcode.0;
        // Every flag is set, the pad has two bytes, and the version is 0.
        octets[1] = 0xe0;
        let packet = decode(octets).unwrap();
        assert_eq!(packet.payload.len(), 6);
        let again = octets_of(&packet.headers()).unwrap();
        assert_eq!(again, &octets[..Bth::LEN + facts.headers_len]);
    }
}

proptest! {
    #[test]
    fn any_input_decodes_or_is_refused(octets in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(packet) = decode(&octets) {
            let _ = packet.is_intact(&ENVELOPE);
            let headers = octets_of(&packet.headers()).unwrap();
            let again = [&headers, packet.payload, packet.pad, &packet.icrc].concat();
            prop_assert_eq!(again, octets);
        }
    }

    #[test]
    fn packets_of_known_opcodes_encode_to_the_same_bytes(
        code in any::<proptest::sample::Index>(),
        bits in any::<[u8; MAX_HEADER_LEN]>(),
        payload in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let known: Vec<_> = Opcode::known().collect();
        let (opcode, facts) = known[code.index(known.len())];
        let mut octets = bits[..Bth::LEN + facts.headers_len].to_vec();
        octets[0] = opcode.0;
        octets[1] = octets[1] & 0xc0 | pad_count(payload.len()) << 4;
        octets.extend(&payload);
        octets.extend([0; 3].iter().take(usize::from(pad_count(payload.len()))));
        octets.extend([0; ICRC_LEN]);
        let packet = decode(&octets).unwrap();
        prop_assert_eq!(packet.payload, &payload[..]);
        let headers = packet.headers();
        let again = encode(&headers, &payload);
        prop_assert!(decode(&again).unwrap().is_intact(&ENVELOPE));
        prop_assert_eq!(decode(&again).unwrap().headers(), headers);
    }
}

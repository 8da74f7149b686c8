use hex_literal::hex;

use core::net::Ipv4Addr;

use super::*;
use crate::layout::view;
use crate::roce::packet::decode;
use crate::roce::{Bth, Reject};

// A UC SEND Only over IPv4 with a UDP checksum, from the IP header to the ICRC.
const SEND_V4: [u8; 64] = hex!(
    "45010040047840004011b4d5c0a80007c0a80007c00012b7002caca22460ffff000000d300cf17104630818be28935d90e9a95505401be885e500000"
    "78f353f3"
);

// A CNP that a ConnectX-4 sent. It has BECN set and a traffic class other than zero.
const CNP_V4: [u8; 60] = hex!(
    "45c2003c718c4000401191610a0011010a001201000012b7002800008100ffff4000011800000000"
    "00000000000000000000000000000000"
    "82fd002a"
);

// An RC SEND Only over IPv6.
const SEND_V6: [u8; 68] = hex!(
    "60000000001c1140fe80000000000000000000000000000afe80000000000000000000000000000bc12312b7001c00000400ffff000000118000012361626364"
    "9f1a775e"
);

fn is_intact_v4(octets: &[u8]) -> bool {
    let (ip, rest) = view::<Ipv4>(octets).unwrap();
    let (udp, rest) = view::<Udp>(rest).unwrap();
    decode(rest)
        .is_ok_and(|packet| packet.finish(Icrc::of_ipv4(ip, &[], udp, packet.bth)) == packet.icrc)
}

fn is_intact_v6(octets: &[u8]) -> bool {
    let (ip, rest) = view::<Ipv6>(octets).unwrap();
    let (udp, rest) = view::<Udp>(rest).unwrap();
    decode(rest)
        .is_ok_and(|packet| packet.finish(Icrc::of_ipv6(ip, &[], udp, packet.bth)) == packet.icrc)
}

#[test]
fn captured_packets_have_the_computed_icrc() {
    for octets in [&SEND_V4[..], &CNP_V4] {
        assert!(is_intact_v4(octets));
    }
    assert!(is_intact_v6(&SEND_V6));
}

#[test]
fn fields_that_routers_change_are_not_covered() {
    let changed = |at: usize, bits: u8| {
        let mut octets = SEND_V4;
        octets[at] ^= bits;
        is_intact_v4(&octets)
    };
    for (at, bits) in [
        (1, 0xff),
        (8, 0xff),
        (10, 0xff),
        (11, 0xff),
        (26, 0xff),
        (27, 0xff),
        (32, 0xff),
    ] {
        assert!(changed(at, bits), "octet {at}");
    }
    for at in [0, 2, 3, 4, 5, 6, 7, 9]
        .into_iter()
        .chain(12..26)
        .chain(33..64)
    {
        assert!(!changed(at, 1), "octet {at}");
    }

    let changed = |at: usize, bits: u8| {
        let mut octets = SEND_V6;
        octets[at] ^= bits;
        is_intact_v6(&octets)
    };
    for (at, bits) in [
        (0, 0x0f),
        (1, 0xff),
        (2, 0xff),
        (3, 0xff),
        (7, 0xff),
        (46, 0xff),
        (52, 0xff),
    ] {
        assert!(changed(at, bits), "octet {at}");
    }
    for at in (4..7).chain(8..46).chain(53..68) {
        assert!(!changed(at, 1), "octet {at}");
    }
    assert!(!changed(0, 0x10));
}

const ENVELOPE_V4: Envelope = Envelope {
    source: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 168, 0, 7)), 0xc000),
    destination: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 168, 0, 7)), 4791),
    identification: 0x0478,
};

#[test]
fn the_icrc_does_not_depend_on_how_the_payload_is_divided() {
    let datagram = &SEND_V4[28..];
    let packet = decode(datagram).unwrap();
    let covered = &datagram[Bth::LEN..datagram.len() - 4];
    for cut in 0..covered.len() {
        let mut icrc = Icrc::new(&ENVELOPE_V4, datagram.len(), packet.bth);
        icrc.update(&covered[..cut]);
        icrc.update(&covered[cut..]);
        assert_eq!(icrc.finish(), hex!("78f353f3"));
    }
}

#[test]
fn an_envelope_suffices_to_check_the_icrc() {
    assert!(decode(&SEND_V4[28..]).unwrap().is_intact(&ENVELOPE_V4));
    let envelope = Envelope {
        source: "[fe80::a]:49443".parse().unwrap(),
        destination: "[fe80::b]:4791".parse().unwrap(),
        identification: 0,
    };
    assert!(decode(&SEND_V6[48..]).unwrap().is_intact(&envelope));
}

fn finished(identification: u16, datagram: &[u8]) -> [u8; 4] {
    let envelope = Envelope {
        source: "10.77.0.1:53539".parse().unwrap(),
        destination: "10.77.0.2:4791".parse().unwrap(),
        identification,
    };
    let (bth, rest) = view::<Bth>(datagram).unwrap();
    let mut icrc = Icrc::new(&envelope, datagram.len() + 4, bth);
    icrc.update(rest);
    icrc.finish()
}

#[test]
fn an_unseen_identification_is_recovered() {
    for length in [12, 16, 60, 268, 1068, 4140, 65_000] {
        let datagram: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
        let recovery = Recovery::for_datagrams_of(length + 4);
        let computed = finished(0, &datagram);
        for identification in [0, 1, 2, 0xff, 0x100, 0x1234, 0x8000, 0xffff] {
            let received = finished(identification, &datagram);
            assert_eq!(
                recovery.identification(received, computed),
                Some(identification)
            );
        }
    }
}

#[test]
fn no_identification_explains_a_damaged_packet() {
    let mut datagram: Vec<u8> = (0..300).map(|at| (at * 5) as u8).collect();
    let recovery = Recovery::for_datagrams_of(304);
    let received = finished(0x4711, &datagram);
    for at in (0..300).filter(|&at| at != 4) {
        datagram[at] ^= 0x40;
        let computed = finished(0, &datagram);
        assert_eq!(
            recovery.identification(received, computed),
            None,
            "octet {at}"
        );
        datagram[at] ^= 0x40;
    }
}

#[test]
fn plausible_steps_grow_with_the_pause() {
    let pause = Duration::from_millis;
    assert!(step_is_plausible(7, 8, pause(0)));
    assert!(step_is_plausible(0xffff, 3, pause(0)));
    assert!(!step_is_plausible(7, 6, pause(0)));
    assert!(!step_is_plausible(0, 65, pause(0)));
    assert!(step_is_plausible(0, 1164, pause(1000)));
    assert!(!step_is_plausible(0, 1165, pause(1000)));
    assert!(step_is_plausible(7, 6, pause(100_000)));
}

#[test]
fn truncated_packets_are_refused() {
    let datagram = &SEND_V4[28..];
    for length in 0..datagram.len() {
        match decode(&datagram[..length]) {
            Err(reject) => assert!(matches!(reject, Reject::Short | Reject::Pad)),
            Ok(packet) => assert!(!packet.is_intact(&ENVELOPE_V4), "{length} octets"),
        }
    }
}

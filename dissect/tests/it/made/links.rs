use polyverbs_dissect::file::LinkType;
use polyverbs_dissect::form::{Content, Ip, Joined, Link, Payload, Verdict};
use polyverbs_dissect::{Capture, line, summary::Protocol};
use polyverbs_wire::layout::Octets;
use polyverbs_wire::net::{Erspan2, Ethernet, Gre, Sll, Sll2, Vlan, ethertype, protocol};

use crate::made::maker::*;

fn on_every_link(ethertype: u16, packet: &[u8]) -> Vec<(LinkType, Vec<u8>)> {
    let behind = |front: Vec<u8>| [front, packet.to_vec()].concat();
    let vlan = Vlan {
        id: 7,
        ethertype,
        ..Vlan::default()
    };
    let outer = Vlan {
        priority: 5,
        drop_eligible: true,
        id: 9,
        ethertype: ethertype::VLAN,
    };
    let sll = Sll {
        packet_type: 4,
        device_type: 1,
        address_length: 6,
        address: Octets([1, 2, 3, 4, 5, 6, 0, 0]),
        protocol: ethertype,
    };
    let sll2 = Sll2 {
        protocol: ethertype,
        interface: 3,
        device_type: 1,
        ..Sll2::default()
    };
    let tagged = [
        ethernet(ethertype::SERVICE_VLAN),
        octets_of(&outer),
        octets_of(&vlan),
    ];
    vec![
        (LinkType::Ethernet, behind(ethernet(ethertype))),
        (LinkType::Ethernet, behind(tagged.concat())),
        (LinkType::Raw, packet.to_vec()),
        (LinkType::Sll, behind(octets_of(&sll))),
        (LinkType::Sll2, behind(octets_of(&sll2))),
    ]
}

#[test]
fn packets_are_found_on_every_link_type() {
    let v4 = on_every_link(ethertype::IPV4, &roce_v4(b"hello"));
    let v6 = on_every_link(ethertype::IPV6, &roce_v6(b"hello"));
    let packets: Vec<_> = v4
        .into_iter()
        .chain(v6)
        .map(|(link_type, octets)| captured(link_type, octets))
        .collect();
    let capture = dissected(&packets);
    assert_eq!(complaints(&capture), [""; 0]);
    assert_eq!((capture.summary.roce, capture.summary.icrc.right), (10, 10));
    let opcodes = &capture.summary.opcodes;
    assert_eq!(
        (opcodes[0].protocol, opcodes[0].octets),
        (Protocol::RoceV2, 50)
    );
    assert_eq!(capture.packets[1].layers.len(), 2);
    assert!(matches!(capture.packets[2].link, Link::Raw));
    assert!(matches!(capture.packets[7].ip, Some(Ip::V6 { .. })));
    let text = line(&capture.packets[1], capture.packets[0].time);
    assert!(
        text.contains("Ethernet VLAN VLAN IPv4 UDP BTH  RC SEND Only"),
        "{text}"
    );
}

#[test]
fn link_layer_padding_is_no_part_of_a_packet() {
    let octets = [ethernet(ethertype::IPV4), roce_v4(b""), vec![0; 6]].concat();
    let capture = dissected(&[captured(LinkType::Ethernet, octets)]);
    assert_eq!(complaints(&capture), [""; 0]);
    assert_eq!(capture.packets[0].trailer.0, [0; 6]);
}

#[test]
fn a_wrong_icrc_is_a_complaint_and_kept() {
    let mut octets = [ethernet(ethertype::IPV4), roce_v4(b"hello")].concat();
    let last = octets.len() - 1;
    octets[last] ^= 1;
    let capture = dissected(&[captured(LinkType::Ethernet, octets)]);
    assert!(complaints(&capture)[0].starts_with("ICRC "));
    let roce = capture.packets[0].roce().unwrap();
    assert_eq!(roce.icrc.unwrap().verdict, Verdict::Wrong);
    assert!(!capture.summary.is_clean());
    assert_eq!(
        (capture.summary.icrc.right, capture.summary.icrc.wrong),
        (0, 1)
    );
}

fn joined(capture: &Capture) -> &Joined {
    match &capture.packets[0].content {
        Content::Joined(joined) => joined,
        other => panic!("{other:?}"),
    }
}

#[test]
fn joined_packets_are_split_whatever_their_identifications() {
    let (long, short) = ([7; 600], [9; 33]);
    for counts in [false, true] {
        let octets = joined_v4(&[&long, &long, &long, &short], counts);
        let capture = dissected(&[captured(LinkType::Raw, octets)]);
        assert_eq!(complaints(&capture), [""; 0]);
        assert_eq!((capture.summary.icrc.right, capture.summary.joined), (4, 4));
        let joined = joined(&capture);
        assert_eq!(joined.identification_counts, counts);
        assert_eq!(joined.packets[3].payload, Payload::Data(short[..].into()));
    }
}

#[test]
fn a_damaged_packet_among_joined_ones_is_named() {
    for damaged in [0, 1, 2] {
        let mut octets = joined_v4(&[&[7; 60], &[8; 60], &[9; 60]], true);
        let packet = (octets.len() - 28) / 3;
        octets[28 + damaged * packet + 20] ^= 1;
        let capture = dissected(&[captured(LinkType::Raw, octets)]);
        let icrc = capture.summary.icrc;
        assert_eq!((icrc.right, icrc.wrong), (2, 1));
        let said = format!("packet {}: ICRC ", damaged + 1);
        assert!(complaints(&capture)[0].starts_with(&said));
        assert_eq!(capture.summary.complaints, 1);
    }
}

#[test]
fn a_truncated_mirrored_packet_is_cut_and_not_wrong() {
    let whole = roce_v4(&[7; 100]);
    let mirrored = [ethernet(ethertype::IPV4), whole[..80].to_vec()].concat();
    let erspan = octets_of(&Erspan2 {
        version: 1,
        truncated: true,
        ..Erspan2::default()
    });
    let gre = octets_of(&Gre {
        sequence: true,
        ethertype: ethertype::ERSPAN,
        ..Gre::default()
    });
    let tunnel = [gre, vec![0; 4], erspan, mirrored].concat();
    let octets = ipv4(protocol::GRE, 1, &tunnel);
    let capture = dissected(&[captured(LinkType::Raw, octets)]);
    assert_eq!(complaints(&capture), [""; 0]);
    assert_eq!(capture.packets[0].roce().unwrap().cut_from, Some(100));
}

#[test]
fn fields_that_routers_change_do_not_affect_the_icrc() {
    let mut octets = roce_v4(b"hello");
    octets[1] = 0x03;
    octets[8] = 1;
    octets[10] ^= 0x55;
    let capture = dissected(&[captured(LinkType::Raw, octets)]);
    assert_eq!(complaints(&capture), [""; 0]);
}

#[test]
fn an_invalid_datagram_on_the_port_of_rocev2_is_a_complaint() {
    let packet = roce_v4(b"hello");
    let with = |at: usize, octet: u8| {
        let mut octets = packet.clone();
        octets[at] = octet;
        captured(LinkType::Raw, octets)
    };
    let packets = [
        with(28, 0x15), // Opcode.
        with(29, 0x31), // Version of the transport.
        with(25, 4),    // UDP's length, too small.
        with(24, 0xff), // UDP's length, too large.
    ];
    let capture = dissected(&packets);
    assert_eq!(capture.summary.complaints, 4);
    assert_eq!(capture.summary.roce, 4);
    for packet in &capture.packets {
        assert!(matches!(packet.content, Content::BadRoce(_)), "{packet:?}");
        assert!(packet.complaints[0].starts_with("no packet of RoCEv2"));
    }
}

#[test]
fn packets_of_other_protocols_are_no_complaint() {
    let arp = octets_of(&Ethernet {
        ethertype: 0x0806,
        ..Ethernet::default()
    });
    let dns = {
        let mut octets = roce_v4(b"");
        octets[22..24].copy_from_slice(&53_u16.to_be_bytes());
        octets
    };
    let fragment = {
        let mut octets = roce_v4(b"");
        octets[6] = 0x20;
        octets
    };
    let packets = [
        captured(LinkType::Ethernet, [arp, vec![0; 28]].concat()),
        captured(LinkType::Ethernet, vec![1, 2, 3]),
        captured(LinkType::Ethernet, vec![]),
        captured(LinkType::Raw, dns),
        captured(LinkType::Raw, fragment),
        captured(LinkType::Raw, vec![0x45; 21]),
        captured(LinkType::Raw, vec![0x60; 39]),
        captured(LinkType::Raw, ipv4(1, 0, b"ping")),
    ];
    let capture = dissected(&packets);
    assert!(capture.summary.is_clean());
    assert_eq!((capture.summary.packets, capture.summary.roce), (8, 0));
    let text = line(&capture.packets[0], capture.packets[0].time);
    assert!(text.contains("Ethernet ARP"), "{text}");
}

use polyverbs_dissect::form::{Content, Packet, Verdict};
use polyverbs_dissect::{Capture, file::LinkType, line};
use polyverbs_wire::net::{Ipv4, Ipv6, protocol};

use crate::made::maker::*;

/// The fragments of an IPv4 packet without options, each with this many bytes of the payload at most.
fn cut_v4(whole: &[u8], most: usize) -> Vec<Vec<u8>> {
    let (header, payload) = whole.split_at(Ipv4::LEN);
    let pieces = payload.chunks(most).enumerate();
    let fragment = |(number, piece): (usize, &[u8])| {
        let mut header = header.to_vec();
        header[2..4].copy_from_slice(&((Ipv4::LEN + piece.len()) as u16).to_be_bytes());
        let is_last = (number + 1) * most >= payload.len();
        let place = (number * most / 8) as u16 | u16::from(!is_last) << 13;
        header[6] |= (place >> 8) as u8;
        header[7] = place as u8;
        [header, piece.to_vec()].concat()
    };
    pieces.map(fragment).collect()
}

/// The fragments of an IPv6 packet whose extension headers are `unfragmentable` bytes long.
fn cut_v6(whole: &[u8], unfragmentable: usize, most: usize) -> Vec<Vec<u8>> {
    let front = Ipv6::LEN + unfragmentable;
    let (headers, payload) = whole.split_at(front);
    let next_header = if unfragmentable == 0 { 6 } else { Ipv6::LEN };
    let pieces = payload.chunks(most).enumerate();
    let fragment = |(number, piece): (usize, &[u8])| {
        let mut headers = headers.to_vec();
        let len = (unfragmentable + 8 + piece.len()) as u16;
        headers[4..6].copy_from_slice(&len.to_be_bytes());
        let protocol = std::mem::replace(&mut headers[next_header], protocol::FRAGMENT);
        let is_last = (number + 1) * most >= payload.len();
        let place = (number * most) as u16 | u16::from(!is_last);
        let [high, low] = place.to_be_bytes();
        [
            headers,
            vec![protocol, 0, high, low, 0, 0, 0, 7],
            piece.to_vec(),
        ]
        .concat()
    };
    pieces.map(fragment).collect()
}

fn of(fragments: &[Vec<u8>]) -> Capture {
    let packets = fragments.iter();
    dissected(
        &packets
            .map(|octets| captured(LinkType::Raw, octets.clone()))
            .collect::<Vec<_>>(),
    )
}

/// The packet that a fragment has completed: a RoCE packet with a right ICRC.
fn completed(packet: &Packet) -> &Packet {
    let whole = packet.reassembled.as_ref().expect("the last fragment");
    let Content::Roce(roce) = &whole.content else {
        panic!("{whole:?}");
    };
    assert_eq!(roce.icrc.map(|icrc| icrc.verdict), Some(Verdict::Right));
    whole
}

fn reasons(capture: &Capture) -> Vec<(&str, u64)> {
    let passed_over = capture.summary.passed_over.iter();
    passed_over
        .map(|passed| (&passed.reason[..], passed.count))
        .collect()
}

#[test]
fn packets_are_put_together_from_fragments_in_any_order() {
    for fragments in [
        cut_v4(&roce_v4(&[7; 100]), 48),
        cut_v6(&roce_v6(&[7; 100]), 0, 48),
    ] {
        assert_eq!(fragments.len(), 3);
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let capture = of(&order.map(|number| fragments[number].clone()));
            let [first, second, last] = &capture.packets[..] else {
                panic!("{capture:?}");
            };
            for packet in [first, second, last] {
                assert!(matches!(packet.content, Content::Fragment(_)));
            }
            assert!(first.reassembled.is_none() && second.reassembled.is_none());
            let text = line(last, last.time);
            completed(last);
            assert!(text.contains("completes IP"), "{text}");
            assert!(text.contains("UDP BTH  RC SEND"), "{text}");
            let summary = &capture.summary;
            assert_eq!(
                (summary.reassembled, summary.roce, summary.complaints),
                (1, 1, 0)
            );
            assert_eq!(summary.icrc.right, 1);
            assert_eq!(reasons(&capture), []);
        }
    }
}

#[test]
fn extension_headers_before_that_of_a_fragment_are_kept() {
    let mut whole = roce_v6(&[7; 100]);
    whole[6] = protocol::DESTINATION_OPTIONS;
    whole.splice(Ipv6::LEN..Ipv6::LEN, [protocol::UDP, 0, 1, 4, 0, 0, 0, 0]);
    let capture = of(&cut_v6(&whole, 8, 48));
    let last = capture.packets.last().expect("three packets");
    let whole = last.reassembled.as_ref().expect("the last fragment");
    assert!(matches!(whole.content, Content::Roce(_)), "{whole:?}");
}

#[test]
fn fragments_in_a_tunnel_of_fragments_are_passed_over() {
    let inner = &cut_v4(&roce_v4(&[7; 100]), 48)[0];
    let capture = of(&cut_v4(&ipv4(protocol::IPV4, 0, inner), 32));
    assert_eq!(reasons(&capture), [("a fragment in fragments", 1)]);
    assert_eq!(capture.summary.reassembled, 1);
}

#[test]
fn fragments_of_packets_that_are_not_whole_are_counted() {
    let v4 = cut_v4(&roce_v4(&[7; 100]), 48);
    let v6 = cut_v6(&roce_v6(&[7; 100]), 0, 48);
    let capture = of(&[v4[0].clone(), v4[2].clone(), v6[1].clone()]);
    assert_eq!(
        reasons(&capture),
        [
            ("IPv4 fragment of a packet that is not whole", 2),
            ("IPv6 fragment of a packet that is not whole", 1)
        ]
    );
    assert_eq!(
        (capture.summary.reassembled, capture.summary.complaints),
        (0, 0)
    );
}

#[test]
fn fragments_that_overlap_change_nothing_and_are_counted() {
    let fragments = cut_v4(&roce_v4(&[7; 100]), 48);
    let other = cut_v4(&roce_v4(&[9; 100]), 64);
    let capture = of(&[
        fragments[0].clone(),
        fragments[0].clone(),
        other[0].clone(),
        fragments[2].clone(),
        other[1].clone(),
        fragments[1].clone(),
    ]);
    completed(&capture.packets[5]);
    assert_eq!(
        reasons(&capture),
        [("IPv4 fragment that overlaps another", 3)]
    );
}

#[test]
fn fragments_beyond_the_end_of_their_packet_are_counted() {
    let fragments = cut_v4(&roce_v4(&[7; 100]), 48);
    let longer = cut_v4(&roce_v4(&[7; 200]), 48);
    let capture = of(&[
        fragments[2].clone(),
        longer[3].clone(),
        fragments[0].clone(),
        fragments[1].clone(),
    ]);
    completed(&capture.packets[3]);
    assert_eq!(
        reasons(&capture),
        [("IPv4 fragment beyond the end of its packet", 1)]
    );
}

#[test]
fn a_fragment_that_is_cut_completes_nothing() {
    let mut packets: Vec<_> = cut_v4(&roce_v4(&[7; 100]), 48)
        .into_iter()
        .map(|octets| captured(LinkType::Raw, octets))
        .collect();
    packets[1].octets.truncate(40);
    let capture = dissected(&packets);
    assert_eq!(
        reasons(&capture),
        [
            ("IPv4 fragment of a packet that is not whole", 2),
            ("IPv4 fragment that is cut", 1)
        ]
    );
}

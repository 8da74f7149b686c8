use std::fs::File;
use std::path::Path;
use std::sync::LazyLock;

use polyverbs_dissect::file::{Captured, LinkType};
use polyverbs_dissect::{Capture, CaptureFile, dissect, line};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::made::maker::{captured, dissected};
use crate::made::rds;

static CAPTURED: LazyLock<Vec<Vec<Captured>>> = LazyLock::new(|| {
    let names = [
        "captures/rds_rdma",
        "captures/rxe_rping",
        "captures/rxe_atomicfa",
        "captures/siw_crc_rping",
        "captures/siw_rping",
        "captures/siw_write",
    ];
    // Each file has one or a few packets; together they are a capture.
    let files = [
        "files/cut-gro",
        "files/cut-vxlan",
        "files/erspan3-sub",
        "files/geneve-opt",
        "files/gre-csum-key-seq",
        "files/gro-merged",
        "files/ipv6-hop-by-hop",
        "files/llc-snap",
        "files/mpls3",
        "files/pppoe",
        "files/roce-v1-vlan",
    ];
    let made = [rds::packets(), rds::stream()];
    let of_files = files.into_iter().flat_map(packets).collect();
    let captures = names.map(packets).into_iter();
    captures.chain(made).chain([of_files]).collect()
});

fn packets(name: &str) -> Vec<Captured> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.pcap"));
    let mut file = CaptureFile::new(File::open(path).unwrap()).unwrap();
    std::iter::from_fn(|| file.next_packet().unwrap()).collect()
}

#[derive(Clone, Debug)]
enum Change {
    Bit(Index, Index),
    Cut(Index, Index),
    Drop(Index),
    Twice(Index, Index),
    Swap(Index, Index),
}

fn change() -> impl Strategy<Value = Change> {
    let two = || (any::<Index>(), any::<Index>());
    prop_oneof![
        4 => two().prop_map(|(packet, bit)| Change::Bit(packet, bit)),
        1 => two().prop_map(|(packet, len)| Change::Cut(packet, len)),
        1 => any::<Index>().prop_map(Change::Drop),
        1 => two().prop_map(|(packet, to)| Change::Twice(packet, to)),
        1 => two().prop_map(|(one, other)| Change::Swap(one, other)),
    ]
}

fn apply(packets: &mut Vec<Captured>, change: &Change) {
    let count = packets.len();
    match change {
        Change::Bit(packet, bit) => {
            let octets = &mut packets[packet.index(count)].octets;
            if !octets.is_empty() {
                let bit = bit.index(8 * octets.len());
                octets[bit / 8] ^= 1 << (bit % 8);
            }
        }
        Change::Cut(packet, len) => {
            let octets = &mut packets[packet.index(count)].octets;
            octets.truncate(len.index(octets.len() + 1));
        }
        Change::Drop(packet) => {
            packets.remove(packet.index(count));
        }
        Change::Twice(packet, to) => {
            let packet = packets[packet.index(count)].clone();
            packets.insert(to.index(count), packet);
        }
        Change::Swap(one, other) => packets.swap(one.index(count), other.index(count)),
    }
}

proptest! {
    // `dissected` builds the packets again and compares them.
    #[test]
    fn every_capture_is_encoded_again(
        which in any::<Index>(),
        changes in proptest::collection::vec(change(), 1..12),
    ) {
        let mut packets = CAPTURED[which.index(CAPTURED.len())].clone();
        for change in &changes {
            apply(&mut packets, change);
        }
        let capture = dissected(&packets);
        for packet in &capture.packets {
            let _ = line(packet, capture.packets[0].time);
        }
        let json = serde_json::to_string(&capture).unwrap();
        prop_assert_eq!(serde_json::from_str::<Capture>(&json).unwrap(), capture);
    }

    #[test]
    fn arbitrary_bytes_as_a_packet_do_not_panic(
        octets in proptest::collection::vec(any::<u8>(), 0..200),
        link in 0..5,
    ) {
        let links = [LinkType::Ethernet, LinkType::Raw, LinkType::Sll, LinkType::Sll2, LinkType::Loopback];
        dissected(&[captured(links[link as usize], octets)]);
    }

    #[test]
    fn arbitrary_bytes_as_a_file_do_not_panic(
        kind in 0..3,
        octets in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let front: &[u8] = match kind {
            0 => &[],
            1 => &[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0],
            _ => &[
                0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255,
                255, 255, 255, 255, 255, 28, 0, 0, 0,
            ],
        };
        let _ = dissect(&[front, &octets].concat()[..]);
    }
}

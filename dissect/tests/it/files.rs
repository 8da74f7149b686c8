//! Files as other tools write them, with three packets unless a test says otherwise.

use std::fs::File;
use std::path::{Path, PathBuf};

use polyverbs_dissect::file::{Captured, LinkType};
use polyverbs_dissect::form::Content;
use polyverbs_dissect::{Capture, CaptureFile, FileError, Summary, dissect, line};

use crate::made::maker::{complaints, dissected};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/files")
        .join(name)
}

// The packets that can be read, and the defect that stops the reader.
fn read(name: &str) -> (Vec<Captured>, Option<FileError>) {
    let mut file = CaptureFile::new(File::open(path(name)).unwrap()).unwrap();
    let mut packets = Vec::new();
    loop {
        match file.next_packet() {
            Ok(Some(packet)) => packets.push(packet),
            Ok(None) => return (packets, None),
            Err(error) => return (packets, Some(error)),
        }
    }
}

fn whole(name: &str) -> Vec<Captured> {
    let (packets, error) = read(name);
    assert!(error.is_none(), "{name}: {error:?}");
    packets
}

#[test]
fn files_are_read_however_their_tools_write_them() {
    let written = whole("le-ns.pcap");
    let octets = |packets: &[Captured]| -> Vec<_> {
        packets.iter().map(|packet| packet.octets.clone()).collect()
    };
    for name in [
        "be-us.pcap",
        "be-ns.pcap",
        "kuznetzov.pcap",
        "if-tsoffset.pcapng",
        "if-tzone.pcapng",
        "late-idb.pcapng",
        "latin1-comment.pcapng",
        "no-end-of-opt.pcapng",
        "obsolete-packet-block.pcapng",
        "opb-be.pcapng",
        "opt-custom.pcapng",
        "reserved-everywhere.pcapng",
        "reserved-not-zero.pcapng",
        "section-length-wrong.pcapng",
        "unknown-blocks.pcapng",
    ] {
        let packets = whole(name);
        assert_eq!(octets(&packets), octets(&written), "{name}");
        let link_types = packets.iter().map(|packet| packet.link_type);
        assert_eq!(link_types.collect::<Vec<_>>(), [LinkType::Ethernet; 3]);
    }
    let twice = octets(&[written.clone(), written].concat());
    assert_eq!(octets(&whole("two-sections.pcapng")), twice);
}

#[test]
fn times_are_in_the_units_and_with_the_offset_of_the_file() {
    for (name, nanoseconds) in [
        ("be-us.pcap", 1_700_000_000_001_000_000),
        ("be-ns.pcap", 1_700_000_000_000_001_000),
        ("if-tsoffset.pcapng", 1_700_000_000_000_000_000),
        ("if-tzone.pcapng", 1_700_000_000_000_000_000),
        ("be-tsoffset.pcapng", 1_700_000_000_000_000_000),
        ("tsoffset-negative.pcapng", 1_699_999_900_000_000_000),
        ("tsresol-9.pcapng", 1_700_000_000_000_000_000),
        ("tsresol-2-10.pcapng", 1_700_000_000_500_000_000),
        ("opb-be.pcapng", 1_700_000_000_000_000_000),
        ("spb-snap.pcapng", 0),
    ] {
        assert_eq!(whole(name)[0].time.as_nanos(), nanoseconds, "{name}");
    }
}

#[test]
fn the_captured_length_is_that_of_the_file() {
    let lengths = |name| -> Vec<_> {
        let packets = whole(name).into_iter();
        packets
            .map(|packet| (packet.octets.len(), packet.original_len))
            .collect()
    };
    assert_eq!(
        lengths("odd-captured.pcapng"),
        [(77, 274), (61, 62), (62, 62)]
    );
    assert_eq!(lengths("spb-snap.pcapng"), [(96, 274), (62, 62), (62, 62)]);
    assert_eq!(lengths("cut-to-58.pcap"), [(58, 274), (58, 62), (58, 62)]);
}

#[test]
fn each_packet_has_the_link_type_of_its_interface() {
    let link_types = |name| -> Vec<_> {
        let packets = whole(name).into_iter();
        packets.map(|packet| packet.link_type).collect()
    };
    assert_eq!(
        link_types("second-interface-unknown.pcapng"),
        [
            LinkType::Ethernet,
            LinkType::Other(220),
            LinkType::Ethernet,
            LinkType::Ethernet
        ]
    );
    assert_eq!(
        link_types("links.pcapng"),
        [
            LinkType::Sll,
            LinkType::Sll2,
            LinkType::Other(220),
            LinkType::Raw,
            LinkType::Loopback
        ]
    );
    assert_eq!(link_types("no-idb.pcapng"), [LinkType::Undescribed; 3]);
    assert_eq!(link_types("user0.pcap"), [LinkType::Other(147); 3]);
    assert_eq!(link_types("fcs.pcap"), [LinkType::Ethernet; 3]);
}

#[test]
fn packets_before_a_defect_of_the_file_are_read() {
    for (name, packets, said) in [
        ("truncated.pcap", 2, "it ends within packet 3"),
        ("truncated.pcapng", 2, "it ends within packet 3"),
        ("trailing-zeros.pcapng", 3, "it is damaged after packet 3"),
        ("len-mismatch.pcapng", 0, "it is damaged after packet 0"),
    ] {
        let (read, error) = read(name);
        assert_eq!(read.len(), packets, "{name}");
        let error = error.expect(name).to_string();
        assert!(error.starts_with(said), "{name}: {error}");
    }
}

#[test]
fn a_packet_of_64_mib_is_a_defect_and_takes_no_memory() {
    let file = |len: u32| {
        let header = [
            0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0,
        ];
        let packet = [[0; 4], [0; 4], len.to_le_bytes(), len.to_le_bytes()];
        let octets = [&header[..], packet.as_flattened(), &vec![7; len as usize]].concat();
        let mut file = CaptureFile::new(std::io::Cursor::new(octets)).unwrap();
        file.next_packet()
    };
    let read = file(1 << 20).unwrap().unwrap();
    assert_eq!(read.octets.len(), 1 << 20);
    let error = file(64 << 20).unwrap_err().to_string();
    assert_eq!(
        error,
        "it is damaged after packet 0: a block is longer than 64 MiB"
    );
}

// Dissects a file, and checks that its packets are encoded again unchanged.
fn capture(name: &str) -> Capture {
    dissected(&read(name).0)
}

fn passed_over(summary: &Summary) -> Vec<(&str, u64)> {
    let reasons = summary.passed_over.iter();
    reasons
        .map(|passed| (&passed.reason[..], passed.count))
        .collect()
}

#[test]
fn roce_is_found_below_tags_tunnels_and_extension_headers() {
    for (name, headers) in [
        ("4in6.pcap", "Ethernet IPv6 IPv4 UDP BTH"),
        ("erspan1.pcap", "Ethernet IPv4 GRE Ethernet IPv4 UDP BTH"),
        (
            "erspan2.pcap",
            "Ethernet IPv4 GRE ERSPAN Ethernet IPv4 UDP BTH",
        ),
        (
            "erspan3-sub.pcap",
            "Ethernet IPv4 GRE ERSPAN Ethernet IPv4 UDP BTH",
        ),
        ("geneve-ip.pcap", "Ethernet IPv4 UDP Geneve IPv4 UDP BTH"),
        (
            "geneve-opt.pcap",
            "Ethernet IPv4 UDP Geneve Ethernet IPv4 UDP BTH",
        ),
        ("gre.pcap", "Ethernet IPv4 GRE IPv4 UDP BTH"),
        ("gre-csum-key-seq.pcap", "Ethernet IPv4 GRE IPv4 UDP BTH"),
        ("gre-key.pcap", "Ethernet IPv4 GRE IPv4 UDP BTH"),
        ("gre-mpls.pcap", "Ethernet IPv4 GRE MPLS IPv4 UDP BTH"),
        ("gre-v6outer.pcap", "Ethernet IPv6 GRE IPv4 UDP BTH"),
        ("ipip.pcap", "Ethernet IPv4 IPv4 UDP BTH"),
        ("ipv6-hop-by-hop.pcap", "Ethernet IPv6 UDP BTH"),
        ("llc-snap.pcap", "Ethernet SNAP IPv4 UDP BTH"),
        ("loop.pcap", "loopback IPv4 UDP BTH"),
        ("mpls.pcap", "Ethernet MPLS IPv4 UDP BTH"),
        ("mpls-udp.pcap", "Ethernet IPv4 UDP MPLS IPv4 UDP BTH"),
        ("mpls-v6.pcap", "Ethernet MPLS IPv6 UDP BTH"),
        ("mpls3.pcap", "Ethernet MPLS MPLS MPLS IPv4 UDP BTH"),
        ("null-be.pcap", "loopback IPv4 UDP BTH"),
        ("null-le.pcap", "loopback IPv4 UDP BTH"),
        ("nvgre.pcap", "Ethernet IPv4 GRE Ethernet IPv4 UDP BTH"),
        ("pppoe.pcap", "Ethernet PPPoE IPv4 UDP BTH"),
        ("qinq-88a8.pcap", "Ethernet VLAN VLAN IPv4 UDP BTH"),
        ("qinq-9100.pcap", "Ethernet VLAN VLAN IPv4 UDP BTH"),
        ("raw.pcap", "IPv4 UDP BTH"),
        ("raw12.pcap", "IPv4 UDP BTH"),
        ("roce-v1-right.pcap", "Ethernet GRH BTH"),
        ("roce-v1-vlan.pcap", "Ethernet VLAN GRH BTH"),
        ("sit.pcap", "Ethernet IPv4 IPv6 UDP BTH"),
        ("sll.pcap", "SLL IPv4 UDP BTH"),
        ("sll2.pcap", "SLL2 IPv4 UDP BTH"),
        ("tot-len-0.pcap", "Ethernet IPv4 UDP BTH"),
        (
            "vlan-8deep.pcap",
            "Ethernet VLAN VLAN VLAN VLAN VLAN VLAN VLAN VLAN IPv4 UDP BTH",
        ),
        (
            "vxlan.pcap",
            "Ethernet IPv4 UDP VXLAN Ethernet IPv4 UDP BTH",
        ),
        (
            "vxlan-8472.pcap",
            "Ethernet IPv4 UDP VXLAN Ethernet IPv4 UDP BTH",
        ),
        (
            "vxlan-inner-vlan.pcap",
            "Ethernet IPv4 UDP VXLAN Ethernet VLAN IPv4 UDP BTH",
        ),
        (
            "vxlan-v6.pcap",
            "Ethernet IPv6 UDP VXLAN Ethernet IPv4 UDP BTH",
        ),
    ] {
        let capture = capture(name);
        let summary = &capture.summary;
        assert_eq!(complaints(&capture), [""; 0], "{name}");
        assert_eq!(summary.icrc.right, summary.packets, "{name}");
        assert_eq!(summary.roce + summary.roce_v1, summary.packets, "{name}");
        assert_eq!(summary.passed_over, [], "{name}");
        for packet in &capture.packets {
            let names = line::headers(packet).join(" ");
            assert!(names.starts_with(headers), "{name}: {names}");
        }
    }
}

#[test]
fn packets_that_are_not_dissected_are_counted_by_the_reason() {
    for (name, reason, count) in [
        ("arp.pcap", "ARP", 1),
        (
            "gre-version1.pcap",
            "GRE with source routes, or of another version",
            1,
        ),
        ("macsec.pcap", "MACsec", 1),
        ("mpls-pw-eth.pcap", "MPLS without IP", 1),
        (
            "no-idb.pcapng",
            "an interface that the file does not describe",
            3,
        ),
        ("pppoe-lcp.pcap", "PPP protocol 0xc021", 1),
        ("second-interface-unknown.pcapng", "link type 220", 1),
        ("stp.pcap", "IEEE 802.2", 1),
        ("user0.pcap", "link type 147", 3),
        ("v6-hbh-cut.pcap", "too short for its headers", 1),
        ("v6-nonext.pcap", "IPv6 without a next header", 1),
        ("cut-10.pcap", "cut within its headers", 3),
        ("cut-44.pcap", "cut within its headers", 3),
    ] {
        let capture = capture(name);
        assert_eq!(passed_over(&capture.summary), [(reason, count)], "{name}");
        assert!(capture.summary.is_clean(), "{name}");
        let lines = capture
            .packets
            .iter()
            .map(|packet| line(packet, packet.time));
        let said = lines.filter(|line| line.ends_with(&format!("passed over: {reason}")));
        assert_eq!(said.count() as u64, count, "{name}");
    }
}

#[test]
fn packets_in_fragments_are_put_together() {
    for name in ["v4-fragments.pcap", "v6-fragment.pcap"] {
        let summary = capture(name).summary;
        let counts = (summary.packets, summary.reassembled, summary.roce);
        assert_eq!(counts, (2, 1, 1), "{name}");
        // The tool that wrote these files has computed a wrong ICRC, over other headers.
        assert_eq!((summary.icrc.wrong, summary.complaints), (1, 1), "{name}");
        assert_eq!(summary.passed_over, [], "{name}");
    }
}

#[test]
fn a_cut_packet_has_its_headers_and_no_complaint() {
    for (name, cut, right, reth) in [
        ("cut-to-58.pcap", 3, 0, false),
        ("cut-to-64.pcap", 1, 2, false),
        ("cut-to-96.pcap", 1, 2, true),
        ("cut-to-128.pcap", 1, 2, true),
        ("cut-54.pcap", 3, 0, false),
        ("cut-272.pcap", 1, 2, true),
        ("spb-snap.pcapng", 1, 2, true),
    ] {
        let capture = capture(name);
        assert_eq!(complaints(&capture), [""; 0], "{name}");
        let summary = &capture.summary;
        assert_eq!(
            (
                summary.roce,
                summary.cut,
                summary.icrc.right,
                summary.icrc.wrong
            ),
            (3, cut, right, 0),
            "{name}"
        );
        let first = capture.packets[0].roce().unwrap();
        assert_eq!(first.opcode, "RC RDMA WRITE Only");
        assert_eq!((first.cut_from, first.icrc), (Some(200), None), "{name}");
        assert_eq!(first.headers.reth.is_some(), reth, "{name}");
    }
    let text = {
        let capture = capture("cut-to-96.pcap");
        line(&capture.packets[0], capture.packets[0].time)
    };
    assert!(text.ends_with("26 of 200 octets captured, cut"), "{text}");
}

#[test]
fn cut_packets_in_tunnels_and_of_the_first_version_are_shown() {
    let vxlan = capture("cut-vxlan.pcap").summary;
    assert_eq!((vxlan.roce, vxlan.cut, vxlan.complaints), (3, 3, 0));
    assert_eq!(passed_over(&vxlan), [("cut within its headers", 2)]);
    let first_version = capture("roce-v1-cut.pcap").summary;
    assert_eq!((first_version.roce_v1, first_version.cut), (3, 3));
    assert_eq!(passed_over(&first_version), [("cut within its headers", 2)]);
}

#[test]
fn a_gap_that_the_snap_length_makes_is_no_complaint() {
    let summary = capture("cut-iwarp.pcap").summary;
    assert!(summary.is_clean(), "{summary:?}");
    assert!(summary.unfinished > 0);
    let reasons = passed_over(&summary);
    assert!(
        reasons
            .iter()
            .any(|(reason, _)| *reason == "TCP that is cut"),
        "{reasons:?}"
    );
}

#[test]
fn joined_packets_are_dissected_one_by_one() {
    let capture = capture("gro-merged.pcap");
    assert_eq!(complaints(&capture), [""; 0]);
    let Content::Joined(joined) = &capture.packets[0].content else {
        panic!("{capture:?}")
    };
    let psns = joined.packets.iter().map(|roce| roce.headers.bth.psn);
    assert_eq!(psns.collect::<Vec<_>>(), [7, 8]);
    let summary = &capture.summary;
    assert_eq!(
        (summary.roce, summary.joined, summary.icrc.right),
        (1, 2, 2)
    );
    let text = line(&capture.packets[0], capture.packets[0].time);
    let said = "UDP BTH  2 joined: RC RDMA WRITE Middle";
    assert!(text.contains(said), "{text}");
}

#[test]
fn joined_packets_that_are_cut_are_split_by_a_right_icrc() {
    let capture = capture("cut-gro.pcap");
    assert_eq!(complaints(&capture), [""; 0]);
    let summary = &capture.summary;
    assert_eq!((summary.roce, summary.joined), (4, 6));
    assert_eq!((summary.icrc.right, summary.cut), (3, 4));
}

#[test]
fn a_wrong_icrc_of_roce_v1_is_a_complaint() {
    let capture = capture("roce-v1.pcap");
    assert_eq!(
        complaints(&capture),
        ["ICRC 01020304 where 09d82da2 is right"]
    );
    assert_eq!(capture.summary.roce_v1, 1);
}

#[test]
fn every_file_is_encoded_again_from_json() {
    for entry in std::fs::read_dir(path("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let capture = capture(&name);
        let json = serde_json::to_string(&capture).unwrap();
        assert_eq!(
            serde_json::from_str::<Capture>(&json).unwrap(),
            capture,
            "{name}"
        );
    }
}

#[test]
fn packets_before_a_defect_of_the_file_are_dissected() {
    let capture = dissect(File::open(path("truncated.pcap")).unwrap()).unwrap();
    assert_eq!(capture.summary.icrc.right, 2);
    assert_eq!(capture.defect.as_deref(), Some("it ends within packet 3"));
}

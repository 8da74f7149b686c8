//! Files as other tools write them, of three packets unless a test says otherwise.

use std::fs::File;
use std::path::{Path, PathBuf};

use polyverbs_dissect::file::{Captured, LinkType};
use polyverbs_dissect::{CaptureFile, FileError};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/files")
        .join(name)
}

// The packets that can be read, and why the rest cannot.
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
fn what_precedes_a_defect_of_the_file_is_read() {
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
fn a_packet_of_64_mib_is_damage_and_not_a_need_for_memory() {
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

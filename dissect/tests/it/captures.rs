//! Captures of Linux's own drivers: every packet parses, and is built again from its JSON.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use polyverbs_dissect::form::{Ip, Payload, RdsMessage, Roce};
use polyverbs_dissect::summary::Protocol;
use polyverbs_dissect::{Capture, CaptureFile, Packet, Summary, dissect, encode, line};
use polyverbs_wire::net::Udp;
use polyverbs_wire::rds::{CONGESTION_MAP_BYTES, Extension, MINOR_MASK, Version};
use polyverbs_wire::roce::icrc::Recovery;
use polyverbs_wire::roce::{self, Envelope, Operation, Service};

fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert_eq!(files.len(), 15);
    files
}

fn capture(name: &str) -> Capture {
    let path = captures().into_iter().find(|path| path.ends_with(name));
    dissect(File::open(path.unwrap()).unwrap()).unwrap()
}

fn octets_of_packets(path: &Path) -> Vec<Vec<u8>> {
    let mut file = CaptureFile::new(File::open(path).unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(captured) = file.next_packet().unwrap() {
        packets.push(captured.octets);
    }
    packets
}

#[test]
fn every_packet_parses_and_every_checksum_is_right() {
    for path in captures() {
        let capture = dissect(File::open(&path).unwrap()).unwrap();
        let complaints: Vec<_> = capture
            .packets
            .iter()
            .flat_map(|packet| packet.complaints.iter().map(|said| (packet.number, said)))
            .collect();
        assert!(complaints.is_empty(), "{}: {complaints:?}", path.display());
        assert!(capture.summary.is_clean());
        assert_eq!(capture.unfinished, [], "{}", path.display());
    }
}

#[test]
fn every_packet_is_encoded_again_from_json() {
    for path in captures() {
        let capture = dissect(File::open(&path).unwrap()).unwrap();
        let json = serde_json::to_string(&capture).unwrap();
        let again: Capture = serde_json::from_str(&json).unwrap();
        assert_eq!(again, capture);
        let built = encode(&again).unwrap();
        let captured = octets_of_packets(&path);
        assert_eq!(built.len(), captured.len());
        for (number, (built, captured)) in built.iter().zip(&captured).enumerate() {
            assert_eq!(built, captured, "{}, packet {}", path.display(), number + 1);
        }
    }
}

// The ICRC covers the IP identification, which rxe counts up and a UDP socket does not show.
#[test]
fn an_ip_identification_not_in_the_form_is_recovered() {
    let mut recovered = 0;
    for path in captures() {
        let capture = dissect(File::open(path).unwrap()).unwrap();
        let octets = encode(&capture).unwrap();
        for (packet, octets) in capture.packets.iter().zip(&octets) {
            let (Some(roce), Some(Ip::V4 { header, .. })) = (packet.roce(), &packet.ip) else {
                continue;
            };
            let udp = roce.udp.unwrap();
            let datagram = &octets[octets.len() - usize::from(udp.length) + Udp::LEN..];
            let unseen = Envelope {
                source: (header.source.0, udp.source_port).into(),
                destination: (header.destination.0, udp.destination_port).into(),
                identification: 0,
            };
            let computed = roce::decode(datagram).unwrap().expected_icrc(&unseen);
            let found = Recovery::for_datagrams_of(datagram.len());
            let found = found.identification(roce.icrc.unwrap().value.0, computed);
            assert_eq!(found, Some(header.identification));
            recovered += 1;
        }
    }
    assert_eq!(recovered, 952);
}

fn counted(summary: &Summary, protocol: Protocol) -> Vec<(&str, u64)> {
    let of = summary
        .opcodes
        .iter()
        .filter(|known| known.protocol == protocol);
    of.map(|known| (&known.opcode[..], known.count)).collect()
}

#[test]
fn captures_contain_the_operations_that_were_performed() {
    let summary = capture("rxe_nvme.pcap").summary;
    assert_eq!(
        (summary.packets, summary.roce, summary.icrc.right),
        (295, 277, 277)
    );
    assert_eq!(
        counted(&summary, Protocol::Cm),
        [("DREP", 2), ("DREQ", 2), ("REP", 2), ("REQ", 2), ("RTU", 2)]
    );
    let opcodes = counted(&summary, Protocol::RoceV2);
    let has = |name: &str| opcodes.iter().any(|(opcode, _)| *opcode == name);
    assert!(has("RC SEND Only with Invalidate") && has("RC RDMA WRITE Middle"));

    let summary = capture("rxe_atomicfa.pcap").summary;
    let opcodes = counted(&summary, Protocol::RoceV2);
    assert_eq!(
        opcodes,
        [("RC ATOMIC Acknowledge", 5), ("RC Fetch & Add", 5)]
    );

    let summary = capture("rxe_ud_pingpong.pcap").summary;
    assert_eq!(counted(&summary, Protocol::RoceV2), [("UD SEND Only", 10)]);

    let summary = capture("siw_crc_rping.pcap").summary;
    assert_eq!(
        counted(&summary, Protocol::Mpa),
        [("Reply", 1), ("Request", 1)]
    );
    assert_eq!((summary.crc32c.wrong, summary.crc32c.unused), (0, 0));
    assert!(summary.crc32c.right > 20);

    let summary = capture("siw_rping.pcap").summary;
    assert_eq!((summary.crc32c.wrong, summary.crc32c.right), (0, 0));
    assert!(summary.crc32c.unused > 20);
}

fn is_send(roce: &Roce) -> bool {
    let facts = roce.headers.bth.opcode.facts();
    facts.is_some_and(|facts| facts.service == Service::Rc && facts.operation == Operation::Send)
}

// covers 8.26 8.27 8.28 8.33
#[test]
fn linux_sends_nothing_over_connections_of_rds_but_fragments() {
    let mut data = 0;
    let mut messages = Vec::new();
    for name in ["compat", "congestion", "flow", "message", "ping", "rdma"] {
        let capture = capture(&format!("rds_{name}.pcap"));
        let mut seen = BTreeSet::new();
        for packet in &capture.packets {
            let Some(roce) = packet.roce().filter(|roce| is_send(roce)) else {
                continue;
            };
            let Payload::Rds(rds) = &roce.payload else {
                panic!("{name}: {packet:?}");
            };
            if seen.insert((roce.headers.bth.dest_qp, roce.headers.bth.psn)) {
                data += rds.data.0.len();
            }
            messages.extend(rds.completes.clone());
        }
    }
    let lengths = messages.iter().map(|message| match message {
        RdsMessage::Data { length } => *length as usize,
        RdsMessage::CongestionMap(_) => CONGESTION_MAP_BYTES,
        RdsMessage::Acknowledge => 0,
    });
    assert_eq!(lengths.sum::<usize>(), data);
    let maps = messages.iter().filter_map(|message| match message {
        RdsMessage::CongestionMap(ports) if !ports.is_empty() => Some(&ports[..]),
        _ => None,
    });
    assert_eq!(maps.collect::<Vec<_>>(), [[4000]]);
}

#[test]
fn captures_of_rds_contain_what_was_done() {
    let rdma = capture("rds_rdma.pcap");
    assert_eq!(
        counted(&rdma.summary, Protocol::Rds),
        [("Acknowledge", 2), ("Congestion map", 2), ("Message", 3)]
    );
    let payloads = || {
        rdma.packets
            .iter()
            .filter_map(Packet::roce)
            .map(|roce| &roce.payload)
    };
    let extensions = payloads().flat_map(|payload| match payload {
        Payload::Rds(rds) => rds
            .header
            .iter()
            .flat_map(|header| header.extensions.clone())
            .collect(),
        _ => Vec::new(),
    });
    assert_eq!(
        extensions.collect::<Vec<_>>(),
        [
            Extension::RdmaDestination {
                rkey: 0x800,
                offset: 100
            },
            Extension::Rdma { rkey: 0x800 },
            Extension::Rdma { rkey: 0x800 },
        ]
    );
    let said = payloads().filter_map(|payload| match payload {
        Payload::Mad(management) => management.rds,
        _ => None,
    });
    let said: Vec<_> = said.collect();
    assert_eq!(said.len(), 2);
    for data in said {
        assert_eq!((data.version, data.minor_mask), (Version::V3_1, MINOR_MASK));
        assert_eq!(data.agreed(), Some(Version::V3_1));
    }
}

#[test]
fn a_packet_is_one_line() {
    for path in captures() {
        let capture = dissect(File::open(path).unwrap()).unwrap();
        let first = capture.packets[0].time;
        for packet in &capture.packets {
            let line = line(packet, first);
            assert_eq!(line.lines().count(), 1, "{line}");
        }
    }
    let capture = capture("rxe_rping.pcap");
    let lines: Vec<_> = capture
        .packets
        .iter()
        .map(|packet| line(packet, capture.packets[0].time))
        .collect();
    assert!(lines[0].contains("IPv4 UDP BTH DETH MAD RDMA-CM  UD SEND Only"));
    assert!(lines[1].contains("CM REJ (8, invalid service id), ICRC right"));
    assert!(lines[9].contains("IPv4 UDP BTH RETH  RC RDMA READ Request"));
}

//! Compares the dissection of every file with tshark's, field by field, where both have the field.
//!
//! The differences are those of [`EXPLAINED`], which docs/wire.md gives the reasons for. Wireshark 4.0 wrote the list.
//! `POLYVERBS_CAPTURES` names folders, separated by colons, whose pcap and pcapng files are compared as well.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use polyverbs_dissect::form::{Content, Packet, Roce, Unit};
use polyverbs_dissect::{CaptureFile, Dissector, line};
use polyverbs_wire::iwarp::SegmentHeader;

const FIELDS: [&str; 31] = [
    "frame.time_epoch",
    "frame.len",
    "frame.cap_len",
    "ip.src",
    "ipv6.src",
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.atomicacketh.origremdt",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.invariant.crc",
    "iwarp_rdma.opcode",
    "iwarp_ddp.stag",
    "iwarp_ddp.tagged_offset",
    "iwarp_ddp.qn",
    "iwarp_ddp.msn",
    "iwarp_ddp.mo",
];

/// The fields that each side has to find if the other does; other fields are compared where both have them.
const BOTH: [&str; 2] = ["infiniband.bth.opcode", "iwarp_rdma.opcode"];

/// Protocols for which Wireshark takes RDMA's bytes: it guesses the first five from a payload, and calls them malformed; it
/// goes by a port number for Artemis (5445, which SMB Direct has too) and TFTP (69, which a RoCE source port can be).
const OTHERS: [&str; 7] = [
    "smc",
    "smb_direct",
    "rpcordma",
    "nvme-rdma",
    "lnet",
    "artemis",
    "tftp",
];

/// Files and fields in which the two differ, with the reason in docs/wire.md.
const EXPLAINED: &[(&str, &str)] = &[
    ("cut-iwarp.pcap", "iwarp_rdma.opcode"),
    ("cut-vxlan.pcap", "ip.src"),
    ("gre-version1.pcap", "infiniband.bth.opcode"),
    ("gre-version1.pcap", "ip.src"),
    ("gro-merged.pcap", "infiniband.invariant.crc"),
    ("infiniband.pcap", "frame.cap_len"),
    ("infiniband.pcap", "frame.len"),
    ("infiniband.pcap", "frame.time_epoch"),
    ("infiniband.pcap", "infiniband.bth.opcode"),
    (
        "iwarp_rdma-read_write_long_run_mrkr.pcap",
        "iwarp_rdma.opcode",
    ),
    ("macsec.pcap", "infiniband.bth.opcode"),
    ("no-idb.pcapng", "packets"),
    ("reserved-everywhere.pcapng", "infiniband.bth.opcode"),
    ("reserved-everywhere.pcapng", "infiniband.invariant.crc"),
    (
        "smb-direct-man-in-the-middle-02-reassemble-frames9.pcap",
        "iwarp_rdma.opcode",
    ),
    ("uiwarp-send.pcap", "iwarp_rdma.opcode"),
    ("unknown-blocks.pcapng", "packets"),
    ("vxlan-8472.pcap", "infiniband.bth.opcode"),
    ("vxlan-8472.pcap", "ip.src"),
];

fn files() -> Vec<PathBuf> {
    let own = ["tests/files", "tests/captures"];
    let own = own.map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
    let given = env::var_os("POLYVERBS_CAPTURES").unwrap_or_default();
    let folders = own
        .into_iter()
        .chain(env::split_paths(&given).filter(|path| path.is_dir()));
    let entries = folders.flat_map(|folder| fs::read_dir(folder).unwrap());
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| {
        file.extension()
            .is_some_and(|is| is == "pcap" || is == "pcapng")
    });
    files.sort();
    files
}

// The status of tshark is ignored: like `dissect`, it fails at a defect, after the packets before that.
fn theirs(file: &Path) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-T", "fields"]);
    command.args(OTHERS.iter().flat_map(|name| ["--disable-protocol", name]));
    command.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let output = command.output().expect("tshark");
    let text = String::from_utf8(output.stdout).unwrap();
    let values = |line: &str| line.split('\t').map(str::to_owned).collect();
    text.lines().map(values).collect()
}

fn ours(file: &Path) -> Vec<Vec<String>> {
    let mut file = CaptureFile::new(File::open(file).unwrap()).unwrap();
    let mut dissector = Dissector::new();
    let captured = std::iter::from_fn(|| file.next_packet().ok().flatten());
    let fields = captured.map(|captured| {
        let packet = dissector.packet(&captured);
        let mut fields = vec![
            format!("{}.{:09}", packet.time.seconds, packet.time.nanoseconds),
            captured.original_len.to_string(),
            captured.octets.len().to_string(),
        ];
        fields.extend(addresses(&packet));
        fields.extend(roce_fields(&packet));
        fields.extend(ddp_fields(&packet));
        fields
    });
    fields.collect()
}

fn addresses(packet: &Packet) -> [String; 2] {
    let source = packet.innermost_ip().map(|ip| line::addresses(ip).0);
    match source {
        Some(std::net::IpAddr::V4(source)) => [source.to_string(), String::new()],
        Some(std::net::IpAddr::V6(source)) => [String::new(), source.to_string()],
        None => [String::new(), String::new()],
    }
}

fn roce_fields(packet: &Packet) -> [String; 20] {
    let content = packet
        .reassembled
        .as_ref()
        .map_or(&packet.content, |whole| &whole.content);
    let roce: Option<&Roce> = match content {
        Content::Roce(roce) => Some(roce),
        Content::Joined(joined) => joined.packets.first(),
        _ => None,
    };
    let Some(roce) = roce else {
        return Default::default();
    };
    let headers = &roce.headers;
    let bth = &headers.bth;
    let or_none = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    let (reth, atomic) = (headers.reth.as_ref(), headers.atomic_eth.as_ref());
    let (aeth, deth) = (headers.aeth.as_ref(), headers.deth.as_ref());
    let original = headers.atomic_ack_eth.as_ref().map(|ack| ack.original);
    let icrc = roce
        .icrc
        .map(|icrc| u32::from_be_bytes(icrc.value.0).into());
    [
        Some(u64::from(bth.opcode.0)),
        Some(bth.solicited.into()),
        Some(bth.mig_req.into()),
        Some(bth.pad_count.into()),
        Some(bth.transport_version.into()),
        Some(bth.p_key.into()),
        Some(bth.dest_qp.into()),
        Some(bth.ack_req.into()),
        Some(bth.psn.into()),
        reth.map(|reth| reth.va).or(atomic.map(|atomic| atomic.va)),
        reth.map(|reth| reth.rkey)
            .or(atomic.map(|atomic| atomic.rkey))
            .map(u64::from),
        reth.map(|reth| reth.dma_length.into()),
        atomic.map(|atomic| atomic.swap_or_add),
        atomic.map(|atomic| atomic.compare),
        aeth.map(|aeth| aeth.syndrome.0.into()),
        aeth.map(|aeth| aeth.msn.into()),
        original,
        deth.map(|deth| deth.q_key.into()),
        deth.map(|deth| deth.src_qp.into()),
        icrc,
    ]
    .map(or_none)
}

/// The fields of each segment that the packet completes: opcode, STag and offset, or queue, message and offset.
fn ddp_fields(packet: &Packet) -> [String; 6] {
    let headers = packet.completes().iter().filter_map(|pdu| match &pdu.unit {
        Unit::Fpdu(fpdu) => fpdu.header.as_ref(),
        _ => None,
    });
    let mut fields: [Vec<String>; 6] = Default::default();
    let mut say = |at: usize, value: u64| fields[at].push(value.to_string());
    for header in headers {
        match header {
            SegmentHeader::Tagged(header) => {
                say(0, header.opcode.0.into());
                say(1, header.stag.into());
                say(2, header.to);
            }
            SegmentHeader::Untagged(header) => {
                say(0, header.opcode.0.into());
                say(3, header.qn.into());
                say(4, header.msn.into());
                say(5, header.mo.into());
            }
        }
    }
    fields.map(|values| values.join(","))
}

// Converts a field of tshark to our form: decimal numbers, and the innermost address.
fn normal(field: &str, value: &str) -> String {
    let number = |value: &str| match value.strip_prefix("0x") {
        Some(digits) => {
            u64::from_str_radix(digits, 16).map_or_else(|_| value.to_owned(), |n| n.to_string())
        }
        None => value.to_owned(),
    };
    match field {
        "ip.src" | "ipv6.src" => value.rsplit(',').next().unwrap_or_default().to_owned(),
        _ if field.starts_with("iwarp") => {
            value.split(',').map(number).collect::<Vec<_>>().join(",")
        }
        _ => number(value),
    }
}

// The fields that differ; an empty field is one that the other side does not have.
fn differences(file: &Path) -> BTreeSet<String> {
    let (ours, theirs) = (ours(file), theirs(file));
    let mut differ = BTreeSet::new();
    if ours.len() != theirs.len() {
        differ.insert("packets".to_owned());
        return differ;
    }
    for (ours, theirs) in ours.iter().zip(&theirs) {
        for ((field, ours), theirs) in FIELDS.iter().zip(ours).zip(theirs) {
            let theirs = normal(field, theirs);
            let has_both = !ours.is_empty() && !theirs.is_empty();
            if *ours != theirs && (has_both || BOTH.contains(field)) {
                eprintln!(
                    "{}: {field}: ours {ours:?}, tshark's {theirs:?}",
                    file.display()
                );
                differ.insert((*field).to_owned());
            }
        }
    }
    differ
}

#[test]
#[ignore = "needs tshark: tests/foreign runs it"]
fn every_file_is_dissected_as_tshark_does() {
    let (mut found, mut names) = (BTreeSet::new(), BTreeSet::new());
    for file in files() {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        names.insert(name.clone());
        found.extend(
            differences(&file)
                .into_iter()
                .map(|field| (name.clone(), field)),
        );
    }
    let explained = EXPLAINED.iter().filter(|(name, _)| names.contains(*name));
    let explained: BTreeSet<_> = explained
        .map(|(name, field)| ((*name).to_owned(), (*field).to_owned()))
        .collect();
    assert_eq!(found, explained);
}

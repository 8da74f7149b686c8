//! `polyverbs dissect`: captures of Linux's drivers, and captures with faults.

use std::path::{Path, PathBuf};

use super::{Folder, complaint, json, run, text};

fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dissect/tests/captures");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

fn capture(name: &str) -> PathBuf {
    let found = captures().into_iter().find(|path| path.ends_with(name));
    found.unwrap()
}

fn file(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dissect/tests/files");
    folder.join(name)
}

fn dissect(path: &Path) -> String {
    text(&["dissect", path.to_str().unwrap()])
}

#[test]
fn every_capture_ends_in_a_table_of_its_opcodes() {
    assert_eq!(captures().len(), 15);
    for path in captures() {
        let shown = dissect(&path);
        assert!(shown.ends_with("nothing is wrong\n"), "{shown}");
        assert!(shown.contains("OPCODE"), "{shown}");
        assert!(shown.contains(", 0 wrong, "), "{shown}");
        assert!(
            !shown.contains('\u{1b}'),
            "no colours where there is no terminal"
        );
    }
    let shown = dissect(&capture("siw_crc_rping.pcap"));
    assert!(shown.contains("Ethernet IPv4 TCP MPA DDP RDMAP  RDMA Read Request  QN 1"));
    assert!(shown.contains("CRC-32C: 28 right, 0 wrong, 0 not in use"));
    let shown = dissect(&capture("rds_congestion.pcap"));
    assert!(shown.contains("CM REQ, RDS 3.1, ack 0"), "{shown}");
    assert!(shown.contains("congested ports: 4000,"), "{shown}");
}

#[test]
fn json_has_every_packet_and_the_summary() {
    let path = capture("rxe_rping.pcap");
    let object = json(&["dissect", path.to_str().unwrap(), "--json"]);
    assert_eq!(object["packets"].as_array().unwrap().len(), 45);
    assert_eq!(object["summary"]["icrc"]["right"], 45);
    let write = &object["packets"][15]["content"]["roce"];
    assert_eq!(write["opcode"], "RC RDMA WRITE Only");
    assert_eq!(write["headers"]["reth"]["dma_length"], 64);
    assert_eq!(write["payload"]["data"].as_str().unwrap().len(), 128);
    let req = &object["packets"][0]["content"]["roce"]["payload"]["mad"]["content"]["cm"]["req"];
    assert_eq!(req["qpn"], 0x20);
}

#[test]
fn complaints_are_shown_and_fail_the_command() {
    let folder = Folder::new();
    let mut bytes = std::fs::read(capture("rxe_rping.pcap")).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let damaged = folder.path("damaged.pcap");
    std::fs::write(&damaged, bytes).unwrap();
    for arguments in [&["dissect"][..], &["dissect", "--json"]] {
        let output = run(&[arguments, &[damaged.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(output.stderr, b"");
        let shown = String::from_utf8(output.stdout).unwrap();
        let said = "is right";
        assert!(shown.contains(said), "{shown}");
    }
}

#[test]
fn packets_that_are_passed_over_are_named_in_the_summary() {
    let shown = dissect(&file("second-interface-unknown.pcapng"));
    let summary = "4 packets: 3 RoCEv2, 0 iWARP, 1 others\n\
                   ICRC: 3 right, 0 wrong, 0 not in use\n\
                   passed over: 1 link type 220\n\
                   nothing is wrong\n";
    assert!(shown.ends_with(summary), "{shown}");
    let shown = dissect(&file("macsec.pcap"));
    let summary = "passed over: 1 MACsec\n\
                   nothing was checked: no packet is of RoCE or iWARP\n";
    assert!(shown.ends_with(summary), "{shown}");
}

#[test]
fn joined_and_cut_packets_are_counted_in_the_summary() {
    let shown = dissect(&file("gro-merged.pcap"));
    let said = "packets that the kernel has joined to datagrams of several (GSO, GRO): 2\n";
    assert!(shown.contains(said), "{shown}");
    let shown = dissect(&file("cut-to-58.pcap"));
    let summary = "3 packets: 3 RoCEv2, 0 iWARP, 0 others\n\
                   cut by the capture, before the ICRC: 3\n\
                   nothing is wrong\n";
    assert!(shown.ends_with(summary), "{shown}");
}

#[test]
fn packets_before_a_defect_of_the_file_are_shown_and_counted() {
    let path = file("truncated.pcapng");
    for arguments in [&["dissect"][..], &["dissect", "--json"]] {
        let output = run(&[arguments, &[path.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(1));
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(shown.contains("RC RDMA WRITE Only"), "{shown}");
        assert!(
            shown.contains("2 packets: ") || shown.contains("\"packets\": 2"),
            "{shown}"
        );
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("it ends within packet 3"), "{said}");
    }
}

#[test]
fn a_file_that_is_no_capture_is_reported_in_one_line() {
    let folder = Folder::new();
    let read = |path: &Path| complaint(&["dissect", path.to_str().unwrap()]);
    let gone = folder.path("gone.pcap");
    assert!(read(&gone).contains("gone.pcap: "));
    assert!(read(&gone).contains("No such file"));
    let text = folder.path("text");
    std::fs::write(&text, "no capture").unwrap();
    assert!(read(&text).ends_with("text: it is neither a pcap nor a pcapng file"));
    let bytes = std::fs::read(capture("rxe_rping.pcap")).unwrap();
    let cut = folder.path("cut.pcap");
    std::fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    let output = run(&["dissect", cut.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(
        said.contains("cut.pcap: it ends within packet 45"),
        "{said}"
    );
    assert!(complaint(&["dissect", "/"]).contains("cannot read /: "));
}

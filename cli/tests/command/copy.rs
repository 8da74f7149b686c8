//! `polyverbs copy`.

use std::path::Path;

use serde_json::Value;

use super::{DEVICES, Folder, devices_and_digests, digests, json, text};

const WINDOW: u64 = 1 << 20;

fn copy(device: &str, length: usize, more: &[&str]) -> Value {
    let folder = Folder::new();
    let (from, to) = (folder.file(length), folder.path("copy"));
    let mut arguments = vec![
        "copy",
        path(&from),
        "--device",
        device,
        "--to",
        path(&to),
        "--json",
    ];
    arguments.extend(more);
    let report = json(&arguments);
    let (sent, came) = (std::fs::read(&from).unwrap(), std::fs::read(&to).unwrap());
    assert!(sent == came, "{device}: {length} bytes were changed");
    let algorithm = report["digests"]["algorithm"].as_str().unwrap();
    assert_eq!(report["digests"], digests(algorithm, &sent, &came));
    assert_eq!(report["bytes"], length as u64);
    assert_eq!(report["device"], device);
    report
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

// The length and the pieces determine the device's counters, for every transport.
fn assert_counters(report: &Value, length: u64, piece: u64) {
    let windows = length.div_ceil(WINDOW);
    let last = length % WINDOW;
    let pieces = length / WINDOW * WINDOW.div_ceil(piece) + last.div_ceil(piece);
    let expected = [
        ("fast_registers", windows + pieces),
        ("reads", pieces),
        ("local_invalidates", pieces),
        ("sends_with_invalidate", windows),
        // One message announces each window; each side sends one at the end.
        ("sends", windows + 2),
        ("receives", 2 * windows + 2),
        ("writes", 0),
        ("atomics", 0),
    ];
    for (name, count) in expected {
        assert_eq!(report["counters"][name], count, "{name} in {report:#}");
    }
    assert_eq!(
        (&report["windows"], &report["pieces"]),
        (&windows.into(), &pieces.into())
    );
}

#[test]
fn files_of_every_size_arrive_whole_and_are_accounted_for() {
    for device in DEVICES {
        for length in [
            0,
            1,
            4096,
            4097,
            WINDOW as usize,
            3 * WINDOW as usize + 12345,
        ] {
            let report = copy(device, length, &[]);
            assert_counters(&report, length as u64, 256 << 10);
            assert_eq!(report["counters"]["retransmissions"], 0);
        }
    }
}

#[test]
fn pieces_and_depth_can_be_chosen() {
    for device in DEVICES {
        for (piece, bytes, depth) in [
            ("64k", 64 << 10, "1"),
            ("4097", 4097, "16"),
            ("1M", 1 << 20, "64"),
        ] {
            let length = 2 * WINDOW as usize + 1;
            let report = copy(device, length, &["--piece", piece, "--depth", depth]);
            assert_counters(&report, length as u64, bytes);
        }
        let report = copy(device, 300, &["--piece", "1"]);
        assert_counters(&report, 300, 1);
    }
}

#[test]
fn the_digest_can_be_chosen() {
    for (device, digest) in devices_and_digests() {
        let report = copy(device, 2 * WINDOW as usize + 1, &["--digest", digest]);
        assert_eq!(report["digests"]["algorithm"], digest);
    }
}

#[test]
fn lost_frames_cost_only_retransmissions() {
    let report = copy("ib0", 2 << 20, &["--fault", "drop=5%,seed=7"]);
    assert_ne!(report["counters"]["retransmissions"], 0, "{report:#}");
    assert_eq!(report["counters"]["sends_with_invalidate"], 2);
    assert_eq!(report["fault"], "drop=5%,seed=7");
    let report = copy(
        "ib0",
        1 << 20,
        &["--fault", "reorder=2%,duplicate=2%,corrupt=1%"],
    );
    assert_ne!(report["counters"]["duplicates"], 0, "{report:#}");
}

#[test]
fn a_stream_may_arrive_in_pieces_with_pauses() {
    let report = copy("iw0", 2 << 20, &["--fault", "chunk=64..1460,stall=1%:1ms"]);
    assert_counters(&report, 2 << 20, 256 << 10);
}

#[test]
fn text_output_has_the_digest_and_the_counters() {
    let folder = Folder::new();
    let (from, to) = (folder.file(4097), folder.path("copy"));
    for device in DEVICES {
        let text = text(&["copy", path(&from), "--device", device, "--to", path(&to)]);
        assert!(text.contains(" 1 window, 1 piece\n"), "{text}");
        assert_eq!(text.matches("\nblake3 ").count(), 1, "{text}");
        assert!(
            text.contains("equal") && text.contains("fast_registers 2"),
            "{text}"
        );
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
        assert!(
            !text.contains('\u{1b}'),
            "no colours where there is no terminal"
        );
    }
}

#[test]
fn a_device_file_may_be_the_target() {
    let folder = Folder::new();
    let from = folder.file(100_000);
    let report = json(&[
        "copy",
        path(&from),
        "--device",
        "ib0",
        "--to",
        "/dev/null",
        "--json",
    ]);
    assert_eq!(report["digests"]["equal"], true);
}

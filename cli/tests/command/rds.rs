//! `polyverbs rds`, in processes of their own.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{ChildStdout, Command, Stdio};

use serde_json::Value;

use super::network::{DEVICES, Running, next, path};
use super::stored::failing;
use super::{Folder, complaint, json, text};

/// A command whose first line is the address at which it listens.
struct Listening {
    process: Running,
    lines: BufReader<ChildStdout>,
    address: String,
}

impl Listening {
    fn new(arguments: &[&str], device: &str) -> Self {
        let more = ["--device", device, "--json"];
        let mut process = Running::new(&[&["rds"], arguments, &more].concat());
        let mut lines = BufReader::new(process.0.stdout.take().unwrap());
        let address = next(&mut lines)["listening"].as_str().unwrap().to_owned();
        Self {
            process,
            lines,
            address,
        }
    }

    fn rest(self) -> Vec<Value> {
        let lines = self.lines.lines();
        let lines = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        let lines = lines.collect();
        assert_eq!(self.process.end(), (true, String::new()));
        lines
    }
}

fn lines(arguments: &[&str]) -> Vec<Value> {
    let text = text(arguments);
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

#[test]
fn a_file_arrives_in_whole_messages_and_both_ends_say_so() {
    for (device, [near, far]) in DEVICES
        .into_iter()
        .zip([["127.0.45.1", "127.0.45.2"], ["127.0.45.3", "127.0.45.4"]])
    {
        for (length, message_size, messages) in [
            (0, "64k", 1),
            (5000, "64k", 1),
            (300_000, "4097", 74),
            (3 << 20, "1M", 3),
        ] {
            let folder = Folder::new();
            let (file, copy) = (folder.file(length), folder.path("copy"));
            let count = messages.to_string();
            let receive = ["receive", far, "--count", &count, "--to", path(&copy)];
            let receiver = Listening::new(&[&receive[..], &["--info"]].concat(), device);
            let send = [
                "rds",
                "send",
                path(&file),
                &receiver.address,
                "--from",
                near,
            ];
            let more = ["--device", device, "--message-size", message_size];
            let sent = json(&[&send[..], &more, &["--json", "--info"]].concat());
            assert_eq!(sent["messages"], messages);
            assert_eq!(sent["bytes"], length as u64);
            assert_eq!(sent["info"]["connections"][0]["peer"], far);
            let next = &sent["info"]["connections"][0]["next_transmit"];
            assert!(next.as_u64().unwrap() > messages, "{next}");
            let mut told = receiver.rest();
            let last = told.pop().unwrap();
            assert_eq!(last["messages"], messages);
            assert_eq!(last["bytes"], length as u64);
            assert_eq!(last["info"]["counters"]["recv_delivered"], messages);
            assert_eq!(told.len() as u64, messages);
            assert!(told.iter().all(|message| message["from"] == sent["from"]));
            assert!(fs::read(&copy).unwrap() == fs::read(&file).unwrap());
        }
    }
}

#[test]
fn messages_go_from_a_pipe_to_a_pipe() {
    let receive = ["rds", "receive", "127.0.45.6:4000", "--device", "ib0"];
    let mut receiver = Running::new(&[&receive[..], &["--count", "1", "--to", "-"]].concat());
    let mut told = BufReader::new(receiver.0.stderr.take().unwrap());
    let mut first = String::new();
    told.read_line(&mut first).unwrap();
    assert_eq!(first, "ib0  receives at 127.0.45.6:4000\n");
    let mut sender = Command::new(env!("CARGO_BIN_EXE_polyverbs"));
    sender.args(["rds", "send", "-", "127.0.45.6:4000", "--device", "ib0"]);
    let sender = sender.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut sender = Running(sender.stderr(Stdio::piped()).spawn().unwrap());
    let mut input = sender.0.stdin.take().unwrap();
    input.write_all(b"one, ").unwrap();
    input.write_all(b"not two").unwrap();
    drop(input);
    assert_eq!(sender.end(), (true, String::new()));
    let mut received = String::new();
    let mut output = receiver.0.stdout.take().unwrap();
    output.read_to_string(&mut received).unwrap();
    assert_eq!(received, "one, not two");
}

#[test]
fn a_host_answers_pings_of_any_size() {
    for (device, [near, far]) in DEVICES
        .into_iter()
        .zip([["127.0.45.7", "127.0.45.8"], ["127.0.45.9", "127.0.45.10"]])
    {
        let _host = Listening::new(&["receive", far], device);
        for size in ["0", "200k"] {
            let ping = ["rds", "ping", far, "--device", device, "--from", near];
            let more = ["--count", "3", "--interval", "0", "--timeout", "10"];
            let ping = [&ping[..], &more, &["--size", size, "--json"]].concat();
            let mut lines = lines(&ping);
            let tally = lines.pop().unwrap();
            assert_eq!(
                (&tally["asked"], &tally["answered"]),
                (&3.into(), &3.into())
            );
            assert_eq!(lines.len(), 3);
            for line in lines {
                assert!(line["seconds"].as_f64().unwrap() > 0.0, "{line}");
            }
        }
    }
}

#[test]
fn a_scope_is_refused_with_what_to_do() {
    for command in [
        &["rds", "ping", "fe80::1%lo"][..],
        &["ping", "fe80::1%lo"],
        &["put", "Cargo.toml", "[fe80::1%1]:4420"],
        &["serve", "--listen", "[fe80::1%lo]:4420", "--dir", "."],
    ] {
        let told = complaint(&[command, &["--device", "ib0"]].concat());
        assert!(
            told.contains("has a scope, which RDMA devices do not support"),
            "{told}"
        );
    }
}

#[test]
fn an_absent_host_is_reported() {
    let ping = ["rds", "ping", "127.0.45.12", "--device", "ib0"];
    let asked = ["--count", "1", "--timeout", "0.05"];
    let output = super::run(&[&ping[..], &asked].concat());
    assert!(!output.status.success());
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        told,
        "127.0.45.12 does not answer within 50.0 ms\n1 asked, 0 answered\n"
    );
    let folder = Folder::new();
    let file = folder.file(1);
    let send = ["rds", "send", path(&file), "127.0.45.12:4000"];
    let told = complaint(&[&send[..], &["--device", "ib0", "--timeout", "0.05"]].concat());
    assert!(
        told.contains("127.0.45.12:4000 does not acknowledge everything"),
        "{told}"
    );
}

#[test]
fn requests_of_many_tasks_get_their_replies() {
    for (device, [near, far]) in DEVICES.into_iter().zip([
        ["127.0.45.13", "127.0.45.14"],
        ["127.0.45.15", "127.0.45.16"],
    ]) {
        let _listener = Listening::new(&["stress", far, "--listen", "--tasks", "2"], device);
        let stress = ["rds", "stress", near, "--to", far, "--device", device];
        let shape = ["--tasks", "3", "--depth", "4", "--request-bytes", "20k"];
        // More requests than can be outstanding at one time, and time enough for all of them.
        let more = ["--reply-bytes", "5000", "--count", "20", "--seconds", "300"];
        let figures = json(&[&stress[..], &shape, &more, &["--json"]].concat());
        assert_eq!(figures["replies"], 60, "{figures}");
        assert!(figures["bytes_per_second"].as_f64().unwrap() > 0.0);
        assert!(figures["latency"]["p99_ns"].as_f64().unwrap() > 0.0);
    }
}

// The first task has started, and answers requests without end.
#[test]
fn a_listener_that_lacks_a_thread_ends_with_the_reason() {
    let folder = Folder::new();
    let fails = failing(&folder);
    let environment = [("LD_PRELOAD", path(&fails)), ("FAILS", "second-thread")];
    for device in DEVICES {
        let listen = ["rds", "stress", "127.0.45.19", "--listen", "--tasks", "2"];
        let listen = [&listen[..], &["--device", device]].concat();
        let (succeeded, told) = Running::with(&listen, &environment).end();
        assert!(
            !succeeded && told.contains("no thread for a task"),
            "{told}"
        );
    }
}

#[test]
fn faults_of_the_link_are_recovered() {
    for (device, fault, [near, far]) in [
        (
            "ib0",
            "drop=2%,reorder=1%,seed=3",
            ["127.0.45.17", "127.0.45.18"],
        ),
        ("iw0", "reset-after=100", ["127.0.45.21", "127.0.45.22"]),
    ] {
        let folder = Folder::new();
        let (file, copy) = (folder.file(1 << 20), folder.path("copy"));
        // One message more than the file has keeps the receiver running, to acknowledge messages again after a reset.
        let receive = ["receive", far, "--count", "257", "--to", path(&copy)];
        let receiver = Listening::new(&receive, device);
        let send = [
            "rds",
            "send",
            path(&file),
            &receiver.address,
            "--from",
            near,
        ];
        let more = ["--message-size", "4k", "--device", device, "--fault", fault];
        text(&[&send[..], &more].concat());
        let last = ["rds", "send", "/dev/null", &receiver.address];
        text(&[&last[..], &["--from", near, "--device", device]].concat());
        let told = receiver.rest();
        // The receiver acknowledges a message before it writes it, so the file is compared after the receiver's end.
        assert!(fs::read(&copy).unwrap() == fs::read(&file).unwrap());
        assert_eq!(
            told[256],
            serde_json::json!({ "from": told[256]["from"], "bytes": 0 })
        );
    }
}

#[test]
fn processes_at_one_address_send_and_receive_by_themselves() {
    let folder = Folder::new();
    let file = folder.file(20_000);
    for (device, [near, far]) in DEVICES.into_iter().zip([
        ["127.0.45.28", "127.0.45.29"],
        ["127.0.45.30", "127.0.45.31"],
    ]) {
        let _first = Listening::new(&["receive", near], device);
        // Senders and receivers at the same address, and at another one.
        for (from, at) in [(near, near), (far, near), (near, far)] {
            let receiver = Listening::new(&["receive", at, "--count", "5"], device);
            let send = [
                "rds",
                "send",
                path(&file),
                &receiver.address,
                "--from",
                from,
            ];
            let more = ["--message-size", "4k", "--device", device, "--json"];
            let sent = json(&[&send[..], &more].concat());
            let mut told = receiver.rest();
            assert_eq!(told.pop().unwrap()["bytes"], 20_000);
            assert!(told.iter().all(|message| message["from"] == sent["from"]));
        }
    }
}

#[test]
fn messages_are_captured() {
    for (device, [near, far]) in DEVICES.into_iter().zip([
        ["127.0.45.23", "127.0.45.24"],
        ["127.0.45.25", "127.0.45.26"],
    ]) {
        let folder = Folder::new();
        let packets = folder.path("packets");
        let _host = Listening::new(&["receive", far], device);
        let ping = ["rds", "ping", far, "--from", near, "--device", device];
        let ping = [&ping[..], &["--count", "1", "--timeout", "10"]].concat();
        text(&[&["capture", path(&packets)], &ping[..]].concat());
        let told = text(&["dissect", path(&packets)]);
        assert!(
            told.contains("RDS") && told.contains(" > 0 sequence "),
            "{told}"
        );
    }
}

#[test]
fn errors_of_rds_commands_take_one_line() {
    let held = Listening::new(&["receive", "127.0.45.20:4001"], "ib0");
    for (arguments, expected) in [
        (&["ping", "127.0.45.20:7"][..], "not to a port"),
        (&["receive", "127.0.45.20:4001"], "port 4001 is in use"),
        (&["receive", "127.0.45.27:1"], "port 1 is reserved"),
        (
            &["receive", "0.0.0.0"],
            "0.0.0.0 is not the address of one host",
        ),
        (&["send", "/does/not/exist", "127.0.45.20:7"], "cannot read"),
        (&["stress", "127.0.45.27"], "--to"),
        (
            &[
                "stress",
                "127.0.45.27",
                "--to",
                "127.0.45.20",
                "--request-bytes",
                "1",
            ],
            "16 to 1M",
        ),
    ] {
        let told = complaint(&[&["rds"], arguments, &["--device", "ib0"]].concat());
        assert!(told.contains(expected), "{arguments:?}: {told}");
    }
    drop(held);
}

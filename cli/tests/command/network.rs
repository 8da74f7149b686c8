//! `polyverbs serve` and `polyverbs put`, in processes of their own.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::{Folder, complaint, devices_and_digests, digests, json, text};

/// Devices that reach other processes.
pub(super) const DEVICES: [&str; 2] = ["ib0", "iw0"];

/// A process, which dropping kills.
pub(super) struct Running(pub(super) Child);

impl Running {
    pub(super) fn new(arguments: &[&str]) -> Self {
        Self::with(arguments, &[])
    }

    pub(super) fn with(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polyverbs"));
        command.args(arguments).stdin(Stdio::null());
        command.envs(environment.iter().copied());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Waits for the end of the process; returns whether it succeeded, and its standard error.
    pub(super) fn end(self) -> (bool, String) {
        let (status, stderr) = self.status();
        (status.success(), stderr)
    }

    /// Waits for the end of the process; returns its status and its standard error.
    pub(super) fn status(mut self) -> (ExitStatus, String) {
        let status = test_kit::waiting::until_some(|| self.0.try_wait().unwrap());
        let stderr = std::io::read_to_string(self.0.stderr.take().unwrap()).unwrap();
        (status, stderr)
    }

    /// The processor time that the process has used.
    pub(super) fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let ticks = fields.split(' ').skip(11).take(2);
        let ticks: u64 = ticks.map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) struct Server {
    pub(super) process: Running,
    pub(super) lines: BufReader<ChildStdout>,
    pub(super) address: String,
    pub(super) folder: Folder,
}

impl Server {
    pub(super) fn new(device: &str, address: &str, more: &[&str]) -> Self {
        Self::within(Folder::new(), device, address, more, &[])
    }

    /// Starts a server that stores files in `stored`, within the folder.
    pub(super) fn within(
        folder: Folder,
        device: &str,
        address: &str,
        more: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let stored = folder.path("stored");
        std::fs::create_dir_all(&stored).unwrap();
        let mut arguments = vec!["serve", "--device", device, "--listen", address, "--json"];
        arguments.extend(["--dir", stored.to_str().unwrap()]);
        arguments.extend(more);
        let mut process = Running::with(&arguments, environment);
        let mut lines = BufReader::new(process.0.stdout.take().unwrap());
        let first = next(&mut lines);
        let address = first["listening"].as_str().unwrap().to_owned();
        Self {
            process,
            lines,
            address,
            folder,
        }
    }

    /// Sends a file by eight clients, one after the other. The server refuses each, which must report this reason.
    #[track_caller]
    pub(super) fn refuses_each(&self, file: &Path, device: &str, reason: &str) {
        for _ in 0..8 {
            let told = complaint(&["put", path(file), &self.address, "--device", device]);
            assert!(told.contains(reason), "{told}");
        }
    }

    pub(super) fn stored(&self) -> Vec<String> {
        names(&self.folder.path("stored"))
    }
}

/// The names of the files in a folder.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect()
}

pub(super) fn next(lines: &mut BufReader<ChildStdout>) -> Value {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

pub(super) fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[track_caller]
pub(super) fn arrives(server: &mut Server, device: &str, length: usize, more: &[&str]) -> Value {
    let folder = Folder::new();
    let file = folder.file(length);
    let mut arguments = vec!["put", path(&file), &server.address, "--device", device];
    arguments.push("--json");
    arguments.extend(more);
    let report = json(&arguments);
    let stored = next(&mut server.lines);
    let bytes = std::fs::read(&file).unwrap();
    let algorithm = report["digests"]["algorithm"].as_str().unwrap();
    for told in [&report, &stored] {
        assert_eq!(told["bytes"], length as u64);
        assert_eq!(told["digests"], digests(algorithm, &bytes, &bytes));
    }
    let there = std::fs::read(server.folder.path("stored").join("file")).unwrap();
    assert!(there == bytes, "{device}: {length} bytes were changed");
    report
}

#[test]
fn files_arrive_in_another_process() {
    for device in DEVICES {
        for address in ["127.0.30.1:0", "[::1]:0"] {
            let mut server = Server::new(device, address, &["--files", "5"]);
            for length in [0, 1, 4097, 1 << 20, (3 << 20) + 12345] {
                arrives(&mut server, device, length, &[]);
            }
            assert_eq!(server.process.end(), (true, String::new()));
        }
    }
}

#[test]
fn the_client_chooses_the_digest() {
    for (device, digest) in devices_and_digests() {
        let mut server = Server::new(device, "127.0.30.2:0", &[]);
        let report = arrives(&mut server, device, (3 << 20) + 1, &["--digest", digest]);
        assert_eq!(report["digests"]["algorithm"], digest);
    }
}

#[test]
fn link_faults_are_recovered() {
    let faults = ["--fault", "drop=1%,reorder=1%,corrupt=0.1%,seed=3"];
    let mut server = Server::new("ib0", "127.0.31.1:0", &faults);
    let report = arrives(&mut server, "ib0", 8 << 20, &faults);
    // A lost packet costs a NAK of the server, or a retransmission by this side.
    let counted = |name: &str| report["counters"][name].as_u64().unwrap();
    let repaired = counted("retransmissions") + counted("duplicates") + counted("naks");
    assert_ne!(repaired, 0, "{report:#}");
}

#[test]
fn an_absent_peer_is_one_clear_error() {
    for device in DEVICES {
        let folder = Folder::new();
        let file = folder.file(10);
        let put = |to: &str| complaint(&["put", path(&file), to, "--device", device]);
        let server = Server::new(device, "127.0.32.1:0", &[]);
        let refused = put("127.0.32.1:9");
        assert_eq!(
            refused,
            "polyverbs: 127.0.32.1:9: the connection was refused: no program listens there"
        );
        drop(server);
        let missing = complaint(&["put", "/no/such/file", "127.0.32.1:9", "--device", device]);
        assert!(missing.contains("/no/such/file"), "{missing}");
    }
}

#[test]
fn a_client_fails_clearly_and_soon_when_its_server_is_killed() {
    for device in DEVICES {
        let folder = Folder::new();
        let file = folder.endless();
        let server = Server::new(device, "127.0.33.1:0", &[]);
        let put = Running::new(&["put", path(&file), &server.address, "--device", device]);
        test_kit::waiting::until(|| !server.stored().is_empty());
        drop(server);
        let (succeeded, complaint) = put.end();
        assert!(!succeeded);
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        assert!(complaint.contains("connection"), "{complaint}");
    }
}

#[test]
fn a_killed_client_leaves_no_file_and_others_are_served() {
    for device in DEVICES {
        let folder = Folder::new();
        let file = folder.endless();
        let mut server = Server::new(device, "127.0.34.1:0", &["--files", "2"]);
        let put = Running::new(&["put", path(&file), &server.address, "--device", device]);
        test_kit::waiting::until(|| !server.stored().is_empty());
        drop(put);
        arrives(&mut server, device, 5000, &[]);
        let stored = server.folder.path("stored");
        let (succeeded, complaint) = server.process.end();
        assert!(!succeeded);
        assert!(complaint.contains("a file did not arrive"), "{complaint}");
        let left: Vec<_> = std::fs::read_dir(stored).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}

#[test]
fn ping_finds_a_device_of_another_process() {
    for device in DEVICES {
        for at in ["127.0.36.1", "[::1]"] {
            let server = Server::new(device, &format!("{at}:0"), &["--files", "1"]);
            let plain = at.trim_matches(['[', ']']);
            for to in [plain, &server.address] {
                let ping = ["ping", to, "--device", device, "--count", "2"];
                let told = text(&[&ping[..], &["--interval", "0.01"]].concat());
                let lines: Vec<_> = told.lines().collect();
                assert_eq!(lines.len(), 3, "{told}");
                assert!(
                    lines[0].starts_with(&format!("{plain} answers in ")),
                    "{told}"
                );
                assert!(lines[2].starts_with("2 asked, 2 answered: min "), "{told}");
            }
            // The device has answered, not the program: the server still waits for its one file.
            let mut server = server;
            arrives(&mut server, device, 1, &[]);
            assert_eq!(server.process.end(), (true, String::new()));
        }
    }
}

#[test]
fn ping_finds_the_device_after_the_first_process_has_ended() {
    for device in DEVICES {
        let first = Server::new(device, "127.0.45.41:0", &[]);
        let _second = Server::new(device, "127.0.45.41:0", &[]);
        drop(first);
        let told = text(&["ping", "127.0.45.41", "--device", device, "--count", "1"]);
        assert!(told.contains("1 answered"), "{told}");
    }
}

#[test]
fn a_device_answers_within_one_round_trip() {
    for device in DEVICES {
        let server = Server::new(device, "127.0.43.1:0", &[]);
        // On a busy machine a request may be repeated before the device can answer the first one.
        test_kit::waiting::until(|| a_first_request_is_answered(&server.address, device));
    }
}

/// Whether one of twenty pings was answered before its request was repeated.
fn a_first_request_is_answered(to: &str, device: &str) -> bool {
    let folder = Folder::new();
    let packets = folder.path("packets");
    let ping = ["ping", to, "--device", device, "--count", "20"];
    let capture = ["capture", path(&packets)];
    let told = text(&[&capture[..], &ping, &["--interval", "0", "--json"]].concat());
    let last: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["asked"], &last["answered"]),
        (&20.into(), &20.into())
    );
    let at = |name: &str| last[name].as_f64().unwrap();
    assert!(at("min_seconds") <= at("median_seconds"));
    assert!(at("median_seconds") <= at("max_seconds"));
    let captured = text(&["dissect", path(&packets)]);
    let (requests, replies) = (["SIDR_REQ", "MPA Request"], ["SIDR_REP", "MPA Reply"]);
    let has = |line: &str, names: [&str; 2]| names.iter().any(|name| line.contains(name));
    let kinds = captured.lines().take_while(|line| !line.is_empty());
    let kinds = kinds.filter(|line| has(line, requests) || has(line, replies));
    let kinds: Vec<_> = kinds.map(|line| has(line, requests)).collect();
    [&[false], &kinds[..]]
        .concat()
        .windows(3)
        .any(|three| three == [false, true, false])
}

#[test]
fn refusal_by_the_kernel_and_silence_mean_no_device() {
    // No other test uses this address.
    let other = TcpListener::bind("127.0.44.1:0").unwrap();
    let is_no_device = other.local_addr().unwrap().to_string();
    let expected = [
        ("ib0", "127.0.44.1", "no RDMA device is at 127.0.44.1: "),
        (
            "iw0",
            "127.0.44.1",
            "no iWARP device of Polyverbs is at 127.0.44.1: ",
        ),
        ("iw0", "127.0.44.1:9", "the kernel there refuses it"),
        (
            "iw0",
            &is_no_device,
            &format!("polyverbs: what listens at {is_no_device} is no RDMA device\n"),
        ),
    ];
    let pings = expected.map(|(device, to, told)| {
        let ping = ["ping", to, "--device", device, "--count", "1"];
        let more = ["--timeout", "4"];
        (Running::new(&[&ping[..], &more].concat()), told)
    });
    for (ping, expected) in pings {
        let (succeeded, told) = ping.end();
        assert!(!succeeded && told.contains(expected), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    // This socket does not answer.
    let _silent = std::net::UdpSocket::bind("127.0.44.2:4791").unwrap();
    let ping = [
        "ping",
        "127.0.44.2",
        "--device",
        "ib0",
        "--count",
        "1",
        "--timeout",
        "0.2",
    ];
    let silent = super::run(&ping);
    assert_eq!(silent.status.code(), Some(1));
    let told = String::from_utf8(silent.stdout).unwrap();
    assert_eq!(
        told,
        "127.0.44.2 does not answer within 200 ms\n1 asked, 0 answered\n"
    );
}

#[test]
fn hosts_have_names() {
    for device in DEVICES {
        let mut server = Server::new(device, "localhost:0", &["--files", "1"]);
        let (_, port) = server.address.rsplit_once(':').unwrap();
        server.address = format!("localhost:{port}");
        let told = text(&["ping", &server.address, "--device", device, "--count", "1"]);
        assert!(told.contains("1 answered"), "{told}");
        arrives(&mut server, device, 4097, &[]);
    }
    let unknown = complaint(&[
        "put",
        "Cargo.toml",
        "no.such.host.invalid:1",
        "--device",
        "ib0",
    ]);
    assert!(
        unknown.contains("no address of no.such.host.invalid is known"),
        "{unknown}"
    );
    for wrong in ["localhost", "::1", "1.2.3.4", "a:b:c", "localhost:port"] {
        let told = complaint(&["put", "Cargo.toml", wrong, "--device", "ib0"]);
        assert!(told.contains("it is HOST:PORT"), "{told}");
    }
}

#[test]
fn a_capture_contains_every_packet_with_correct_checksums() {
    let folder = Folder::new();
    let (file, packets) = (folder.file(300_000), folder.path("packets"));
    let named: [(_, &[_]); 2] = [
        (
            "ib0",
            &["REQ", "REP", "RTU", "DREQ", "DREP", "READ", "SEND"],
        ),
        (
            "iw0",
            &["MPA REQUEST", "MPA REPLY", "READ RESPONSE", "SEND"],
        ),
    ];
    for (device, names) in named {
        let server = Server::new(device, "127.0.37.1:0", &[]);
        let captured = [
            "capture",
            path(&packets),
            "put",
            path(&file),
            &server.address,
        ];
        text(&[&captured[..], &["--device", device]].concat());
        let table = text(&["dissect", path(&packets)]);
        for name in names {
            let found = table.to_uppercase().contains(name);
            assert!(found, "{name} in {table}");
        }
    }
    let wrong = complaint(&["capture", path(&packets), "put"]);
    assert!(wrong.contains("try --help"), "{wrong}");
}

#[test]
fn a_capture_without_a_device_leaves_the_file_as_it_is() {
    let folder = Folder::new();
    let (file, packets) = (folder.file(5000), folder.path("packets"));
    fs::write(&packets, "of before").unwrap();
    for device in ["ib0", "iw0", "no0"] {
        // The source is no address of this machine, so that no device can be made.
        let ping = [
            "ping",
            "127.0.24.11",
            "--from",
            "192.0.2.1",
            "--device",
            device,
        ];
        complaint(&[&["capture", path(&packets)][..], &ping].concat());
        assert_eq!(fs::read(&packets).unwrap(), b"of before", "{device}");
    }
    let missing = folder.path("no/packets");
    let put = ["put", path(&file), "127.0.24.11:9", "--device", "ib0"];
    let told = complaint(&[&["capture", path(&missing)][..], &put].concat());
    assert!(
        told.contains("cannot write") && told.contains("No such file"),
        "{told}"
    );
}

#[test]
fn a_server_removes_what_a_killed_one_left() {
    let folder = Folder::new();
    let file = folder.endless();
    let mut server = Server::new("ib0", "127.0.38.1:0", &[]);
    let _put = Running::new(&["put", path(&file), &server.address, "--device", "ib0"]);
    test_kit::waiting::until(|| !server.stored().is_empty());
    server.process.0.kill().unwrap();
    server.process.0.wait().unwrap();
    let left = server.stored();
    assert_eq!(left, [".polyverbs-unfinished"]);
    let stored = server.folder.path("stored");
    let arguments = ["serve", "--device", "ib0", "--listen", "127.0.38.2:0"];
    let next_one = Running::new(&[&arguments[..], &["--dir", path(&stored), "--json"]].concat());
    test_kit::waiting::until(|| server.stored().is_empty());
    drop(next_one);
}

#[test]
fn a_reset_or_damaged_stream_is_reported_in_one_clear_error() {
    for fault in ["flip=5%,seed=1", "reset-after=40"] {
        let folder = Folder::new();
        let file = folder.file(16 << 20);
        let server = Server::new("iw0", "127.0.39.1:0", &["--files", "1"]);
        let put = ["put", path(&file), &server.address, "--device", "iw0"];
        let told = complaint(&[&put[..], &["--fault", fault]].concat());
        assert!(told.contains("connection"), "{told}");
        let stored = server.folder.path("stored");
        let (succeeded, told) = server.process.end();
        assert!(
            !succeeded && told.contains("a file did not arrive"),
            "{told}"
        );
        assert_eq!(std::fs::read_dir(stored).unwrap().count(), 0);
    }
}

#[test]
fn every_measurement_is_made_between_processes() {
    for device in DEVICES {
        let listen = ["perf", "--listen", "127.0.40.1:0", "--device", device];
        let mut listening = Running::new(&[&listen[..], &["--json"]].concat());
        let mut lines = BufReader::new(listening.0.stdout.take().unwrap());
        let first = next(&mut lines);
        let to = first["listening"].as_str().unwrap();
        let measure = |test, more: &[&str]| {
            let perf = ["perf", test, to, "--device", device, "--json"];
            let figures = json(&[&perf[..], &["--iters", "200"], more].concat());
            assert_eq!(
                (&figures["test"], &figures["to"]),
                (&test.into(), &to.into())
            );
            assert!(figures["nanoseconds"].as_f64().unwrap() > 0.0);
            figures
        };
        for test in [
            "send-latency",
            "write-latency",
            "read-latency",
            "atomic-latency",
        ] {
            let figures = measure(test, &[]);
            assert!(figures["one_by_one"]["p99_ns"].as_f64().unwrap() > 0.0);
        }
        for test in ["bandwidth", "read-bandwidth", "send-bandwidth"] {
            let figures = measure(test, &["--size", "20k"]);
            assert!(figures["bytes_per_second"].as_f64().unwrap() > 0.0);
        }
        assert!(measure("message-rate", &[])["messages_per_second"].is_number());
        if device == "ib0" {
            measure(
                "read-bandwidth",
                &["--size", "20k", "--fault", "drop=1%,seed=3"],
            );
        }
    }
}

#[test]
fn a_measurement_fails_clearly_when_its_listener_is_killed() {
    // Over both devices at the same time: over InfiniBand it takes seconds until all retries have failed.
    let running = DEVICES.map(|device| {
        let listen = ["perf", "--listen", "127.0.41.1:0", "--device", device];
        let mut listening = Running::new(&[&listen[..], &["--json"]].concat());
        let first = next(&mut BufReader::new(listening.0.stdout.take().unwrap()));
        let to = first["listening"].as_str().unwrap();
        let endless = ["--from", "127.0.41.2", "--iters", "1000000000"];
        let perf = ["perf", "send-latency", to, "--device", device];
        (listening, Running::new(&[&perf[..], &endless].concat()))
    });
    let killed = running.map(|(listening, measuring)| {
        // Connecting takes less than that, so the measurement has begun.
        test_kit::waiting::until(|| measuring.processor_time() > Duration::from_millis(100));
        drop(listening);
        measuring
    });
    for measuring in killed {
        let (succeeded, complaint) = measuring.end();
        assert!(!succeeded);
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
}

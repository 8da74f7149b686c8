//! Ctrl-C leaves nothing half-made, and what was done is told.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Folder;

/// It ends within this.
const SOON: Duration = Duration::from_secs(20);

struct Running(Child);

impl Running {
    fn new(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polyverbs"));
        command.args(arguments).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if arguments[0] == "matrix" {
            // The probes of devices at an address take many seconds, those of devices in memory are over at once.
            command.env("POLYVERBS_ADDRESS", "127.0.42.6");
        }
        Self(command.spawn().unwrap())
    }

    /// Waits until it takes signals.
    fn takes_signals(&mut self) {
        let status = format!("/proc/{}/status", self.0.id());
        until(|| {
            let status = std::fs::read_to_string(&status).unwrap();
            let blocked = status
                .lines()
                .find_map(|line| line.strip_prefix("SigBlk:\t"));
            let blocked = u64::from_str_radix(blocked.unwrap(), 16).unwrap();
            blocked & 1 << (Signal::SIGINT as u64 - 1) != 0
        });
    }

    /// Its status, and its standard error.
    fn interrupt(&mut self, signal: Signal) -> (Option<i32>, String) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
        until(|| self.0.try_wait().unwrap().is_some());
        let stderr = self.0.stderr.take().unwrap();
        let status = self.0.wait().unwrap();
        (status.code(), std::io::read_to_string(stderr).unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A file that takes a while.
fn large(folder: &Folder) -> PathBuf {
    let path = folder.path("file");
    File::create(&path).unwrap().set_len(1 << 30).unwrap();
    path
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_copy_leaves_its_target_as_it_was() {
    for (device, signal, status) in [("ib0", Signal::SIGINT, 130), ("iw0", Signal::SIGTERM, 143)] {
        let folder = Folder::new();
        let (from, within) = (large(&folder), folder.path("within"));
        std::fs::create_dir(&within).unwrap();
        let to = within.join("copy");
        std::fs::write(&to, "old").unwrap();
        let copy = [
            "copy",
            path(&from),
            "--device",
            device,
            "--to",
            path(&to),
            "--piece",
            "4k",
        ];
        let mut copy = Running::new(&copy);
        until(|| names(&within).len() == 2);
        let (ended, told) = copy.interrupt(signal);
        assert_eq!(ended, Some(status), "{told}");
        assert!(told.starts_with("polyverbs: interrupted: "), "{told}");
        assert!(
            told.contains(" of 1.00 GiB copied, and ") && told.ends_with(" is as it was\n"),
            "{told}"
        );
        assert_eq!(names(&within), ["copy"]);
        assert_eq!(std::fs::read(&to).unwrap(), b"old");
    }
}

#[test]
fn an_interrupted_put_leaves_no_file_on_either_side() {
    for (device, interrupts_put) in [("ib0", true), ("iw0", true), ("ib0", false), ("iw0", false)] {
        let folder = Folder::new();
        let (from, stored) = (large(&folder), folder.path("stored"));
        std::fs::create_dir(&stored).unwrap();
        let serve = [
            "serve",
            "--device",
            device,
            "--listen",
            "127.0.42.1:0",
            "--dir",
            path(&stored),
        ];
        let mut serve = Running::new(&[&serve[..], &["--json", "--piece", "4k"]].concat());
        let mut first = String::new();
        let stdout = serve.0.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut first).unwrap();
        let first: serde_json::Value = serde_json::from_str(&first).unwrap();
        let at = first["listening"].as_str().unwrap();
        let mut put = Running::new(&["put", path(&from), at, "--device", device]);
        until(|| !names(&stored).is_empty());
        let (ended, told) = match interrupts_put {
            true => put.interrupt(Signal::SIGINT),
            false => serve.interrupt(Signal::SIGINT),
        };
        assert_eq!(ended, Some(130), "{told}");
        let expected = match interrupts_put {
            true => " of 1.00 GiB sent, and nothing is stored\n",
            false => "interrupted: 0 files stored\n",
        };
        assert!(told.ends_with(expected), "{told}");
        assert!(!told.contains("1.00 GiB of"), "{told}");
        // The server hears of the end, and has nothing left.
        until(|| names(&stored).is_empty());
    }
}

#[test]
fn an_interrupted_capture_has_what_was_captured() {
    let folder = Folder::new();
    let packets = folder.path("packets");
    let _answers = super::network::Server::new("ib0", "127.0.42.3:0", &[]);
    let ping = ["ping", "127.0.42.3", "--device", "ib0", "--count", "1000"];
    let mut running = Running::new(&[&["capture", path(&packets)][..], &ping].concat());
    let mut line = String::new();
    let mut lines = BufReader::new(running.0.stdout.take().unwrap());
    while !line.contains("answers") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it has ended");
    }
    running.interrupt(Signal::SIGINT);
    let told = super::text(&["dissect", path(&packets)]);
    assert!(told.contains("RoCEv2"), "{told}");
}

#[test]
fn an_interrupt_ends_measurements_and_probes_at_once() {
    let folder = Folder::new();
    let page = folder.path("page");
    std::fs::write(&page, "old").unwrap();
    for command in [
        &[
            "perf",
            "send-latency",
            "--device",
            "ib0",
            "--iters",
            "1000000000",
        ][..],
        &["perf", "--listen", "127.0.42.2:0", "--device", "iw0"],
        &["matrix", "--verify", "--output", path(&page)],
        &["rds", "receive", "127.0.42.4", "--device", "ib0"],
        &["rds", "stress", "127.0.42.5", "--listen", "--device", "iw0"],
    ] {
        let mut running = Running::new(command);
        running.takes_signals();
        let (status, told) = running.interrupt(Signal::SIGINT);
        assert_eq!(status, Some(130), "{told}");
        assert!(told.starts_with("polyverbs: interrupted"), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    assert_eq!(std::fs::read(&page).unwrap(), b"old");
}

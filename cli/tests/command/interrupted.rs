//! Ctrl-C leaves no partial file, and the command reports how far it came.

use std::io::{BufRead as _, BufReader};

use rustix::process::{Pid, Signal, kill_process};
use test_kit::waiting::until;

use super::Folder;
use super::network::{DEVICES, Running, Server, names, path};
use super::stored::failing;

impl Running {
    /// Waits until the process handles signals.
    fn takes_signals(&self) {
        let status = format!("/proc/{}/status", self.0.id());
        until(|| {
            let status = std::fs::read_to_string(&status).unwrap();
            let blocked = status
                .lines()
                .find_map(|line| line.strip_prefix("SigBlk:\t"));
            let blocked = u64::from_str_radix(blocked.unwrap(), 16).unwrap();
            blocked & 1 << (Signal::INT.as_raw() - 1) != 0
        });
    }

    /// Sends the signal; returns the exit status and the standard error.
    fn interrupt(self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_raw(self.0.id() as i32).unwrap(), signal).unwrap();
        let (status, stderr) = self.status();
        (status.code(), stderr)
    }
}

#[test]
fn a_copy_leaves_its_target_as_it_was() {
    for (device, signal, status) in [("ib0", Signal::INT, 130), ("iw0", Signal::TERM, 143)] {
        let folder = Folder::new();
        let (from, within) = (folder.endless(), folder.path("within"));
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
        let copy = Running::new(&copy);
        until(|| names(&within).len() == 2);
        let (ended, told) = copy.interrupt(signal);
        assert_eq!(ended, Some(status), "{told}");
        assert!(told.starts_with("polyverbs: interrupted: "), "{told}");
        assert!(
            told.contains(" of 1.00 TiB copied, and ") && told.ends_with(" is as it was\n"),
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
        let from = folder.endless();
        let server = Server::new(device, "127.0.42.1:0", &["--piece", "4k"]);
        let put = ["put", path(&from), &server.address, "--device", device];
        let put = Running::new(&put);
        until(|| !server.stored().is_empty());
        let Server {
            process,
            folder: within,
            ..
        } = server;
        let (ended, told) = match interrupts_put {
            true => put.interrupt(Signal::INT),
            false => process.interrupt(Signal::INT),
        };
        assert_eq!(ended, Some(130), "{told}");
        let expected = match interrupts_put {
            true => " of 1.00 TiB sent, and nothing is stored\n",
            false => "interrupted: 0 files stored\n",
        };
        assert!(told.ends_with(expected), "{told}");
        assert!(!told.contains("1.00 TiB of"), "{told}");
        // The server notices the end and removes its partial file.
        until(|| names(&within.path("stored")).is_empty());
    }
}

#[test]
fn an_interrupted_capture_has_what_was_captured() {
    let folder = Folder::new();
    let packets = folder.path("packets");
    let _answers = Server::new("ib0", "127.0.42.3:0", &[]);
    let ping = ["ping", "127.0.42.3", "--device", "ib0", "--count", "1000"];
    let mut running = Running::new(&[&["capture", path(&packets)][..], &ping].concat());
    let mut line = String::new();
    let mut lines = BufReader::new(running.0.stdout.take().unwrap());
    while !line.contains("answers") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the command ended");
    }
    running.interrupt(Signal::INT);
    let told = super::text(&["dissect", path(&packets)]);
    assert!(told.contains("RoCEv2"), "{told}");
}

#[test]
fn an_interrupt_ends_measurements_and_probes_at_once() {
    let folder = Folder::new();
    let page = folder.path("page");
    std::fs::write(&page, "old").unwrap();
    // The probes of devices of a library take seconds: many of them wait a while to see that an event does not happen.
    let library = test_kit::libraries::built();
    let library = [("POLYVERBS_RDMA_CORE", path(&library))];
    let verify = ["matrix", "--verify", "--provider", "libibverbs"];
    let endless = ["--device", "ib0", "--iters", "1000000000"];
    for running in [
        Running::with(
            &[&verify[..], &["--output", path(&page)]].concat(),
            &library,
        ),
        Running::new(&[&["perf", "send-latency"][..], &endless].concat()),
        Running::new(&["perf", "--listen", "127.0.42.2:0", "--device", "iw0"]),
        Running::new(&["rds", "receive", "127.0.42.4", "--device", "ib0"]),
        Running::new(&["rds", "stress", "127.0.42.5", "--listen", "--device", "iw0"]),
    ] {
        running.takes_signals();
        let (status, told) = running.interrupt(Signal::INT);
        assert_eq!(status, Some(130), "{told}");
        assert!(told.starts_with("polyverbs: interrupted"), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    assert_eq!(std::fs::read(&page).unwrap(), b"old");
}

#[test]
fn a_signal_ends_a_process_that_gets_no_further_thread() {
    for device in DEVICES {
        let folder = Folder::new();
        let (fails, mark) = (failing(&folder), folder.path("mark"));
        let environment = [("LD_PRELOAD", path(&fails)), ("FAILS_WHILE", path(&mark))];
        let receive = ["rds", "receive", "127.0.42.6", "--device", device];
        let mut running = Running::with(&receive, &environment);
        let mut line = String::new();
        let mut lines = BufReader::new(running.0.stdout.take().unwrap());
        lines.read_line(&mut line).unwrap();
        assert!(line.contains("receives at"), "{line}");
        std::fs::write(&mark, "").unwrap();
        let (status, told) = running.interrupt(Signal::INT);
        assert_eq!(status, Some(130), "{told}");
        assert!(told.starts_with("polyverbs: interrupted"), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}

#[test]
fn a_command_without_the_threads_for_signals_reports_it() {
    let folder = Folder::new();
    let (fails, mark) = (failing(&folder), folder.path("mark"));
    std::fs::write(&mark, "").unwrap();
    let environment = [("LD_PRELOAD", path(&fails)), ("FAILS_WHILE", path(&mark))];
    let (succeeded, told) =
        Running::with(&["ping", "127.0.42.7", "--device", "ib0"], &environment).end();
    assert!(!succeeded, "{told}");
    assert!(told.contains("no thread that receives signals"), "{told}");
}

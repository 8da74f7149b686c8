//! The command as a user runs it: what it prints, and how it ends.

use std::ffi::OsStr;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

mod copy;
mod dissect;
mod errors;
mod fabric;
mod hostile;
mod interrupted;
mod network;
mod profiles;
mod rds;
mod real_devices;
mod run;
mod sanitizers;
mod shown;
mod stored;
mod terminal;

const DEVICES: [&str; 2] = ["ib0", "iw0"];

fn run<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_polyverbs"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs the command, which must succeed; returns its standard output.
#[track_caller]
fn text<S: AsRef<OsStr>>(arguments: &[S]) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = run(arguments);
    let (stdout, stderr) = (
        String::from_utf8(stdout).unwrap(),
        String::from_utf8_lossy(&stderr),
    );
    assert!(status.success(), "{status}\n{stdout}{stderr}");
    assert_eq!(
        stderr, "",
        "nothing on standard error, which is no terminal"
    );
    stdout
}

#[track_caller]
fn json<S: AsRef<OsStr>>(arguments: &[S]) -> Value {
    serde_json::from_str(&text(arguments)).unwrap()
}

/// Runs the command, which must fail; returns its only line of standard error.
#[track_caller]
fn complaint<S: AsRef<OsStr>>(arguments: &[S]) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = run(arguments);
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(!status.success(), "{}", String::from_utf8_lossy(&stdout));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("polyverbs: "), "{stderr}");
    stderr.trim_end().to_owned()
}

/// Each device with the name of each digest.
fn devices_and_digests() -> impl Iterator<Item = (&'static str, &'static str)> {
    let digests = |device| ["blake3", "sha256"].map(|digest| (device, digest));
    DEVICES.into_iter().flat_map(digests)
}

fn digest(name: &str, bytes: &[u8]) -> [u8; 32] {
    match name {
        "blake3" => blake3::hash(bytes).into(),
        "sha256" => Sha256::digest(bytes).into(),
        _ => panic!("{name}"),
    }
}

/// The digests that a report has, if the client has read `sent` and the server has stored `stored`.
fn digests(name: &str, sent: &[u8], stored: &[u8]) -> Value {
    let shown = |bytes| -> String {
        let digest = digest(name, bytes);
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    json!({
        "algorithm": name,
        "client": shown(sent),
        "server": shown(stored),
        "equal": sent == stored,
    })
}

/// A temporary folder, which dropping removes.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file of `length` pseudo-random bytes.
    fn file(&self, length: usize) -> PathBuf {
        let path = self.path("file");
        let mut state = 0x2545_f491_4f6c_dd1du64;
        let bytes = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        });
        std::fs::write(&path, bytes.take(length).collect::<Vec<_>>()).unwrap();
        path
    }

    /// A sparse file of 1 TiB, too long for a transfer to finish.
    fn endless(&self) -> PathBuf {
        let path = self.path("endless");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        path
    }
}

//! The provider over the C library of this workspace, as `polyverbs run` gives it to programs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

// A test cannot depend on the libraries and the command, so cargo does not build them for the test.
fn command() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/debug/deps/over_our_library-…
    let target = test.ancestors().nth(3).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.arg("build");
    // With the features that everything else has been built with, where that is so.
    match std::env::var_os("POLYVERBS_WHOLE_WORKSPACE") {
        Some(_) => cargo.args(["--workspace", "--lib", "--bins"]),
        None => cargo.args(
            ["polyverbs-cli", "polyverbs-compat", "polyverbs-redirect"]
                .map(|name| format!("-p{name}")),
        ),
    };
    let built = cargo.arg("--target-dir").arg(target).output().unwrap();
    assert!(built.status.success(), "cargo build: {built:?}");
    target.join("debug/polyverbs")
}

/// Runs a program on the devices of the library.
fn run(devices: &[&str], program: &str, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut run = Command::new(command());
    run.arg("run");
    for device in devices {
        run.args(["--device", device]);
    }
    run.arg("--").arg(program).args(arguments);
    // What cargo sets for tests would come before the libraries.
    run.env("XDG_RUNTIME_DIR", folder.path())
        .env_remove("LD_LIBRARY_PATH");
    run.output().unwrap()
}

const MATRIX: &str = env!("CARGO_BIN_EXE_matrix");
const EXCHANGE: &str = env!("CARGO_BIN_EXE_exchange");

fn names(list: &str) -> BTreeSet<&str> {
    list.split_whitespace().collect()
}

/// The features of which a matrix says this.
fn rows<'m>(matrix: &'m Value, verdict: &str) -> BTreeSet<&'m str> {
    let rows = matrix["rows"].as_array().unwrap().iter();
    let found = rows.filter(|row| row["cells"]["hw-ib0"]["verdict"] == verdict);
    found.map(|row| row["feature"].as_str().unwrap()).collect()
}

// covers 1.20
#[test]
fn what_the_library_says_of_a_device_is_verified_and_the_rest_refused() {
    let output = run(&["ib0"], MATRIX, &["--json"]);
    assert!(output.status.success(), "{output:?}");
    let matrix: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(matrix["devices"], serde_json::json!(["hw-ib0"]));
    assert_eq!(matrix["reports"][0]["transport"], "infiniband");
    assert_eq!(rows(&matrix, "mismatch"), names(""));
    assert_eq!(rows(&matrix, "not-verifiable"), names(""));
    let verified = "RC UC UD SEND SEND_WITH_IMM WRITE WRITE_WITH_IMM READ LOCAL_READ_SINK ATOMICS INLINE RNR_RETRY \
        REGIONS REREG_MR RESIZE_CQ SRQ MULTICAST WINDOW_1 WINDOW_2B";
    assert_eq!(rows(&matrix, "verified"), names(verified));
}

#[test]
fn what_no_probe_looks_at_holds_too() {
    let output = run(&["ib0"], EXCHANGE, &[]);
    assert!(output.status.success(), "{output:?}");
    let seen = String::from_utf8(output.stdout).unwrap();
    assert_eq!(seen.lines().count(), 7, "{seen}");
}

// covers 1.20
#[test]
fn an_iwarp_device_is_left_out_with_a_reason() {
    let output = run(&["iw0"], MATRIX, &[]);
    assert!(!output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("iw0 is left out: an iWARP device"), "{said}");
    assert!(said.contains("no devices that can be used"), "{said}");
}

/// Runs a program that finds this file under the name of the library.
fn run_on(file: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("libibverbs.so.1"), file).unwrap();
    let mut matrix = Command::new(MATRIX);
    let output = matrix
        .env("LD_LIBRARY_PATH", folder.path())
        .output()
        .unwrap();
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

// covers 1.20
#[test]
fn a_library_that_cannot_be_used_is_named_with_the_reason() {
    let said = run_on(b"");
    assert!(said.contains("libibverbs.so.1: file too short"), "{said}");
    let other = command().with_file_name("libpolyverbs_redirect.so");
    let said = run_on(&std::fs::read(other).unwrap());
    assert!(said.contains("undefined symbol: ibv_"), "{said}");
}

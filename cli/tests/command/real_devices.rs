//! The command on devices of a C library: ours, and a library in front of it that makes wrong claims.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use serde_json::Value;

const POLYVERBS: &str = env!("CARGO_BIN_EXE_polyverbs");

/// Runs the command so that the provider of real devices loads `library`, which offers one of our devices.
fn run(device: &str, library: &Path, lies: &str, arguments: &[&str]) -> Output {
    let mut run = Command::new(POLYVERBS);
    run.args(["run", "--device", device, "--", POLYVERBS]);
    run.args(arguments);
    run.env("POLYVERBS_RDMA_CORE", library).env("LIES", lies);
    // The folders that cargo sets for tests would come before the libraries.
    run.env_remove("LD_LIBRARY_PATH");
    run.output().unwrap()
}

/// A library in front of this workspace's, with the wrong claim that `LIES` names.
fn liar(folder: &Path) -> PathBuf {
    let honest = test_kit::libraries::built();
    std::os::unix::fs::symlink(&honest, folder.join("libibverbs.so")).unwrap();
    let liar = folder.join("libliar.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/lies.c");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
    cc.arg(&liar).arg(source).arg("-L").arg(folder);
    cc.args(["-Wl,--no-as-needed", "-libverbs"]);
    cc.arg(format!("-Wl,-rpath,{}", honest.parent().unwrap().display()));
    let built = cc.output().unwrap();
    assert!(built.status.success(), "{built:?}");
    liar
}

/// The reason of each cell of a device with this verdict, by feature.
fn cells(output: &Output, device: &str, verdict: &str) -> BTreeMap<String, String> {
    let matrix: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let rows = matrix["rows"].as_array().unwrap().iter();
    let found = rows.filter_map(|row| {
        let cell = &row["cells"][device];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (cell["verdict"] == verdict).then(|| (text(&row["feature"]), text(&cell["because"])))
    });
    found.collect()
}

fn mismatches(output: &Output) -> BTreeMap<String, String> {
    cells(output, "ib0@libibverbs", "mismatch")
}

const VERIFY: [&str; 5] = ["matrix", "--verify", "--provider", "libibverbs", "--json"];

// covers 1.20
#[test]
fn an_over_claim_and_a_hidden_feature_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let liar = liar(folder.path());

    // The runs are parallel, since their probes mostly wait to see that an event does not happen.
    let [honest, over, hidden] = thread::scope(|scope| {
        let liar = &liar;
        ["", "has_no_srq", "hides_windows"]
            .map(|lies| scope.spawn(move || run("ib0", liar, lies, &VERIFY)))
            .map(|run| run.join().unwrap())
    });
    assert!(honest.status.success(), "{honest:?}");
    assert_eq!(mismatches(&honest), BTreeMap::new());

    assert!(!over.status.success());
    let found = mismatches(&over);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["SRQ"], "{found:?}");

    assert!(!hidden.status.success());
    // A type 2 window of a device that claims neither 2A nor 2B works as both.
    let found = mismatches(&hidden);
    let both = ["WINDOW_2A", "WINDOW_2B"];
    assert_eq!(found.keys().collect::<Vec<_>>(), both, "{found:?}");
}

// covers 1.20
#[test]
fn claims_of_a_device_without_an_address_are_not_verifiable() {
    const IW0: &str = "iw0@libibverbs";
    // Both devices are at 127.0.0.1, for which librdmacm takes the first, so that `iw0` has no address of its own.
    let mut verify = Command::new(POLYVERBS);
    verify.args(VERIFY).args(["--device", IW0]);
    verify.env("POLYVERBS_RDMA_CORE", test_kit::libraries::built());
    let verified = verify.output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    assert_eq!(cells(&verified, IW0, "mismatch"), BTreeMap::new());
    let found = cells(&verified, IW0, "not-verifiable");
    let why = "this machine has no address that librdmacm takes for iw0";
    assert!(found["RC"].contains(why), "{found:?}");
}

// covers 3.99
#[test]
fn completions_on_iwarp_are_in_request_order_whatever_the_library_does() {
    let folder = tempfile::tempdir().unwrap();
    let liar = liar(folder.path());
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    std::fs::write(&from, vec![7; 10 << 20]).unwrap();
    let copy = ["copy", from.to_str().unwrap(), "--to", to.to_str().unwrap()];
    let copy = [&copy[..], &["--device", "iw0@libibverbs"]].concat();
    let copied = run("iw0", &liar, "overtakes", &copy);
    assert!(copied.status.success(), "{copied:?}");
    assert_eq!(std::fs::read(&from).unwrap(), std::fs::read(&to).unwrap());
}

#[test]
fn absent_devices_are_listed_with_the_reason() {
    let mut devices = Command::new(POLYVERBS);
    devices
        .args(["devices", "--verbose"])
        .env_remove("POLYVERBS_RDMA_CORE");
    let output = devices.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let is_without = !Path::new("/sys/class/infiniband").exists();
    assert_eq!(
        said.contains("not there: libibverbs.so.1"),
        is_without,
        "{said}"
    );

    devices.env("POLYVERBS_RDMA_CORE", "/no/such/library.so");
    let output = devices.output().unwrap();
    assert!(!output.status.success(), "the library was named");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("/no/such/library.so: cannot open"), "{said}");
}

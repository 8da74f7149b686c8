//! The command shows the extension if one line of the program links it, and only then.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

const LINE: &str = "use acme_checksum as _;\n\n";
const ROW: &str = "acme-checksum::RANGE";

/// The output of an example, which is the command.
fn output(example: &str, arguments: &[&str]) -> String {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(|deps| deps.parent()).unwrap();
    let mut command = Command::new(built.join("examples").join(example));
    let output = command.args(arguments).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{example} {arguments:?}: {complaint}"
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The cells of the extension's row in the verified matrix, if there is one.
fn cells(example: &str) -> Option<Value> {
    let matrix = output(example, &["matrix", "--verify", "--json"]);
    let matrix: Value = serde_json::from_str(&matrix).unwrap();
    let mut rows = matrix["rows"].as_array().unwrap().iter();
    let row = rows.find(|row| row["feature"] == ROW)?;
    Some(row["cells"].clone())
}

fn source(example: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let text = std::fs::read_to_string(folder.join(format!("{example}.rs"))).unwrap();
    // The first line is skipped, because it describes the program.
    text.lines()
        .skip(1)
        .map(|line| format!("{line}\n"))
        .collect()
}

// covers 1.17
#[test]
fn one_line_adds_the_row_and_removing_it_removes_the_row() {
    let (with, without) = (source("with-checksums"), source("without-checksums"));
    assert_eq!(with.replacen(LINE, "", 1), without);
    assert_ne!(with, without);
    let cells_with = cells("with-checksums").expect("a row of the extension");
    for device in ["ib0", "iw0"] {
        let cell = &cells_with[device];
        assert_eq!(cell["verdict"], "verified", "{device}: {cell}");
        assert_eq!(cell["probes_passed"], 7, "{device}: {cell}");
    }
    assert_eq!(cells("without-checksums"), None);
}

#[test]
fn every_command_shows_it_and_calls_itself_polyverbs() {
    let devices = output("with-checksums", &["devices", "--json"]);
    assert_eq!(devices.matches(ROW).count(), 2, "both devices: {devices}");
    let without = output("without-checksums", &["devices", "--json"]);
    assert!(!without.contains(ROW), "{without}");
    let usage = output("without-checksums", &["matrix", "--help"]);
    assert!(usage.contains("Usage: polyverbs matrix"), "{usage}");
}

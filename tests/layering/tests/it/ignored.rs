//! What `cargo test --workspace` leaves out says so: cargo lists each with what it needs and what runs it.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where a test that is left out belongs: to the second command, or to the test that starts it.
const PLACES: [&str; 2] = [
    ": tests/foreign runs it\"]",
    "\"a process of the other tests\"]",
];

#[test]
fn what_is_ignored_names_what_runs_it() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let (mut ignored, mut wrong) = (0, Vec::new());
    for path in sources(root) {
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(str::trim);
        for line in lines.filter(|line| line.starts_with("#[ignore")) {
            ignored += 1;
            if !PLACES.iter().any(|place| line.ends_with(place)) {
                wrong.push(format!("{}: {line}", path.display()));
            }
        }
    }
    assert!(ignored > 0, "no source was found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The sources of the workspace, without what is built.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let paths = entries.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        !name.starts_with('.') && !name.starts_with("target")
    });
    paths
        .flat_map(|entry| match entry.path() {
            path if path.is_dir() => sources(&path),
            path if path.extension().is_some_and(|is| is == "rs") => vec![path],
            _ => Vec::new(),
        })
        .collect()
}

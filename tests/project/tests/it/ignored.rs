//! Every test that `cargo test --workspace` leaves out is listed by cargo with the things that it needs and the script that runs
//! it.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The two places that run an ignored test: the script, or the test that starts it.
const PLACES: [&str; 2] = [
    ": tests/foreign runs it\"]",
    "\"a process of the other tests\"]",
];

#[test]
fn each_ignored_test_names_the_script_that_runs_it() {
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

/// The sources of the workspace, without build folders.
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

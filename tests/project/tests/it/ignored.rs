//! Every test that `cargo test --workspace` leaves out is listed by cargo with the things that it needs and the script that runs
//! it.

use std::fs;

use project::{files, workspace_root};

/// The two places that run an ignored test: the script, or the test that starts it.
const PLACES: [&str; 2] = [
    ": tests/foreign runs it\"]",
    "\"a process of the other tests\"]",
];

#[test]
fn each_ignored_test_names_the_script_that_runs_it() {
    let (mut ignored, mut wrong) = (0, Vec::new());
    for path in files(&workspace_root(), "rs") {
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

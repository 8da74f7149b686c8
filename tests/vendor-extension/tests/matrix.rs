//! What is linked decides: one line of a program adds the row, and nothing else does.

use std::path::PathBuf;
use std::process::Command;

const LINE: &str = "use acme_checksum as _;\n";

fn output(example: &str) -> String {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(|deps| deps.parent()).unwrap();
    let output = Command::new(built.join("examples").join(example)).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{example} found a mismatch");
    String::from_utf8(output.stdout).unwrap()
}

fn source(example: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let text = std::fs::read_to_string(folder.join(format!("{example}.rs"))).unwrap();
    // What the first line says of the program differs.
    text.lines()
        .skip(1)
        .map(|line| format!("{line}\n"))
        .collect()
}

// covers 1.17
#[test]
fn one_line_adds_the_row_and_removing_it_removes_the_row() {
    let (with, without) = (source("acme-matrix"), source("acme-matrix-without"));
    assert_eq!(with.replacen(LINE, "", 1), without);
    assert_ne!(with, without);
    let row = |text: &str| {
        let mut rows = text
            .lines()
            .filter(|line| line.contains("acme-checksum::RANGE"));
        rows.next().map(str::to_owned)
    };
    let shown = row(&output("acme-matrix")).expect("a row of the extension");
    let verified = shown.matches("7/7").count();
    assert_eq!(verified, 2, "both devices: {shown}");
    assert_eq!(row(&output("acme-matrix-without")), None);
}

#[test]
fn nothing_of_the_project_knows_of_it() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders: Vec<_> = ["verbs-api", "providers", "extensions", "polyverbs"]
        .into_iter()
        .chain(["capability-matrix", "cli", "tests/conformance"])
        .map(|folder| root.join(folder))
        .collect();
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|is| is == "rs" || is == "toml")
            {
                let text = std::fs::read_to_string(&path).unwrap().to_lowercase();
                assert!(!text.contains("acme-checksum"), "{}", path.display());
                assert!(!text.contains("acme_checksum"), "{}", path.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 100, "{seen} files were looked at");
}

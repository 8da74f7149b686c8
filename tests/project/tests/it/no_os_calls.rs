//! The engine, the agents of nodes and the wire formats make no OS calls: no clock, no socket, no file, no thread.

use std::{fs, path::Path};

use project::source::sources;
use project::workspace_root;

/// The sources that are checked.
const SOURCES: &[&str] = &[
    "providers/engine/src",
    "providers/management/src",
    "providers/wire/src",
];

/// The paths that they must not name outside of tests, nor as a part of a longer path.
const FORBIDDEN: &[&str] = &[
    "std::env",
    "std::fs",
    "std::net",
    "std::process",
    "Instant::now",
    "SystemTime",
    "thread::Builder",
    "thread::sleep",
    "thread::spawn",
    "libc",
    "rustix",
];

#[test]
fn core_makes_no_os_calls() {
    let root = workspace_root();
    for folder in SOURCES {
        let wrong = forbidden_in(&root.join(folder));
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

#[test]
fn forbidden_paths_would_be_found() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lib.rs");
    let text = "use std::{fmt, net::UdpSocket};\nfn f(glibc: u8) { std::thread::spawn(g); my_std::fs(); }\n
        #[cfg(test)] fn h() { std::env::args(); }";
    fs::write(&file, text).unwrap();
    let found = forbidden_in(folder.path());
    let expected = ["std::net", "thread::spawn"];
    assert_eq!(
        found,
        expected.map(|path| format!("{}: {path}", file.display()))
    );
}

/// The forbidden paths in a folder of sources, each after its file.
fn forbidden_in(folder: &Path) -> Vec<String> {
    let mut sources = sources(folder);
    sources.retain(|source| !source.is_test);
    assert!(!sources.is_empty(), "{}", folder.display());
    let mut found = Vec::new();
    for source in &sources {
        let names = |forbidden: &&&str| {
            let forbidden: Vec<_> = forbidden.split("::").collect();
            let mut paths = source.paths.iter();
            paths.any(|path| path.windows(forbidden.len()).any(|part| part == forbidden))
        };
        let names = FORBIDDEN.iter().filter(names);
        found.extend(names.map(|path| format!("{}: {path}", source.path.display())));
    }
    found
}

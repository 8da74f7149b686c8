//! The engine and the wire formats make no OS calls: no clock, no socket, no file, no thread.

use std::path::Path;

use project::source::{
    has_token, shipped_code, with_groups_spelled_out, without_comments_and_literals,
};

/// The sources that are checked; a folder that does not exist is skipped.
const SOURCES: &[&str] = &["providers/engine/src", "providers/wire/src"];

/// The paths that they must not name outside of tests.
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
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut wrong = Vec::new();
    let mut files = 0;
    for folder in SOURCES
        .iter()
        .map(|folder| root.join(folder))
        .filter(|folder| folder.is_dir())
    {
        for (path, code) in shipped_code(&folder) {
            files += 1;
            let code = with_groups_spelled_out(&code, "std");
            let found = FORBIDDEN.iter().filter(|token| has_token(&code, token));
            wrong.extend(found.map(|token| format!("{}: {token}", path.display())));
        }
    }
    assert!(files > 0, "no source was found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn forbidden_tokens_would_be_found() {
    let text = "use std::{fmt, net::UdpSocket};\nfn f() { std::thread::spawn(g); }\n";
    let code = with_groups_spelled_out(&without_comments_and_literals(text), "std");
    let found: Vec<_> = FORBIDDEN
        .iter()
        .filter(|token| has_token(&code, token))
        .collect();
    assert_eq!(found, [&"std::net", &"thread::spawn"]);
}

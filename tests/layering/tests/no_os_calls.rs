//! The engine and the wire formats make no OS calls: no clock, no socket, no file, no thread.

use std::{
    fs,
    path::{Path, PathBuf},
};

use layering::source::{
    has_token, with_groups_spelled_out, without_comments_and_literals, without_test_items,
};

/// The sources that are looked at; a folder that does not exist yet is passed over.
const SOURCES: &[&str] = &["providers/engine/src", "providers/wire/src"];

/// What must not stand in them outside of tests.
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

/// Every file of the folder that is not built for tests only, reduced to its code.
fn shipped_code(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    collect(folder, &mut paths);
    let mut code = Vec::new();
    let mut test_only = Vec::new();
    for path in paths {
        let text = without_comments_and_literals(&fs::read_to_string(&path).unwrap());
        let (kept, modules) = without_test_items(&text);
        let home = folder_of_children(&path);
        test_only.extend(modules.iter().map(|name| home.join(name)));
        code.push((path, with_groups_spelled_out(&kept, "std")));
    }
    let is_test = |path: &Path| {
        test_only
            .iter()
            .any(|module| path.with_extension("") == *module || path.starts_with(module))
    };
    code.retain(|(path, _)| !is_test(path));
    code
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

/// Where the modules that a file declares lie.
fn folder_of_children(path: &Path) -> PathBuf {
    let is_root = path
        .file_stem()
        .is_some_and(|stem| stem == "lib" || stem == "mod");
    if is_root {
        path.with_file_name("")
    } else {
        path.with_extension("")
    }
}

//! The symbols of the library, each with its version, are those of Debian's two libraries, and what libraries of providers
//! that perftest of Debian 13 is linked with ask for beside them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

// A test cannot link a library for C, so cargo does not build it for the test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/debug/deps/symbols-…
    let target = test.ancestors().nth(3).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.arg("build");
    // With the features that everything else has been built with, where that is so.
    match std::env::var_os("POLYVERBS_WHOLE_WORKSPACE") {
        Some(_) => cargo.args(["--workspace", "--lib"]),
        None => cargo.args(["--package", env!("CARGO_PKG_NAME")]),
    };
    cargo.arg("--target-dir");
    let built = cargo.arg(target).output().unwrap();
    assert!(built.status.success(), "cargo build: {built:?}");
    target.join("debug/libpolyverbs_compat.so")
}

#[test]
fn every_symbol_has_the_version_that_programs_ask_for() {
    let library = library();
    let nm = Command::new("nm")
        .args(["-D", "--with-symbol-versions", "--defined-only"])
        .arg(&library)
        .output()
        .unwrap();
    assert!(nm.status.success(), "nm {}: {nm:?}", library.display());
    let listed = String::from_utf8(nm.stdout).unwrap();
    // The nodes themselves are listed as absolute.
    let exported: BTreeSet<&str> = listed
        .lines()
        .filter_map(|line| {
            let (kind, symbol) = line.split_once(' ')?.1.split_once(' ')?;
            (kind != "A").then_some(symbol)
        })
        .collect();
    let mut wanted: BTreeSet<&str> = [
        include_str!("../symbols/libibverbs.txt"),
        include_str!("../symbols/librdmacm.txt"),
    ]
    .iter()
    .flat_map(|list| list.lines())
    .collect();
    assert_eq!(wanted.len(), 248);
    wanted.extend(include_str!("../symbols/later.txt").lines());
    assert_eq!(exported, wanted);
}

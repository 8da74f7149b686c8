//! The library itself: a test cannot link one for C, so cargo does not build it for the test.

use std::path::PathBuf;
use std::process::Command;

/// The library, built.
pub(crate) fn library() -> PathBuf {
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

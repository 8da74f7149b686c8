//! The C library of this workspace, and its devices.

use std::path::PathBuf;
use std::process::Command;

use libibverbs_provider::LibIbverbs;
use verbs_api::{Context, Registry, Requirements};

/// The file. A test cannot depend on a library of C, so cargo does not build it for the test.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/debug/deps/exchange-…
    let target = test.ancestors().nth(3).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.arg("build");
    // With the features that everything else has been built with, where that is so.
    match std::env::var_os("POLYVERBS_WHOLE_WORKSPACE") {
        Some(_) => cargo.args(["--workspace", "--lib", "--bins"]),
        None => cargo.arg("-ppolyverbs-compat"),
    };
    let built = cargo.arg("--target-dir").arg(target).output().unwrap();
    assert!(built.status.success(), "cargo build: {built:?}");
    target.join("debug/libpolyverbs_compat.so")
}

/// A registry of its devices.
pub(crate) fn registry() -> Registry {
    let mut registry = Registry::new();
    let provider = LibIbverbs::in_file(library());
    registry.add_provider(provider).unwrap();
    registry
}

/// One of them, opened for everything that it has.
#[allow(dead_code, reason = "not every test opens a device itself")]
pub(crate) fn open(name: &str) -> Context {
    let registry = registry();
    let device = registry.device(name).unwrap();
    device
        .open(&Requirements::everything_of(&device.attributes()))
        .unwrap()
}

//! The C library of this workspace, for tests that load it: a test cannot depend on a library of C, so cargo does not build it for
//! the test.
#![deny(unsafe_code)]

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Once;

/// Builds `libibverbs.so.1` and `librdmacm.so.1`, which are one file, beside the program that runs, and what `polyverbs run` puts
/// beside them; answers where.
///
/// # Panics
/// It cannot be built, or the program lies in no target folder.
pub fn built() -> PathBuf {
    let test = env::current_exe().expect("a program");
    // target/debug/deps/exchange-…
    let profile = test.ancestors().nth(2).expect("a target folder");
    let target = profile.parent().expect("a target folder");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["build", "--target-dir"]).arg(target);
    // With the features that everything else has been built with, where that is so.
    match env::var_os("POLYVERBS_WHOLE_WORKSPACE") {
        Some(_) => cargo.args(["--workspace", "--lib", "--bins"]),
        None => cargo.args([
            "-ppolyverbs-compat",
            "-ppolyverbs-redirect",
            "-ppolyverbs-rds-sockets",
        ]),
    };
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let built = cargo.output().expect("cargo");
    assert!(built.status.success(), "cargo build: {built:?}");
    profile.join("libpolyverbs_compat.so")
}

/// One device of each kind, each at an address that leads to no other: librdmacm finds devices by addresses.
const APART: &str = r#"
[[device]]
name = "ib0"
transport = "roce"
address = "127.0.0.2"
[[device]]
name = "iw0"
transport = "iwarp"
address = "127.0.0.1"
"#;

/// The same, with `ib0` at 127.0.0.2 and `iw0` at 127.0.0.1 for whoever loads it in this process. Called before anything else.
///
/// # Panics
/// As [`built`].
#[allow(unsafe_code)]
pub fn built_apart() -> PathBuf {
    static ONCE: Once = Once::new();
    // SAFETY: every test begins with it, before anything looks at the environment.
    ONCE.call_once(|| unsafe { env::set_var("POLYVERBS_CONFIG", APART) });
    built()
}

/// The same, as the library of real devices for whoever asks for linked devices in this process. Called before anything else.
///
/// # Panics
/// As [`built`].
#[allow(unsafe_code)]
pub fn named_apart() {
    static ONCE: Once = Once::new();
    let file = built_apart();
    // SAFETY: every test begins with it, before anything looks at the environment.
    ONCE.call_once(|| unsafe { env::set_var("POLYVERBS_RDMA_CORE", file) });
}

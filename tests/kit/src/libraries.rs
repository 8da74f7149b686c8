//! The C libraries of this workspace as files, for tests that load them.
//!
//! Cargo builds these files because this package depends on their packages, which are Rust libraries too.

use std::env;
use std::path::PathBuf;
use std::sync::Once;

/// The path of the file that is both `libibverbs.so.1` and `librdmacm.so.1`. Its directory also has the other libraries of
/// `polyverbs run`.
///
/// # Panics
/// The running program is not a test that cargo has built.
pub fn built() -> PathBuf {
    let test = env::current_exe().expect("a program");
    // The test is target/debug/deps/exchange-… or the like.
    let file = test.with_file_name("libpolyverbs_c_libraries.so");
    assert!(file.exists(), "there is no {}", file.display());
    file
}

/// A RoCE and an iWARP device, at different addresses, because librdmacm finds devices by their addresses.
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

/// The path that [`built`] returns. Also configures the devices that this library has when it is loaded in this process:
/// `ib0` at 127.0.0.2 and `iw0` at 127.0.0.1. A test calls this before anything else.
///
/// # Panics
/// As [`built`].
pub fn built_apart() -> PathBuf {
    crate::configure(APART);
    built()
}

/// Makes the provider of rdma-core devices load the library of [`built_apart`] in this process, so that the devices of this
/// library take the place of real ones. A test calls this before anything else.
///
/// # Panics
/// As [`built`].
#[allow(unsafe_code)]
pub fn named_apart() {
    static ONCE: Once = Once::new();
    let file = built_apart();
    // SAFETY: every test begins with it, before anything reads the environment.
    ONCE.call_once(|| unsafe { env::set_var("POLYVERBS_RDMA_CORE", file) });
}

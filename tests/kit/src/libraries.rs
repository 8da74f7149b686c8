//! The libraries for C of this workspace as files, for tests that load them.
//!
//! Cargo builds them because this package depends on their packages, which are Rust libraries too.

use std::env;
use std::path::PathBuf;
use std::sync::Once;

/// The file that is both `libibverbs.so.1` and `librdmacm.so.1`. The libraries that `polyverbs run` needs besides are in the
/// same folder.
///
/// # Panics
/// The program that runs is no test that cargo has built.
pub fn built() -> PathBuf {
    let test = env::current_exe().expect("a program");
    // target/debug/deps/exchange-…
    let file = test.with_file_name("libpolyverbs_c_libraries.so");
    assert!(file.exists(), "there is no {}", file.display());
    file
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

/// Returns the file that [`built`] returns; `ib0` is at 127.0.0.2 and `iw0` at 127.0.0.1 where it is loaded in this process. A test calls this
/// before anything else.
///
/// # Panics
/// As [`built`].
pub fn built_apart() -> PathBuf {
    crate::configure(APART);
    built()
}

/// Makes the file of [`built`] the library of real devices for all linked devices of this process. A test calls this before anything else.
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

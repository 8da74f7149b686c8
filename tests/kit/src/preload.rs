//! A library that processes of a test load before the C library, and that makes functions of the C library fail.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the library to this file and returns the path of the file. Its source, `c/fails.c`, says which functions fail.
///
/// # Panics
/// The library cannot be compiled.
#[must_use]
pub fn failing(library: &Path) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/c/fails.c");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
    let built = cc.arg(library).arg(source).output().unwrap();
    assert!(built.status.success(), "{built:?}");
    library.to_owned()
}

//! Helpers by which the layering tests read the workspace: its packages, and Rust sources by [`source`].

#![forbid(unsafe_code)]

pub mod source;

use std::{env, process::Command};

use serde_json::Value;

/// The packages of the workspace, as `cargo metadata` reports them.
///
/// # Panics
/// Cargo fails.
pub fn packages() -> Vec<Value> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

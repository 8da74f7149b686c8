//! What the checks of the project itself read: its packages, its sources, its list of features.
//!
//! | module | holds |
//! | --- | --- |
//! | [`packages()`] | the packages of the workspace, with their dependencies |
//! | [`source`] | Rust source reduced to the code that ships |
//! | [`rows`], [`scan`], [`index`] | the features, the tests that say which they cover, and the page of both |

#![forbid(unsafe_code)]

pub mod index;
pub mod rows;
pub mod scan;
pub mod source;

use std::path::{Path, PathBuf};
use std::{env, process::Command};

use serde_json::Value;

pub use index::Index;

/// The root folder of the workspace that this crate was built in.
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// The place of the page that is generated from the index of features.
pub fn page_path() -> PathBuf {
    workspace_root().join("docs/features.md")
}

/// The packages of the workspace, as `cargo metadata` reports them.
///
/// # Panics
/// Cargo fails.
pub fn packages() -> Vec<Value> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(workspace_root())
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

//! What the checks of the project itself read: its packages, its sources, its list of features.
//!
//! | module | holds |
//! | --- | --- |
//! | [`packages()`], [`builds()`], [`files()`] | the packages of a workspace with their dependencies, those of a build, the files of a folder |
//! | [`source`] | the paths, the public names, the tests and the documentation of Rust source |
//! | [`circles`] | modules of a library that depend on each other |
//! | [`order`] | the order of the folders, and the dependencies that go against it |
//! | [`size`] | the figures that the program `size` prints |
//! | [`rows`], [`scan`], [`index`] | the features, the tests that say which they cover, and the pages of both |

#![forbid(unsafe_code)]

pub mod circles;
pub mod index;
pub mod order;
pub mod rows;
pub mod scan;
pub mod size;
pub mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, process::Command};

use serde_json::Value;
use walkdir::{DirEntry, WalkDir};

pub use index::Index;
pub use order::Order;
pub use size::Size;

/// The root folder of the workspace that this crate was built in.
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// The packages of the workspace in a folder, as `cargo metadata` reports them.
///
/// # Panics
/// Cargo fails.
pub fn packages(root: &Path) -> Vec<Value> {
    let metadata = cargo(root, &["metadata", "--format-version", "1", "--no-deps"]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// The packages that cargo builds for a program which depends on `package` with these features and without the default ones,
/// each with the features that cargo turns on.
///
/// # Panics
/// Cargo fails.
pub fn built_with(root: &Path, package: &str, features: &str) -> Built {
    let of_program = ["--no-default-features", "--features", features];
    let mut built = Built::new();
    for (package, features) in builds(root, package, &["normal"], &of_program) {
        let name = package.split(' ').next().unwrap();
        let own = built.entry(name.to_owned()).or_default();
        own.extend(features.split(',').map(str::to_owned));
    }
    built
}

/// What cargo builds for a package along dependencies of these kinds: packages with their versions, each with a set of features,
/// which commas separate. Cargo resolves them as for a build, and builds nothing.
///
/// # Panics
/// Cargo fails.
pub fn builds(
    root: &Path,
    package: &str,
    kinds: &[&str],
    options: &[&str],
) -> BTreeSet<(String, String)> {
    let kinds = kinds.join(",");
    let mut arguments = vec!["tree", "--package", package, "--edges", &kinds];
    arguments.extend(["--prefix", "none", "--no-dedupe", "--format", "{p};{f}"]);
    arguments.extend(options);
    let told = cargo(root, &arguments);
    let builds = told.lines().map(|line| line.rsplit_once(';').unwrap());
    builds
        .map(|(package, features)| (package.to_owned(), features.to_owned()))
        .collect()
}

/// The packages of a build by their names, each with its features.
pub type Built = BTreeMap<String, BTreeSet<String>>;

// What cargo says about the workspace in a folder.
fn cargo(root: &Path, arguments: &[&str]) -> String {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).arg("--offline").current_dir(root);
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The folder of a package.
pub fn folder_of(package: &Value) -> PathBuf {
    Path::new(text(package, "manifest_path")).with_file_name("")
}

/// A field of a package that holds text.
pub fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap()
}

/// The dependencies that are built into a package, which those for its tests are not.
pub fn shipped_dependencies(package: &Value) -> impl Iterator<Item = &Value> {
    let all = package["dependencies"].as_array().unwrap().iter();
    all.filter(|dependency| dependency["kind"] != "dev")
}

/// The files below a folder with this extension, in the order of their names; build folders and hidden ones are left out.
///
/// # Panics
/// A folder cannot be read.
pub fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let is_ours = |entry: &DirEntry| {
        let name = entry.file_name().to_string_lossy();
        let is_folder = entry.file_type().is_dir() && entry.depth() > 0;
        !is_folder || !(name.starts_with('.') || name.starts_with("target"))
    };
    let entries = WalkDir::new(folder).sort_by_file_name().into_iter();
    let entries = entries.filter_entry(is_ours).map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().is_file());
    files
        .map(DirEntry::into_path)
        .filter(|path| path.extension().is_some_and(|is| is == extension))
        .collect()
}

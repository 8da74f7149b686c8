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

use std::collections::BTreeSet;
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

/// One build of a package by cargo. A package may be built several times: in two versions, or with other features for the programs that
/// run while cargo builds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Build {
    /// The name of the package.
    pub name: String,
    /// The version of the package, as cargo prints it: `v1.0.0`.
    pub version: String,
    /// The features that cargo turns on.
    pub features: BTreeSet<String>,
}

impl Build {
    // Parses a line of `cargo tree` in the format `{p};{f}`.
    fn parse(line: &str) -> Self {
        let (package, features) = line.rsplit_once(';').unwrap();
        let mut words = package.split(' ').map(str::to_owned);
        let features = features.split(',').filter(|feature| !feature.is_empty());
        Self {
            name: words.next().unwrap(),
            version: words.next().unwrap(),
            features: features.map(str::to_owned).collect(),
        }
    }
}

/// What cargo builds for a package along dependencies of these kinds. Cargo resolves them as for a build, and builds nothing.
///
/// # Panics
/// Cargo fails.
pub fn builds(root: &Path, package: &str, kinds: &[&str], options: &[&str]) -> BTreeSet<Build> {
    let kinds = kinds.join(",");
    let mut arguments = vec!["tree", "--package", package, "--edges", &kinds];
    arguments.extend(["--prefix", "none", "--no-dedupe", "--format", "{p};{f}"]);
    arguments.extend(options);
    let told = cargo(root, &arguments);
    told.lines().map(Build::parse).collect()
}

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

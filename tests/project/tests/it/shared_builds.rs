//! Cargo builds a dependency once for all shipped packages: each package asks for the same features of it.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::process::Command;

use project::workspace_root;

/// The shipped packages that contain the devices. `.ci/dist` builds each by itself.
const SHIPPED: [&str; 3] = [
    "polyverbs-cli",
    "polyverbs-c-libraries",
    "polyverbs-rds-sockets",
];

/// The dependencies of a package, each with all sets of features with which it is built.
///
/// # Panics
/// Cargo fails.
fn features(package: &str) -> BTreeMap<String, BTreeSet<String>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--offline", "--package", package])
        .args(["--edges", "normal,build", "--prefix", "none"])
        .args(["--no-dedupe", "--format", "{p}|{f}"])
        .current_dir(workspace_root())
        .output()
        .unwrap();
    let reason = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{reason}");
    let mut features: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let (dependency, of) = line.split_once('|').unwrap();
        let known = features.entry(dependency.to_owned()).or_default();
        known.insert(of.to_owned());
    }
    features
}

#[test]
fn shipped_packages_ask_for_the_same_features() {
    let [command, libraries @ ..] = SHIPPED.map(features);
    for (library, name) in libraries.iter().zip(&SHIPPED[1..]) {
        let differing: Vec<_> = library
            .iter()
            .filter_map(|(dependency, of)| {
                let built = command.get(dependency)?;
                (!of.is_subset(built)).then(|| format!("{dependency}: {of:?}, not {built:?}"))
            })
            .collect();
        assert!(library.len() > 50, "{name}: {library:?}");
        assert!(
            differing.is_empty(),
            "{name} asks for other features than {}, so cargo builds these and what depends on them twice: {differing:#?}",
            SHIPPED[0]
        );
    }
}

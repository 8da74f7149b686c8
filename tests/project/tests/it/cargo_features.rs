//! What a program builds, by the Cargo features of the facade that it chooses. These tests run cargo, because only cargo resolves
//! features as a build does.

use std::collections::BTreeSet;
use std::fs;

use project::{Build, builds, packages, text, workspace_root};

/// The features of packages that bring sockets of the network, of which a program with `emulated` alone has none.
const SOCKETS: &[(&str, &str)] = &[
    ("polyverbs-emulated-ib", "sockets"),
    ("polyverbs-emulated-iwarp", "sockets"),
    ("nix", "net"),
    ("nix", "socket"),
    ("polyverbs-io", "sockets"),
    ("rustix", "net"),
];

/// Packages that such a program does not build either: those that open sockets or load libraries at run time.
const FOREIGN: &[&str] = &[
    "async-io",
    "libloading",
    "mio",
    "polyverbs-rdma-core",
    "socket2",
    "tokio",
];

const DEFAULT: &str = "default";

/// What cargo builds for a program that depends on the facade with these features and without the default ones.
fn built(features: &str) -> BTreeSet<Build> {
    let options = ["--no-default-features", "--features", features];
    builds(&workspace_root(), "polyverbs", &["normal"], &options)
}

fn contains(built: &BTreeSet<Build>, package: &str) -> bool {
    built.iter().any(|build| build.name == package)
}

/// The features of [`SOCKETS`] that a build has.
fn sockets_of(built: &BTreeSet<Build>) -> Vec<(&'static str, &'static str)> {
    let mut sockets = SOCKETS.to_vec();
    sockets.retain(|(package, feature)| {
        let mut builds = built.iter().filter(|build| build.name == *package);
        builds.any(|build| build.features.contains(*feature))
    });
    sockets
}

/// The packages on which the facade depends only with some of its features.
fn optional_packages() -> Vec<String> {
    let facade = facade();
    let dependencies = facade["dependencies"].as_array().unwrap().iter();
    let optional = dependencies.filter(|it| it["optional"] == true);
    let of_workspace = optional.filter(|it| it["path"].is_string());
    of_workspace.map(|it| text(it, "name").to_owned()).collect()
}

fn facade() -> serde_json::Value {
    let packages = packages(&workspace_root()).into_iter();
    let mut facades = packages.filter(|it| text(it, "name") == "polyverbs");
    facades.next().unwrap()
}

#[test]
fn devices_in_one_process_bring_no_sockets_and_no_loader() {
    let built = built("emulated");
    assert!(
        contains(&built, "polyverbs-emulated-ib") && contains(&built, "polyverbs-emulated-iwarp")
    );
    let sockets = sockets_of(&built);
    assert!(sockets.is_empty(), "{sockets:?}");
    for package in FOREIGN {
        assert!(!contains(&built, package), "{package} is built");
    }
}

#[test]
fn extensions_bring_no_loader_of_real_devices() {
    let built = built("emulated,extensions");
    assert!(contains(&built, "polyverbs-xrc") && !contains(&built, "polyverbs-rdma-core"));
}

#[test]
fn without_features_the_facade_names_no_device_and_no_extension() {
    let built = built("");
    for package in optional_packages() {
        assert!(!contains(&built, &package), "{package} is built");
    }
}

// This shows that the other tests would find what they look for.
#[test]
fn by_default_the_facade_has_all_devices_and_extensions() {
    let built = built(DEFAULT);
    assert_eq!(sockets_of(&built), SOCKETS);
    let optional = optional_packages();
    assert!(optional.iter().any(|it| it == "polyverbs-rdma-core"));
    for package in optional {
        assert!(contains(&built, &package), "{package} is not built");
    }
}

#[test]
fn the_documentation_of_the_facade_lists_each_feature() {
    let source = fs::read_to_string(workspace_root().join("polyverbs/src/lib.rs")).unwrap();
    let facade = facade();
    let mut features = facade["features"].as_object().unwrap().keys();
    let missing =
        features.find(|name| *name != DEFAULT && !source.contains(&format!("//! | `{name}` |")));
    assert_eq!(missing, None);
}

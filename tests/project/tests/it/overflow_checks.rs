//! A release build checks the arithmetic that peers can influence.

use std::fs;

use project::workspace_root;
use toml::Table;

/// The crates that parse the input of peers.
const PARSERS: [&str; 4] = [
    "polyverbs-wire",
    "polyverbs-management",
    "polyverbs-connection",
    "polyverbs-librdmacm",
];

#[test]
fn parsers_are_released_with_overflow_checks() {
    let manifest = workspace_root().join("Cargo.toml");
    let manifest: Table = fs::read_to_string(manifest).unwrap().parse().unwrap();
    let packages = &manifest["profile"]["release"]["package"];
    for package in PARSERS {
        let checked = packages
            .get(package)
            .and_then(|own| own.get("overflow-checks"));
        assert_eq!(checked, Some(&true.into()), "{package}");
    }
}

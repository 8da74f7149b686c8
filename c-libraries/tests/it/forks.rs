//! Programs that fork while their other threads use the library.

use std::path::PathBuf;
use std::sync::OnceLock;

use test_kit::waiting::PATIENCE;

use crate::program::{compile, must_print};

/// No other test uses this address.
const DEVICES: &str = r#"
[[device]]
name = "ib0"
transport = "roce"
address = "127.0.58.1"
"#;

#[track_caller]
fn all_children_end(part: &str) {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile("forks"));
    let patience = PATIENCE.as_secs().to_string();
    must_print(program, &[part, "300", &patience], DEVICES, "all ended\n");
}

#[test]
fn a_child_destroys_inherited_verbs_objects_and_makes_its_own() {
    all_children_end("verbs");
}

#[test]
fn a_child_destroys_inherited_identifiers_and_makes_its_own() {
    all_children_end("identifiers");
}

#[test]
fn a_child_closes_inherited_rsockets_and_makes_its_own() {
    all_children_end("sockets");
}

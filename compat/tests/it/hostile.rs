//! Programs that call the libraries with hostile arguments.

use crate::program::{compile, must_print};

/// At an address that no other test has.
const DEVICES: &str = r#"
[[device]]
name = "ib0"
wire = false
address = "127.0.60.1"
"#;

#[test]
fn no_hostile_argument_ends_the_process() {
    let program = compile("hostile");
    for seed in ["1", "2", "3"] {
        must_print(&program, &[seed, "10000"], DEVICES, "all refused or done\n");
    }
}

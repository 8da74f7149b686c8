//! Programs that call the libraries with hostile arguments.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use test_kit::waiting::PATIENCE;

use crate::program::{compile, must_print};
use crate::symbols::every_symbol;

/// Calls in each round, of which the program makes several. `POLYVERBS_HOSTILE_CALLS` replaces the number.
const CALLS: &str = "1500";
const ROUNDS: &str = "4";

/// Runs the program, which reads the exported symbols from a file and calls each, on a device at an address of its own.
#[track_caller]
fn no_call_ends_the_process(seed: &str, device: &str) {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let program = compile("hostile");
        fs::write(program.with_file_name("symbols"), every_symbol()).unwrap();
        program
    });
    let calls = std::env::var("POLYVERBS_HOSTILE_CALLS");
    let calls = calls.as_deref().unwrap_or(CALLS);
    let devices = format!("[[device]]\nname = \"ib0\"\naddress = \"127.0.60.1\"\n{device}");
    let symbols = program.with_file_name("symbols");
    let patience = PATIENCE.as_secs().to_string();
    let symbols = symbols.to_str().unwrap();
    let arguments = [seed, ROUNDS, calls, &patience, symbols];
    must_print(program, &arguments, &devices, "all refused or done\n");
}

#[test]
fn no_hostile_argument_ends_the_process_or_leaves_anything() {
    no_call_ends_the_process("1", "wire = false\n");
}

#[test]
fn no_hostile_argument_ends_a_process_with_a_device_of_iwarp() {
    no_call_ends_the_process("2", "wire = false\ntransport = \"iwarp\"\n");
}

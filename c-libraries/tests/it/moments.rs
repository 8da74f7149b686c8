//! Programs that call the libraries at unusual moments of their life.

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::program::{compile, must_print, must_print_with_preload};

/// No other test uses this address.
const DEVICES: &str = r#"
[[device]]
name = "ib0"
transport = "roce"
address = "127.0.59.1"
"#;

#[track_caller]
fn all_is_well(part: &str) {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile("moments"));
    // One part tests the trace, and the others work with it too.
    let trace = program.with_file_name(format!("{part}.trace"));
    let devices = format!("trace = {trace:?}\n{DEVICES}");
    let arguments = [part, trace.to_str().unwrap()];
    must_print(program, &arguments, &devices, "all well\n");
    must_print_with_preload(program, &arguments, &devices, "all well\n");
}

#[test]
fn a_program_uses_the_libraries_before_main() {
    all_is_well("before");
}

#[test]
fn a_program_uses_the_libraries_after_main() {
    all_is_well("after");
}

#[test]
fn a_thread_that_is_ending_uses_the_libraries() {
    all_is_well("thread");
}

#[test]
fn a_process_ends_when_the_program_has_no_thread_left() {
    all_is_well("first");
}

#[test]
fn no_descriptor_of_a_call_or_of_the_trace_outlives_the_call() {
    all_is_well("descriptors");
}

#[test]
fn no_descriptor_outlives_the_objects_of_a_program() {
    all_is_well("nothing");
}

#[test]
fn a_thread_is_cancelled_while_it_sleeps_in_a_call() {
    all_is_well("cancelled");
}

#[test]
fn a_signal_ends_each_call_that_sleeps() {
    all_is_well("interrupted");
}

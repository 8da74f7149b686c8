//! Memory that a C program frees or unmaps while it is registered stays until it is deregistered.

use crate::program::{compile, must_print};

#[test]
fn registered_memory_stays_after_a_program_frees_it() {
    // No other test uses this address.
    let devices = "[[device]]\nname = \"ib0\"\nwire = false\naddress = \"127.0.64.1\"\n";
    must_print(&compile("kept"), &[], devices, "all kept\n");
}

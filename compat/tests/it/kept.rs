//! What a C program gives up while it is registered stays until it is deregistered.

use crate::program::{compile, must_print};

#[test]
fn memory_that_a_program_gives_up_stays_until_it_is_deregistered() {
    let devices = "[[device]]\nname = \"ib0\"\nwire = false\n";
    must_print(&compile("kept"), &[], devices, "all kept\n");
}

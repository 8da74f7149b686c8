//! What a C program gives up while it is registered stays until it is deregistered.

use crate::program::{compile, must_print};

#[test]
fn memory_that_a_program_gives_up_stays_until_it_is_deregistered() {
    // At an address that no other test has.
    let devices = "[[device]]\nname = \"ib0\"\nwire = false\naddress = \"127.0.64.1\"\n";
    must_print(&compile("kept"), &[], devices, "all kept\n");
}

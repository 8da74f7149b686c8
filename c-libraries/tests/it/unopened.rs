//! Devices that cannot be opened.

use crate::program::{compile, must_print};

// No machine has this address.
#[test]
fn a_device_that_cannot_be_opened_is_reported_once() {
    let devices = "[[device]]\nname = \"ib0\"\naddress = \"192.0.2.1\"\n";
    let reported = must_print(&compile("unopened"), &[], devices, "not opened\n");
    assert_eq!(reported.matches("ib0").count(), 1, "{reported}");
}

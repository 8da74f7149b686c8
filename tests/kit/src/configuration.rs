//! The configuration of this workspace's C libraries in the process of a test.
// The environment may be changed while no other thread reads it.
#![allow(unsafe_code)]

use std::env;
use std::sync::Once;

/// Sets the devices that the C libraries provide in this process: `devices` is the TOML text of `POLYVERBS_CONFIG`. A test
/// calls this before anything else. Only the first call has an effect, so all tests of a program have to pass the same
/// devices.
pub fn configure(devices: &str) {
    static ONCE: Once = Once::new();
    // SAFETY: every test begins with it, before anything reads the environment.
    ONCE.call_once(|| unsafe { env::set_var("POLYVERBS_CONFIG", devices) });
}

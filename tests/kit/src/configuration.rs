//! The configuration of our libraries for C in the process of a test.
// The environment may be changed while no other thread reads it.
#![allow(unsafe_code)]

use std::env;
use std::sync::Once;

/// Gives this process the devices of a configuration: the text of `POLYVERBS_CONFIG`. A test calls this before anything else; only the
/// first call has an effect, so all tests of a program name the same devices.
pub fn configure(devices: &str) {
    static ONCE: Once = Once::new();
    // SAFETY: every test begins with it, before anything reads the environment.
    ONCE.call_once(|| unsafe { env::set_var("POLYVERBS_CONFIG", devices) });
}

//! Random numbers that peers cannot guess.

use std::fs::File;
use std::io::Read as _;

/// Returns a number of the operating system's random generator. Peers cannot guess it, and every process gets others,
/// forked ones too.
///
/// # Panics
/// The operating system has no random generator.
pub fn random() -> u64 {
    let called = getrandom::u64();
    called.unwrap_or_else(|error| {
        // A sandbox refuses the call: the same generator has a file.
        let mut bytes = [0; 8];
        let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
        read.unwrap_or_else(|_| panic!("the system gives no random numbers: {error}"));
        u64::from_ne_bytes(bytes)
    })
}

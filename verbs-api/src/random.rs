//! Random numbers that peers cannot guess.

use std::fs::File;
use std::io::Read as _;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns a number of the operating system's random generator. Peers cannot guess it, and every process gets others,
/// forked ones too.
///
/// # Panics
/// The operating system has no random generator.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    loop {
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(8) => return u64::from_ne_bytes(bytes),
            Ok(_) | Err(Errno::INTR) => {}
            // A sandbox refuses the call: the same generator has a file.
            Err(error) => {
                let read =
                    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
                read.unwrap_or_else(|_| panic!("the system gives no random numbers: {error}"));
                return u64::from_ne_bytes(bytes);
            }
        }
    }
}

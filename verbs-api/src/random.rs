//! Numbers that nobody can guess.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// A number of the operating system's generator: peers cannot guess it, and other processes get others, forked ones too.
///
/// # Panics
/// The system has no such generator.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    loop {
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(8) => return u64::from_ne_bytes(bytes),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("the system gives no random numbers: {error}"),
        }
    }
}

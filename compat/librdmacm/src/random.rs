//! Numbers that nobody guesses.

/// A number that is not to be guessed by peers.
pub(crate) fn random() -> u32 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish() as u32
}

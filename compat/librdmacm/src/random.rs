//! Unpredictable numbers.

/// A number that peers cannot guess.
pub(crate) fn random() -> u32 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish() as u32
}

//! Unpredictable numbers.

/// A number that peers cannot guess.
pub(crate) fn random() -> u32 {
    verbs_api::provider::random() as u32
}

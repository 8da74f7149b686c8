//! Random numbers that peers cannot guess.

/// Returns a number of the operating system's random generator. Peers cannot guess it, and every process gets others,
/// forked ones too.
///
/// # Panics
/// The operating system has no random generator.
pub fn random() -> u64 {
    getrandom::u64().unwrap_or_else(|error| panic!("the system gives no random numbers: {error}"))
}

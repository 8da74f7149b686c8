//! The version of the contract with providers and extensions.

/// The version of the contract between this crate and providers and extensions. Each of those states the version that it
/// was built for.
pub const CONTRACT_VERSION: u32 = 2;

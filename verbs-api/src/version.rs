//! The version of the contract with providers and extensions.

/// Version of the contract. A provider or an extension states the one it was built for.
pub const CONTRACT_VERSION: u32 = 2;

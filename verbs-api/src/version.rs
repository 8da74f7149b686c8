//! The version of what this crate and providers or extensions agree on.

/// Version of this contract. A provider or an extension states the one it was built for.
pub const CONTRACT_VERSION: u32 = 2;

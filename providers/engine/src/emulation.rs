//! What an extension plugs into a software device: the hooks that its requests pass through.
//!
//! The engine carries out fast-register, local invalidate and remote invalidate only through the emulation that is
//! linked; without one a device does not claim the features and refuses the requests.

use verbs_api::provider::CONTRACT_VERSION;
use verbs_api::{Access, Features, PageList, Transport};

use crate::fault::Fault;
use crate::key_table::KeyTable;

/// Base memory management on a software device.
pub trait MemoryManagement: Send + Sync {
    /// Unique name.
    fn name(&self) -> &'static str;

    /// The version of the contract that it was built for.
    fn contract_version(&self) -> u32 {
        CONTRACT_VERSION
    }

    /// The features that a device of this transport gains.
    fn features(&self, transport: Transport) -> Features;

    /// Registers the memory of `pages` under a free key.
    ///
    /// # Errors
    /// The key cannot be registered so.
    #[expect(
        clippy::too_many_arguments,
        reason = "the fields of the request, checked by nobody yet"
    )]
    fn fast_register(
        &self,
        keys: &KeyTable,
        key: u32,
        pd: u32,
        pages: &PageList,
        access: Access,
        iova: u64,
        length: u64,
    ) -> Result<(), Fault>;

    /// Invalidates a key for the program.
    ///
    /// # Errors
    /// The key cannot be invalidated.
    fn invalidate_local(&self, keys: &KeyTable, key: u32, pd: u32, qpn: u32) -> Result<(), Fault>;

    /// Invalidates a key for a peer.
    ///
    /// # Errors
    /// The key cannot be invalidated.
    fn invalidate_remote(&self, keys: &KeyTable, key: u32, pd: u32, qpn: u32) -> Result<(), Fault>;
}

/// An emulation that registers itself when its crate is linked.
pub struct LinkedEmulation(pub &'static dyn MemoryManagement);

inventory::collect!(LinkedEmulation);

/// The emulation that is linked, if any.
///
/// # Errors
/// Two are linked: both names.
pub fn linked() -> Result<Option<&'static dyn MemoryManagement>, (&'static str, &'static str)> {
    let mut all = inventory::iter::<LinkedEmulation>.into_iter();
    let first = all.next();
    match (first, all.next()) {
        (Some(one), Some(two)) => Err((one.0.name(), two.0.name())),
        (first, _) => Ok(first.map(|linked| linked.0)),
    }
}

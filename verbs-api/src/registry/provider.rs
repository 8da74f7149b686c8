//! Providers: what a crate registers to offer devices.

use std::sync::Arc;

use crate::contract::DeviceOps;
use crate::error::VerbError;
use crate::extension::Extensions;
use crate::version::CONTRACT_VERSION;

/// A provider: what is registered with a [`Registry`](crate::Registry).
pub trait Provider: Sync {
    /// Unique name.
    fn name(&self) -> &'static str;

    /// The version of the contract that it was built for.
    fn contract_version(&self) -> u32 {
        CONTRACT_VERSION
    }

    /// Its devices, made with these extensions: a device claims those that it has all parts for.
    ///
    /// # Errors
    /// Why there are none: which mandatory part is missing.
    fn devices(&self, extensions: &Extensions) -> Result<DeviceList, VerbError>;

    /// Whether its devices are for programs that have no other: [`Registry::open`](crate::Registry::open) takes one where
    /// no other provider's meets the requirements.
    fn is_fallback(&self) -> bool {
        false
    }

    /// Its devices now, asked by a registry that has the devices `known` from it. A device that is still there is
    /// returned as the same object; a new one is made with these extensions. By default devices neither come nor go.
    ///
    /// # Errors
    /// Why it cannot tell: what is known stays.
    fn refresh(
        &self,
        known: DeviceList,
        _extensions: &Extensions,
    ) -> Result<DeviceList, VerbError> {
        Ok(known)
    }
}

/// What a provider answers to one registry: its devices, and what it cannot offer.
#[derive(Default)]
pub struct DeviceList {
    /// The devices.
    pub devices: Vec<Arc<dyn DeviceOps>>,
    /// A device that does not open, or a missing library.
    pub absent: Vec<Absent>,
}

impl FromIterator<Arc<dyn DeviceOps>> for DeviceList {
    fn from_iter<I: IntoIterator<Item = Arc<dyn DeviceOps>>>(devices: I) -> Self {
        Self {
            devices: devices.into_iter().collect(),
            absent: Vec::new(),
        }
    }
}

/// What a provider cannot offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// A device by its name, or what the provider needs for any.
    pub what: String,
    /// Why.
    pub why: VerbError,
}

/// A provider that registers itself where its crate is linked and named: see [`link_provider`](crate::provider::link_provider).
pub struct LinkedProvider(pub &'static dyn Provider);

inventory::collect!(LinkedProvider);

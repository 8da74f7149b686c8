//! The trait of providers, by which a crate offers devices.

use std::sync::Arc;

use crate::contract::DeviceOps;
use crate::error::VerbError;
use crate::extension::Extensions;
use crate::version::CONTRACT_VERSION;

/// A provider of devices, which is registered with a [`Registry`](crate::Registry).
pub trait Provider: Sync {
    /// Returns the provider's unique name.
    fn name(&self) -> &'static str;

    /// Returns the contract version that the provider was built for.
    fn contract_version(&self) -> u32 {
        CONTRACT_VERSION
    }

    /// Returns the provider's devices, made with these extensions: a device claims the features of an extension if the
    /// extension has all parts that the device needs.
    ///
    /// # Errors
    /// Why it has no devices: the mandatory part that is missing.
    fn devices(&self, extensions: &Extensions) -> Result<DeviceList, VerbError>;

    /// Whether the provider's devices are for programs that have no other: [`Registry::open`](crate::Registry::open)
    /// chooses one only if no device of another provider meets the requirements.
    fn is_fallback(&self) -> bool {
        false
    }

    /// Returns the provider's present devices; the registry has the devices `known` from an earlier call. A device that
    /// still exists is returned as the same object; a new one is made with these extensions. By default the devices never
    /// change.
    ///
    /// # Errors
    /// Why it cannot list its devices; the registry keeps those that it knows.
    fn refresh(
        &self,
        known: DeviceList,
        _extensions: &Extensions,
    ) -> Result<DeviceList, VerbError> {
        Ok(known)
    }
}

/// The devices that a provider reports to a registry, and those that it cannot offer.
#[derive(Default)]
pub struct DeviceList {
    /// The devices that can be opened.
    pub devices: Vec<Arc<dyn DeviceOps>>,
    /// Devices that cannot be opened, and missing libraries.
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

/// A device, or all devices, that a provider cannot offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The name of the device, or what the provider needs for any device, such as a library.
    pub what: String,
    /// Why the device, or all devices, cannot be offered.
    pub why: VerbError,
}

/// A provider that registers itself where its crate is linked and named: see [`link_provider`](crate::provider::link_provider).
pub struct LinkedProvider(pub &'static dyn Provider);

inventory::collect!(LinkedProvider);

//! Why a provider or an extension is not registered.

use thiserror::Error;

use super::VerbError;
use crate::version::CONTRACT_VERSION;

/// Why something was not registered. Nothing of it is visible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Built for another version of the contract.
    #[error(
        "{name} was built for contract version {built_for}, this registry has version {CONTRACT_VERSION}: build both from one release"
    )]
    ContractVersion {
        /// The provider or extension.
        name: &'static str,
        /// Its version.
        built_for: u32,
    },
    /// Two devices of one name.
    #[error("device {device} of provider {second} has the name of a device of provider {first}")]
    DuplicateDevice {
        /// The name.
        device: String,
        /// The one that has it.
        first: &'static str,
        /// The one that claimed it too.
        second: &'static str,
    },
    /// Two extensions that claim the same.
    #[error("extensions {first} and {second} both claim {what}")]
    DuplicateExtension {
        /// Name, feature set or opcode.
        what: String,
        /// The one that has it.
        first: &'static str,
        /// The one that claimed it too.
        second: &'static str,
    },
    /// Two providers of one name.
    #[error(
        "two providers are named {name}: {first_devices:?} and {second_devices:?} are their devices"
    )]
    DuplicateProvider {
        /// The name.
        name: &'static str,
        /// Devices of the one that has it.
        first_devices: Vec<String>,
        /// Devices of the one that wanted it.
        second_devices: Vec<String>,
    },
    /// An extension without a part that is mandatory.
    #[error("extension {extension} lacks {missing}")]
    Incomplete {
        /// The extension.
        extension: &'static str,
        /// What is missing.
        missing: String,
    },
    /// A provider whose devices do not keep what their transport promises.
    #[error("provider {provider}, device {device}: {reason}")]
    Inconsistent {
        /// The provider.
        provider: &'static str,
        /// The device.
        device: String,
        /// What does not fit.
        reason: String,
    },
    /// A provider that could not tell its devices.
    #[error("provider {provider} could not tell its devices: {error}")]
    Provider {
        /// The provider.
        provider: &'static str,
        /// Why.
        error: VerbError,
    },
    /// An extension that comes after providers, which have made their devices without it.
    #[error(
        "extension {extension} comes too late: the devices of {} are made; add extensions first, then providers \
         (`Registry::add_linked` adds those that are linked)",
        providers.join(", ")
    )]
    TooLate {
        /// The extension.
        extension: &'static str,
        /// The providers that have made devices.
        providers: Vec<&'static str>,
    },
}

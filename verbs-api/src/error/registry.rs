//! Why a provider or an extension is not registered.

use thiserror::Error;

use super::VerbError;
use crate::version::CONTRACT_VERSION;

/// Why a provider or an extension was not registered. After the error, no part of the provider or extension is
/// registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A provider or extension was built for another version of the contract between providers and this library.
    #[error(
        "{name} was built for contract version {built_for}, this registry has version {CONTRACT_VERSION}: build both from one release"
    )]
    ContractVersion {
        /// Name of the provider or extension.
        name: &'static str,
        /// The contract version that the provider or extension was built for.
        built_for: u32,
    },
    /// Two providers have a device of the same name.
    #[error("device {device} of provider {second} has the name of a device of provider {first}")]
    DuplicateDevice {
        /// The name that both devices have.
        device: String,
        /// The registered provider whose device has the name.
        first: &'static str,
        /// The provider that was refused, because it has a device of this name too.
        second: &'static str,
    },
    /// Two extensions claim the same name, feature set or opcode.
    #[error("extensions {first} and {second} both claim {what}")]
    DuplicateExtension {
        /// The name, feature set or opcode that both claim.
        what: String,
        /// The registered extension that has the name, feature set or opcode.
        first: &'static str,
        /// The extension that was refused, because it claims the same name, feature set or opcode.
        second: &'static str,
    },
    /// Two providers have the same name.
    #[error(
        "two providers are named {name}: {first_devices:?} and {second_devices:?} are their devices"
    )]
    DuplicateProvider {
        /// The name that both providers have.
        name: &'static str,
        /// Devices of the provider that is registered.
        first_devices: Vec<String>,
        /// Devices of the provider that was refused.
        second_devices: Vec<String>,
    },
    /// An extension lacks a mandatory part.
    #[error("extension {extension} lacks {missing}")]
    Incomplete {
        /// Name of the extension that was refused.
        extension: &'static str,
        /// The mandatory part that is missing.
        missing: String,
    },
    /// A device of a provider has attributes that contradict each other or its transport.
    #[error("provider {provider}, device {device}: {reason}")]
    Inconsistent {
        /// Name of the provider.
        provider: &'static str,
        /// Name of the device.
        device: String,
        /// Description of the contradiction.
        reason: String,
    },
    /// A provider failed to list its devices.
    #[error("provider {provider} could not tell its devices: {error}")]
    Provider {
        /// Name of the provider.
        provider: &'static str,
        /// Why the provider could not list its devices.
        error: VerbError,
    },
    /// An extension was added after providers, which have made their devices without it.
    #[error(
        "extension {extension} comes too late: the devices of {} are made; add extensions first, then providers \
         (`Registry::add_linked` adds those that are linked)",
        providers.join(", ")
    )]
    TooLate {
        /// Name of the extension.
        extension: &'static str,
        /// The providers that have made devices.
        providers: Vec<&'static str>,
    },
}

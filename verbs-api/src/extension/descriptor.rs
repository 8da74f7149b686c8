//! The description of an extension.

use std::any::Any;
use std::fmt;

use crate::capability::{ExtensionFeatures, ExtensionLimit, FeatureInfo, Features};
use crate::error::ArgumentReason;
use crate::operation::{ExtensionOperation, extension_id};
use crate::probe::Probe;
use crate::transport::Transport;
use crate::version::CONTRACT_VERSION;

/// A range of opcodes in a transport's wire format that a standard assigns to an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireOpcodes {
    /// The transport whose opcodes these are.
    pub transport: Transport,
    /// The first opcode of the range.
    pub first: u8,
    /// The last opcode of the range.
    pub last: u8,
}

impl WireOpcodes {
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.transport == other.transport && self.first <= other.last && other.first <= self.last
    }
}

/// A part of an extension that one family of providers understands, such as its emulation on software devices.
///
/// A provider finds the parts of its family by [`family`](Self::family) and their type by downcasting.
pub trait Part: Any + Send + Sync {
    /// Returns the family of providers, by convention the name of the crate that defines this kind of part.
    fn family(&self) -> &'static str;

    /// Checks that the part provides everything that its family demands of `extension`.
    ///
    /// # Errors
    /// The part that is missing.
    fn check(&self, extension: &ExtensionDescriptor) -> Result<(), String>;
}

/// The description of an extension: a public `static` of the extension's crate.
///
/// ```
/// use verbs_api::{capability::FeatureSet, extension::{ExtensionDescriptor, feature}};
///
/// bitflags::bitflags! {
///     #[derive(Clone, Copy, Debug)]
///     pub struct Checksums: u64 {
///         const REMOTE = 1;
///     }
/// }
///
/// impl FeatureSet for Checksums {
///     const SET: &'static str = "checksum";
/// }
///
/// pub static EXTENSION: ExtensionDescriptor = ExtensionDescriptor::new("checksum", "checksums of remote memory")
///     .features(&[feature!(Checksums::REMOTE, "the checksum of a remote range, in one request")]);
/// ```
pub struct ExtensionDescriptor {
    name: &'static str,
    about: &'static str,
    contract_version: u32,
    features: &'static [FeatureInfo],
    limits: &'static [ExtensionLimit],
    operations: &'static [&'static ExtensionOperation],
    wire_opcodes: &'static [WireOpcodes],
    probes: &'static [Probe],
    parts: &'static [&'static dyn Part],
}

macro_rules! lists {
    ($($(#[$doc:meta])* $field:ident, $reader:ident: $ty:ty;)*) => {
        $(
            $(#[$doc])*
            #[must_use]
            pub const fn $field(mut self, $field: &'static [$ty]) -> Self {
                self.$field = $field;
                self
            }

            $(#[$doc])*
            pub const fn $reader(&self) -> &'static [$ty] {
                self.$field
            }
        )*
    };
}

impl ExtensionDescriptor {
    /// Describes an extension with this name, built for the contract version of the `verbs-api` that it is compiled with.
    ///
    /// `name` is unique and by convention the crate's; `about` says in one line what it is.
    pub const fn new(name: &'static str, about: &'static str) -> Self {
        Self {
            name,
            about,
            contract_version: CONTRACT_VERSION,
            features: &[],
            limits: &[],
            operations: &[],
            wire_opcodes: &[],
            probes: &[],
            parts: &[],
        }
    }

    /// Sets another contract version, for descriptors that are generated or loaded.
    #[must_use]
    pub const fn built_for(mut self, contract_version: u32) -> Self {
        self.contract_version = contract_version;
        self
    }

    lists! {
        /// Sets the extension's feature bits, at least one. All bits that are not the core's must be of one set.
        features, all_features: FeatureInfo;
        /// Sets the extension's limits.
        limits, all_limits: ExtensionLimit;
        /// Sets the extension's operations.
        operations, all_operations: &'static ExtensionOperation;
        /// Sets the opcodes of transports that a standard assigns to the extension.
        wire_opcodes, all_wire_opcodes: WireOpcodes;
        /// Sets the probes that prove the extension's features: at least one for each feature.
        probes, all_probes: Probe;
        /// Sets the parts that providers need, such as an emulation.
        parts, all_parts: &'static dyn Part;
    }

    /// Returns the extension's unique name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns one line that describes the extension.
    pub const fn about(&self) -> &'static str {
        self.about
    }

    /// Returns the contract version that the extension was built for.
    pub const fn contract_version(&self) -> u32 {
        self.contract_version
    }

    /// Returns the number that identifies the extension on the wire: see [`extension_id`].
    pub const fn id(&self) -> u32 {
        extension_id(self.name)
    }

    /// Returns the name of the extension's own feature set; `None` if all its features are bits of the core.
    pub fn feature_set(&self) -> Option<&'static str> {
        let own = self.features.iter().find(|feature| feature.set != CORE)?;
        Some(own.set)
    }
}

impl ExtensionDescriptor {
    /// Returns what a device with these bits of the core and of the extension's own set claims, with the extension's
    /// limits; `None` if no bit of its own set is given.
    ///
    /// # Errors
    /// Bits that the extension does not describe, so that no probe would prove them.
    pub fn claimed(
        &self,
        core: Features,
        own: u64,
        limits: &[(&'static str, u64)],
    ) -> Result<Option<ExtensionFeatures>, ArgumentReason> {
        let of_core = |feature: &&FeatureInfo| feature.set == CORE;
        let (told_core, told_own): (Vec<_>, Vec<_>) = self.features.iter().partition(of_core);
        let all = |told: &[&FeatureInfo]| told.iter().fold(0, |bits, feature| bits | feature.bits);
        let bits = (core.bits() & !all(&told_core)) | (own & !all(&told_own));
        if bits != 0 {
            let extension = self.name;
            return Err(ArgumentReason::Undescribed { extension, bits });
        }
        let Some(set) = self.feature_set().filter(|_| own != 0) else {
            return Ok(None);
        };
        let has = |feature: &&FeatureInfo| own & feature.bits != 0;
        let names = told_own.into_iter().filter(has).map(|feature| feature.name);
        Ok(Some(ExtensionFeatures {
            set,
            bits: own,
            names: names.collect(),
            limits: limits.to_vec(),
        }))
    }
}

impl fmt::Debug for ExtensionDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension({})", self.name)
    }
}

/// The name of the core's feature set.
pub(super) const CORE: &str = <crate::Features as crate::capability::FeatureSet>::SET;

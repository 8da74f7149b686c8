//! What an extension tells about itself.

use std::any::Any;
use std::fmt;

use crate::capability::{ExtensionFeatures, ExtensionLimit, FeatureInfo, Features};
use crate::error::ArgumentReason;
use crate::operation::{ExtensionOperation, extension_id};
use crate::probe::Probe;
use crate::transport::Transport;
use crate::version::CONTRACT_VERSION;

/// Opcodes of a transport's own encoding that an extension uses, because a standard gives them to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireOpcodes {
    /// The transport.
    pub transport: Transport,
    /// The first.
    pub first: u8,
    /// The last.
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
    /// The family, by convention the name of the crate that defines this kind of part.
    fn family(&self) -> &'static str;

    /// Whether the part has all that its family demands of `extension`.
    ///
    /// # Errors
    /// What is missing.
    fn check(&self, extension: &ExtensionDescriptor) -> Result<(), String>;
}

/// What an extension tells about itself: a public `static` of its crate.
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
    /// An extension of this name, built for the contract of the `verbs-api` that it is compiled with.
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

    /// States another version of the contract, for what is generated or loaded.
    #[must_use]
    pub const fn built_for(mut self, contract_version: u32) -> Self {
        self.contract_version = contract_version;
        self
    }

    lists! {
        /// Its feature bits. At least one; what lies in a set of its own is in one set.
        features, all_features: FeatureInfo;
        /// Its numbers.
        limits, all_limits: ExtensionLimit;
        /// Its operations.
        operations, all_operations: &'static ExtensionOperation;
        /// Opcodes on the wire that a standard gives it.
        wire_opcodes, all_wire_opcodes: WireOpcodes;
        /// What proves each of its features: at least one probe for each.
        probes, all_probes: Probe;
        /// What providers need of it.
        parts, all_parts: &'static dyn Part;
    }

    /// Unique name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What it is, in one line.
    pub const fn about(&self) -> &'static str {
        self.about
    }

    /// The version of the contract that it was built for.
    pub const fn contract_version(&self) -> u32 {
        self.contract_version
    }

    /// Its number on the wire: see [`extension_id`].
    pub const fn id(&self) -> u32 {
        extension_id(self.name)
    }

    /// Name of its own set of feature bits, if it has one.
    pub fn feature_set(&self) -> Option<&'static str> {
        let own = self.features.iter().find(|feature| feature.set != CORE)?;
        Some(own.set)
    }
}

impl ExtensionDescriptor {
    /// What a device claims by these bits of the core and of its own set, with the numbers of its own; `None` where none is of
    /// its own set.
    ///
    /// # Errors
    /// Bits that it does not tell of: nothing would prove them.
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

/// The set of the core's bits.
pub(super) const CORE: &str = <crate::Features as crate::capability::FeatureSet>::SET;

//! What a program requires of a device, and what a device lacks of that.

use std::fmt;

use thiserror::Error;

use super::{
    DeviceAttributes, FeatureInfo, FeatureSet, Features, Limit, ShortLimit, feature_names,
};
use crate::transport::Transport;

/// The bits of one feature set, with the set's type erased.
#[derive(Clone, Debug)]
pub struct FeatureBits {
    /// Name of the feature set.
    pub set: &'static str,
    /// The feature bits as a mask.
    pub bits: u64,
    names: Names,
}

/// How the names of the bits can be found: of all bits of the set, of the one bit that is set, or not at all.
#[derive(Clone, Copy, Debug)]
enum Names {
    All(fn(u64) -> Vec<&'static str>),
    One(&'static str),
    None,
}

impl PartialEq for FeatureBits {
    fn eq(&self, other: &Self) -> bool {
        (self.set, self.bits) == (other.set, other.bits)
    }
}

impl Eq for FeatureBits {}

impl FeatureBits {
    /// Creates a `FeatureBits` from the typed bits of a feature set; [`names`](Self::names) then returns the names of
    /// the set bits.
    pub fn of<F: FeatureSet>(features: F) -> Self {
        Self {
            set: F::SET,
            bits: features.bits(),
            names: Names::All(|bits| feature_names(F::from_bits_retain(bits))),
        }
    }

    /// Creates a `FeatureBits` with the one bit that `feature` describes; [`names`](Self::names) then returns the name
    /// of that feature.
    pub const fn of_info(feature: &FeatureInfo) -> Self {
        Self {
            set: feature.set,
            bits: feature.bits,
            names: Names::One(feature.name),
        }
    }

    /// Returns the names of the bits; empty where the names are not known.
    pub fn names(&self) -> Vec<&'static str> {
        match self.names {
            Names::All(names) => names(self.bits),
            Names::One(name) => vec![name],
            Names::None => Vec::new(),
        }
    }

    fn with_bits(&self, bits: u64) -> Self {
        Self { bits, ..*self }
    }
}

/// What a program needs of a device; [`open`](crate::open) opens a device that meets this, or says what each device
/// lacks.
///
/// ```
/// use verbs_api::{Features, Limit, Requirements};
/// let wanted = Requirements::new().needs(Features::BMME).at_least(Limit::MaxSendSge, 4);
/// assert_eq!(wanted.features().bits(), Features::BMME.bits());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Requirements {
    pub(crate) name: Option<String>,
    pub(crate) transport: Option<Transport>,
    needed: Vec<FeatureBits>,
    preferred: Vec<FeatureBits>,
    limits: Vec<(Limit, u64)>,
}

impl Requirements {
    /// No requirement: any device will do, and nothing beyond the baseline is granted.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requires nothing, and asks for every feature that the device with these attributes offers. For tools that show a
    /// device.
    pub fn everything_of(attributes: &DeviceAttributes) -> Self {
        let mut all = Self::new()
            .device(&attributes.name)
            .prefers(attributes.features);
        all.preferred
            .extend(attributes.extensions.iter().map(|extension| FeatureBits {
                set: extension.set,
                bits: extension.bits,
                names: Names::None,
            }));
        all
    }

    /// Requires the device with this name.
    #[must_use]
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Requires a device of this transport.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Requires these features, of the core or of an extension: opening fails on a device without them.
    #[must_use]
    pub fn needs<F: FeatureSet>(mut self, features: F) -> Self {
        merge(&mut self.needed, FeatureBits::of(features));
        self
    }

    /// Requires these feature bits; for callers that do not have the set's type.
    #[must_use]
    pub fn needs_bits(mut self, features: FeatureBits) -> Self {
        merge(&mut self.needed, features);
        self
    }

    /// Asks for features that are granted where the device has them; opening does not fail without them.
    #[must_use]
    pub fn prefers<F: FeatureSet>(mut self, features: F) -> Self {
        merge(&mut self.preferred, FeatureBits::of(features));
        self
    }

    /// Requires that the device's `limit` is at least as strong as `wanted`: not smaller, or for some limits not
    /// larger.
    #[must_use]
    pub fn at_least(mut self, limit: impl Into<Limit>, wanted: u64) -> Self {
        self.limits.push((limit.into(), wanted));
        self
    }

    /// Returns the core features that are required; preferred ones are not included.
    pub fn features(&self) -> Features {
        let bits = self
            .needed
            .iter()
            .filter(|set| set.set == Features::SET)
            .fold(0, |all, set| all | set.bits);
        Features::from_bits_retain(bits)
    }

    /// Returns what a device with these attributes grants: the required features, and the preferred ones that it has.
    ///
    /// # Errors
    /// Everything that the device lacks of the requirements.
    pub fn check(&self, device: &DeviceAttributes) -> Result<Grant, Shortfall> {
        let missing: Vec<_> = self
            .needed
            .iter()
            .map(|set| set.with_bits(set.bits & !device.bits_of(set.set)))
            .filter(|set| set.bits != 0)
            .collect();
        let limits: Vec<_> = self
            .limits
            .iter()
            .filter_map(|&(limit, wanted)| limit.compare(device.limit(limit), wanted).err())
            .collect();
        let wrong_transport = self.transport.filter(|&wanted| wanted != device.transport);
        if !missing.is_empty() || !limits.is_empty() || wrong_transport.is_some() {
            return Err(Shortfall {
                device: device.name.clone(),
                missing,
                limits,
                wrong_transport,
            });
        }
        let mut granted = self.needed.clone();
        for set in &self.preferred {
            merge(
                &mut granted,
                set.with_bits(set.bits & device.bits_of(set.set)),
            );
        }
        Ok(Grant { sets: granted })
    }
}

fn merge(sets: &mut Vec<FeatureBits>, more: FeatureBits) {
    match sets.iter_mut().find(|set| set.set == more.set) {
        Some(set) => {
            set.bits |= more.bits;
            if matches!(more.names, Names::All(_)) {
                set.names = more.names;
            }
        }
        None => sets.push(more),
    }
}

/// The features that a program may use on an open device: those that it asked for and the device has, even if the device
/// has more.
#[derive(Clone, Debug, Default)]
pub struct Grant {
    sets: Vec<FeatureBits>,
}

impl Grant {
    /// Returns the granted core features.
    pub fn features(&self) -> Features {
        self.set::<Features>()
    }

    /// Returns the granted bits of the feature set `F`.
    pub fn set<F: FeatureSet>(&self) -> F {
        F::from_bits_retain(
            self.sets
                .iter()
                .find(|set| set.set == F::SET)
                .map_or(0, |set| set.bits),
        )
    }

    /// Returns this grant with these bits added, whether the device has them or not.
    #[must_use]
    pub(crate) fn beyond(mut self, bits: &[FeatureBits]) -> Self {
        for more in bits {
            merge(&mut self.sets, more.clone());
        }
        self
    }

    /// Checks that a feature was granted to the program.
    ///
    /// # Errors
    /// The feature was not granted; the error names `extension`, which needs it.
    pub fn require(
        &self,
        extension: &'static str,
        feature: &FeatureInfo,
    ) -> Result<(), Unsupported> {
        let granted = self.sets.iter().filter(|set| set.set == feature.set);
        let bits = granted.fold(0, |bits, set| bits | set.bits);
        if bits & feature.bits == feature.bits {
            return Ok(());
        }
        Err(Unsupported {
            extension,
            missing: vec![feature.name],
        })
    }

    /// Returns the granted bits of every set.
    pub fn sets(&self) -> &[FeatureBits] {
        &self.sets
    }
}

/// Everything that one device lacks of some [`Requirements`].
#[derive(Clone, Debug)]
pub struct Shortfall {
    /// Name of the device that does not meet the requirements.
    pub device: String,
    /// Required features that the device lacks, per set.
    pub missing: Vec<FeatureBits>,
    /// Limits of the device that are weaker than required.
    pub limits: Vec<ShortLimit>,
    /// The transport that was required, if the device has another one; otherwise `None`.
    pub wrong_transport: Option<Transport>,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(transport) = self.wrong_transport {
            parts.push(format!("is not an {} device", transport.name()));
        }
        for set in &self.missing {
            let prefix = if set.set == Features::SET {
                String::new()
            } else {
                format!("{}::", set.set)
            };
            parts.extend(
                set.names()
                    .iter()
                    .map(|name| format!("lacks {prefix}{name}")),
            );
        }
        parts.extend(self.limits.iter().map(ToString::to_string));
        write!(f, "{}: {}", self.device, parts.join("; "))
    }
}

/// A program loaded an extension whose features were not granted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{extension} needs {}, which the device lacks or the program did not ask for", missing.join(", "))]
pub struct Unsupported {
    /// Name of the extension that the program has loaded.
    pub extension: &'static str,
    /// Names of the features that the extension needs and that were not granted.
    pub missing: Vec<&'static str>,
}

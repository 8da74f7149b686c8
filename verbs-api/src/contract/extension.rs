//! What extensions add to queue pairs when they are created.

use std::fmt;

use crate::capability::FeatureInfo;
use crate::error::VerbError;
use crate::operation::Held;
use crate::qp_attributes::{QpCap, QpVariant};
use crate::service::QpType;

/// A flag or a mode of an extension that a queue pair is created with: see [`QpOptions::with`](crate::QpOptions::with).
///
/// An extension's handle makes it. What the extension's emulation makes of it is between the two: `value` and
/// [`held`](Self::holding) are passed on as they are.
#[derive(Clone)]
pub struct QpExtension {
    extension: &'static str,
    feature: FeatureInfo,
    value: u64,
    held: Option<Held>,
    variant: Option<&'static QpVariant>,
    check: fn(&QpShape) -> Result<(), VerbError>,
}

/// What a queue pair is about to be, as the check of an extension sees it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct QpShape {
    /// Service.
    pub qp_type: QpType,
    /// Whether its receives come from a shared queue.
    pub has_srq: bool,
    /// Sizes.
    pub cap: QpCap,
}

impl QpExtension {
    /// A flag or mode of an extension, which takes `feature`.
    pub fn new(extension: &'static str, feature: &FeatureInfo, value: u64) -> Self {
        Self {
            extension,
            feature: *feature,
            value,
            held: None,
            variant: None,
            check: |_| Ok(()),
        }
    }

    /// Hands these objects over to the emulation; the queue pair keeps them.
    #[must_use]
    pub fn holding(mut self, objects: Held) -> Self {
        self.held = Some(objects);
        self
    }

    /// Makes the queue pair one of this variant.
    #[must_use]
    pub fn variant(mut self, variant: &'static QpVariant) -> Self {
        self.variant = Some(variant);
        self
    }

    /// Refuses queue pairs that it does not go with.
    #[must_use]
    pub fn check(mut self, check: fn(&QpShape) -> Result<(), VerbError>) -> Self {
        self.check = check;
        self
    }

    /// Name of the extension.
    pub fn extension(&self) -> &'static str {
        self.extension
    }

    /// The feature that it takes.
    pub fn feature(&self) -> &FeatureInfo {
        &self.feature
    }

    /// What it says.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// What it hands over.
    pub fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// The variant that it makes of the queue pair.
    pub fn qp_variant(&self) -> Option<&'static QpVariant> {
        self.variant
    }

    pub(crate) fn checked(&self, shape: &QpShape) -> Result<(), VerbError> {
        (self.check)(shape)
    }
}

impl fmt::Debug for QpExtension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}::{}({:#x})",
            self.extension, self.feature.name, self.value
        )
    }
}

/// A mode of an extension that a shared receive queue is created with: see
/// [`Pd::create_srq_of`](crate::Pd::create_srq_of).
///
/// An extension's handle makes it. What is [held](Self::held) is between the extension and its implementation.
#[derive(Clone)]
pub struct SrqExtension {
    extension: &'static str,
    feature: FeatureInfo,
    held: Held,
}

impl SrqExtension {
    /// A mode of an extension, which takes `feature`. The provider is handed `held`.
    pub fn new(extension: &'static str, feature: &FeatureInfo, held: Held) -> Self {
        Self {
            extension,
            feature: *feature,
            held,
        }
    }

    /// Name of the extension.
    pub fn extension(&self) -> &'static str {
        self.extension
    }

    /// The feature that it takes.
    pub fn feature(&self) -> &FeatureInfo {
        &self.feature
    }

    /// What it hands over.
    pub fn held(&self) -> &Held {
        &self.held
    }
}

impl fmt::Debug for SrqExtension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.extension, self.feature.name)
    }
}

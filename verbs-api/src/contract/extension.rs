//! What extensions add to queue pairs when they are created.

use std::fmt;

use crate::capability::FeatureInfo;
use crate::error::VerbError;
use crate::operation::Held;
use crate::qp_attributes::{QpCap, QpVariant};
use crate::service::QpType;

/// A flag or a mode of an extension that a queue pair is created with: see [`QpOptions::with`](crate::QpOptions::with).
///
/// The extension's handle makes it, and `value` and [`held`](Self::holding) reach the extension's emulation unchanged: only
/// those two know their meaning.
#[derive(Clone)]
pub struct QpExtension {
    extension: &'static str,
    feature: FeatureInfo,
    value: u64,
    held: Option<Held>,
    variant: Option<&'static QpVariant>,
    check: fn(&QpShape) -> Result<(), VerbError>,
}

/// The properties of a queue pair that is about to be created, for the check of an extension.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct QpShape {
    /// The service type of the queue pair.
    pub qp_type: QpType,
    /// Whether the queue pair takes its receives from a shared receive queue.
    pub has_srq: bool,
    /// The sizes of the queues that the program asked for.
    pub cap: QpCap,
}

impl QpExtension {
    /// Creates a flag or mode of an extension. The device must have been granted `feature`; only the extension knows what
    /// `value` means.
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

    /// Adds objects that the extension's emulation needs; the queue pair keeps them alive.
    #[must_use]
    pub fn holding(mut self, objects: Held) -> Self {
        self.held = Some(objects);
        self
    }

    /// Makes the queue pair one of this variant of its service.
    #[must_use]
    pub fn variant(mut self, variant: &'static QpVariant) -> Self {
        self.variant = Some(variant);
        self
    }

    /// Adds a check that refuses queue pairs with which the flag or mode cannot be combined.
    #[must_use]
    pub fn check(mut self, check: fn(&QpShape) -> Result<(), VerbError>) -> Self {
        self.check = check;
        self
    }

    /// Name of the extension.
    pub fn extension(&self) -> &'static str {
        self.extension
    }

    /// Returns the feature that must have been granted.
    pub fn feature(&self) -> &FeatureInfo {
        &self.feature
    }

    /// Returns the value that the extension passes to its emulation.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Returns the objects that the extension passes to its emulation.
    pub fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// Returns the variant that the queue pair becomes; `None` for an ordinary one.
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
/// The extension's handle makes it. Only the extension and its implementation know the meaning of the [held](Self::held)
/// objects.
#[derive(Clone)]
pub struct SrqExtension {
    extension: &'static str,
    feature: FeatureInfo,
    held: Held,
}

impl SrqExtension {
    /// Creates a mode of an extension. The device must have been granted `feature`; the provider receives `held`.
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

    /// Returns the feature that must have been granted.
    pub fn feature(&self) -> &FeatureInfo {
        &self.feature
    }

    /// Returns the objects that the extension passes to the provider.
    pub fn held(&self) -> &Held {
        &self.held
    }
}

impl fmt::Debug for SrqExtension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.extension, self.feature.name)
    }
}

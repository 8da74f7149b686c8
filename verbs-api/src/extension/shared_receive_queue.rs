//! What extensions make of shared receive queues when they are created.

use std::fmt;

use crate::capability::FeatureInfo;
use crate::operation::Held;

/// A mode of an extension that a shared receive queue is created with: see
/// [`Pd::create_srq_of`](crate::Pd::create_srq_of).
///
/// An extension's handle makes it. What is [held](Self::held) is between the extension and who carries it out.
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

//! Extensions as a program sees them: a typed handle that proves a feature.

use bitflags::Flags as _;

use crate::capability::{FeatureSet, Unsupported, feature_names};
use crate::context::Context;
use crate::service::Operations;

/// The typed handle of an extension: having one proves that its features were granted.
///
/// Passed to [`QpOptions::operations`](crate::QpOptions::operations), it makes a queue pair that
/// does its operations.
pub trait Extension: Sized {
    /// The set that its feature bits belong to.
    type Features: FeatureSet;

    /// Unique name.
    const NAME: &'static str;

    /// Bits without which there is no handle.
    const NEEDS: Self::Features;

    /// The handle, from a context that was granted [`NEEDS`](Self::NEEDS).
    ///
    /// # Errors
    /// The bits that were not granted.
    fn load(context: &Context) -> Result<Self, Unsupported>;

    /// The core's operations that it adds to a queue pair.
    fn operations(&self) -> Operations {
        Operations::empty()
    }

    /// Whether the context was granted [`NEEDS`](Self::NEEDS): what `load` checks first.
    ///
    /// # Errors
    /// The bits that were not granted.
    fn require(context: &Context) -> Result<(), Unsupported> {
        let granted = context.grant().set::<Self::Features>();
        let missing = Self::NEEDS.difference(granted);
        if missing.is_empty() {
            return Ok(());
        }
        Err(Unsupported {
            extension: Self::NAME,
            missing: feature_names(missing),
        })
    }
}

impl<X: Extension> From<&X> for Operations {
    fn from(extension: &X) -> Self {
        extension.operations()
    }
}

impl Context {
    /// The typed handle of an extension: the proof that its features were granted.
    ///
    /// # Errors
    /// The bits that were not granted, because the device lacks them or the program did not ask for them.
    pub fn extension<X: Extension>(&self) -> Result<X, Unsupported> {
        X::load(self)
    }
}

//! The typed handle of an extension, by which a program uses it.

use bitflags::Flags as _;

use crate::capability::{FeatureSet, Unsupported, feature_names};
use crate::context::Context;
use crate::service::Operations;

/// The typed handle of an extension: having one proves that its features were granted.
///
/// Pass it to [`QpOptions::operations`](crate::QpOptions::operations) to make a queue pair that can do the extension's
/// operations.
pub trait Extension: Sized {
    /// The set that its feature bits belong to.
    type Features: FeatureSet;

    /// The extension's unique name.
    const NAME: &'static str;

    /// The feature bits that must have been granted before the handle can be made.
    const NEEDS: Self::Features;

    /// Makes the handle from a context that was granted [`NEEDS`](Self::NEEDS).
    ///
    /// # Errors
    /// The bits that were not granted.
    fn load(context: &Context) -> Result<Self, Unsupported>;

    /// Returns the operations of the core that the extension adds to a queue pair.
    fn operations(&self) -> Operations {
        Operations::empty()
    }

    /// Checks that the context was granted [`NEEDS`](Self::NEEDS): the first step of `load`.
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
    /// Makes the typed handle of an extension, which proves that the extension's features were granted.
    ///
    /// # Errors
    /// The bits that were not granted, because the device lacks them or the program did not ask for them.
    pub fn extension<X: Extension>(&self) -> Result<X, Unsupported> {
        X::load(self)
    }
}

//! The typed handle.

use verbs_api::{
    Context, Operations,
    extension::{Extension, Unsupported},
};

use crate::{COMPARE_SWAP, FETCH_ADD, MaskedFeatures};

/// The typed handle of masked atomics. Pass it to [`QpOptions::operations`](verbs_api::QpOptions::operations).
#[derive(Clone, Copy, Debug)]
pub struct MaskedAtomics(());

impl Extension for MaskedAtomics {
    type Features = MaskedFeatures;

    const NAME: &'static str = "masked-atomics";
    const NEEDS: MaskedFeatures = MaskedFeatures::MASKED_64;

    fn load(context: &Context) -> Result<Self, Unsupported> {
        Self::require(context)?;
        Ok(Self(()))
    }

    fn operations(&self) -> Operations {
        COMPARE_SWAP.bit() | FETCH_ADD.bit()
    }
}

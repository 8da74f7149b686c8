//! The typed handle.

use verbs_api::{
    Context, Operations, RemoteAddress,
    extension::{Extension, Unsupported},
};

use crate::{CHECKSUM, Checksums, Range};

/// Checksums of remote memory. A program that has this handle was granted them, and creates queue pairs with it.
#[derive(Clone, Copy, Debug)]
pub struct Checksum(());

impl Checksum {
    /// A range of `length` bytes at `remote`. The request needs the right to read there.
    pub fn range(&self, remote: RemoteAddress, length: u32) -> Range {
        Range::new(remote, length)
    }
}

impl Extension for Checksum {
    type Features = Checksums;

    const NAME: &'static str = "acme-checksum";
    const NEEDS: Checksums = Checksums::RANGE;

    fn load(context: &Context) -> Result<Self, Unsupported> {
        Self::require(context)?;
        Ok(Self(()))
    }

    fn operations(&self) -> Operations {
        CHECKSUM.bit()
    }
}

//! Openings of domains on either kind of device.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;

use verbs_api::objects::Holder;
use verbs_api::{extension::Held, ids::Qpn};

/// The identity of a file, whatever its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(crate) fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let metadata = File::from(fd.try_clone_to_owned()?).metadata()?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.device, self.inode)
    }
}

/// An opening of a domain.
pub(crate) trait Opening: Send + Sync {
    /// The argument of a shared receive queue of the domain.
    fn srq(&self) -> Held;

    /// The argument of a target of the domain: a new one, or an existing one with this number.
    fn target(&self, existing: Option<Qpn>) -> Held;

    /// Closes it. The last one is Busy while objects of the domain live, and returns them.
    fn close(&self) -> Result<(), Vec<Holder>>;

    /// Closes it because its handle was dropped. Objects of the domain stay.
    fn forget(&self);
}

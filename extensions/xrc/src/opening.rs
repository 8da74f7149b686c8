//! What openings of domains are on every kind of device.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use verbs_api::objects::Holder;
use verbs_api::{extension::Held, ids::Qpn};

/// A file, whatever path leads to it.
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

/// An opening of a domain, as devices of one kind have it.
pub(crate) trait Opening: Send + Sync {
    /// What a shared receive queue of the domain is made with.
    fn srq(&self) -> Held;

    /// What a target of the domain is made with; or another handle of the one of this number.
    fn target(&self, existing: Option<Qpn>) -> Held;

    /// Gives it back. The last one is Busy while something of the domain lives, and tells what.
    fn close(&self) -> Result<(), Vec<Holder>>;

    /// Gives it back because its handle was dropped. What the domain has goes on.
    fn forget(&self);
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

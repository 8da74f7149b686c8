//! Openings of XRC domains, on emulated and on real devices.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;

use verbs_api::objects::Holder;
use verbs_api::{extension::Held, ids::Qpn};

/// Which XRC domain to open, and whether to create it.
#[derive(Clone, Copy, Debug)]
#[must_use]
#[doc(alias = "ibv_xrcd_init_attr")]
pub struct OpenXrcd<'f> {
    pub(crate) file: Option<BorrowedFd<'f>>,
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
}

impl<'f> OpenXrcd<'f> {
    /// Creates a new domain that cannot be opened again.
    pub const fn anonymous() -> Self {
        Self {
            file: None,
            create: true,
            exclusive: false,
        }
    }

    /// Opens the domain of this file, whatever path the file was opened by. Fails if there is none, unless
    /// [`create`](Self::create) is called.
    pub const fn of(file: BorrowedFd<'f>) -> Self {
        Self {
            file: Some(file),
            create: false,
            exclusive: false,
        }
    }

    /// Creates the domain if it does not exist.
    #[doc(alias = "O_CREAT")]
    pub const fn create(mut self) -> Self {
        self.create = true;
        self
    }

    /// Fails if the domain exists already; only together with [`create`](Self::create).
    #[doc(alias = "O_EXCL")]
    pub const fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }
}

/// Identifies a file, whatever its path, by device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the identity as bytes, the same in every process.
    pub(crate) fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.device.to_be_bytes());
        bytes[8..].copy_from_slice(&self.inode.to_be_bytes());
        bytes
    }

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

/// An opening of an XRC domain, on an emulated or a real device.
pub(crate) trait Opening: Send + Sync {
    /// Returns the argument with which a provider makes a shared receive queue in the domain.
    fn srq(&self) -> Held;

    /// Returns the argument with which a provider makes a target in the domain, or opens the existing one with this number.
    fn target(&self, existing: Option<Qpn>) -> Held;

    /// Closes the opening. If it is the last one and objects of the domain exist, it fails with Busy and returns those.
    fn close(&self) -> Result<(), Vec<Holder>>;

    /// Closes the opening because its handle was dropped. Objects of the domain continue to exist.
    fn forget(&self);
}

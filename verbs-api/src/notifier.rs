//! A descriptor that is readable while notifications or events are pending.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::io::{read, write};

use crate::error::VerbError;

/// A descriptor that is made when a program first asks for it.
#[derive(Default)]
pub(crate) struct Notifier {
    ends: OnceLock<Ends>,
}

/// An event descriptor (eventfd), or a pipe where the operating system has none.
struct Ends {
    readable: OwnedFd,
    writable: Option<OwnedFd>,
}

impl Ends {
    #[cfg(target_os = "linux")]
    fn new() -> Result<Self, VerbError> {
        use rustix::event::{EventfdFlags, eventfd};
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let readable = eventfd(0, flags).map_err(|errno| VerbError::os("eventfd", errno))?;
        Ok(Self {
            readable,
            writable: None,
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn new() -> Result<Self, VerbError> {
        use rustix::io::{Errno, ioctl_fionbio};
        let failed = |errno| VerbError::os("pipe", errno);
        let made = std::io::pipe();
        let (readable, writable) =
            made.map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::MFILE)))?;
        let (readable, writable) = (OwnedFd::from(readable), OwnedFd::from(writable));
        for end in [&readable, &writable] {
            ioctl_fionbio(end, true).map_err(failed)?;
        }
        Ok(Self {
            readable,
            writable: Some(writable),
        })
    }
}

impl Notifier {
    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, VerbError> {
        if let Some(ends) = self.ends.get() {
            return Ok(ends.readable.as_fd());
        }
        let ends = Ends::new()?;
        // If two threads race, both get the descriptor of the first.
        Ok(self.ends.get_or_init(|| ends).readable.as_fd())
    }

    /// Makes the descriptor readable; does nothing if a program never asked for it.
    pub(crate) fn raise(&self) {
        if let Some(ends) = self.ends.get() {
            let writable = ends.writable.as_ref().unwrap_or(&ends.readable);
            // If it is full, it is readable already.
            let _ = write(writable, &1_u64.to_ne_bytes());
        }
    }

    /// Makes the descriptor unreadable; does nothing if a program never asked for it.
    pub(crate) fn clear(&self) {
        if let Some(ends) = self.ends.get() {
            // A pipe has eight bytes of each call of `raise`. If nothing is left, nothing needs to be done.
            while read(&ends.readable, &mut [0_u8; 8]).is_ok() && ends.writable.is_some() {}
        }
    }
}

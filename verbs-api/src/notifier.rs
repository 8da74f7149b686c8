//! An event descriptor that is readable while notifications or events are pending.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

use crate::error::VerbError;

/// An event descriptor (eventfd), which is made when a program first asks for it.
#[derive(Default)]
pub(crate) struct Notifier {
    fd: OnceLock<OwnedFd>,
}

impl Notifier {
    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, VerbError> {
        if let Some(fd) = self.fd.get() {
            return Ok(fd.as_fd());
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = eventfd(0, flags).map_err(|errno| VerbError::os("eventfd", errno))?;
        // If two threads race, both get the descriptor of the first.
        Ok(self.fd.get_or_init(|| fd).as_fd())
    }

    /// Makes the descriptor readable; does nothing if a program never asked for it.
    pub(crate) fn raise(&self) {
        if let Some(fd) = self.fd.get() {
            // If it is full, it is readable already.
            let _ = write(fd, &1_u64.to_ne_bytes());
        }
    }

    /// Makes the descriptor unreadable; does nothing if a program never asked for it.
    pub(crate) fn clear(&self) {
        if let Some(fd) = self.fd.get() {
            // If it is empty, nothing needs to be done.
            let _ = read(fd, &mut [0_u8; 8]);
        }
    }
}

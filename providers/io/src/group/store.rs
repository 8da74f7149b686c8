//! Keeps the sockets of a port open for all processes of its group.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::local::Connection;
use super::{GroupOptions, accept_range};
use crate::fork::Unshared;
use crate::sockets::udp::{UdpSocket, is_passing};

/// The sockets of a port, in the order in which the kernel numbers them. Each socket is attached to a message that stays
/// queued in a pair of unix sockets, and every process of the group has the pair open. So a socket stays open, with its
/// number, until the last process has ended, and needs no descriptor in any process.
///
/// All processes share the position at which the queue is read, so only the process that holds the name `making` reads it.
#[derive(Debug)]
pub(super) struct SocketStore {
    inlet: Connection,
    outlet: Connection,
}

impl SocketStore {
    pub(super) fn new() -> io::Result<Self> {
        Connection::pair().map(Self::of)
    }

    fn of([inlet, outlet]: [Connection; 2]) -> Self {
        Self { inlet, outlet }
    }

    /// Takes the store whose two ends another process passed.
    pub(super) fn passed(inlet: Unshared, outlet: Unshared) -> Self {
        Self::of([inlet, outlet].map(Connection::passed))
    }

    /// Appends a socket, which must be the one that was bound to the port last.
    pub(super) fn add(&self, socket: &UdpSocket) -> io::Result<()> {
        (self.inlet).send(&[io::IoSlice::new(&[0])], &[socket.as_fd()])
    }

    /// Binds sockets to the port and appends them, until there are at least `count`.
    pub(super) fn fill(
        &self,
        count: usize,
        common: &UdpSocket,
        options: &GroupOptions,
    ) -> io::Result<()> {
        for number in 0..count {
            if self.socket(number, options)?.is_none() {
                let socket = common.bind_next(&options.udp)?;
                accept_range(&socket, number as u32);
                self.add(&socket)?;
            }
        }
        Ok(())
    }

    /// Returns the socket with this number; `None` if there are not so many.
    pub(super) fn socket(
        &self,
        number: usize,
        options: &GroupOptions,
    ) -> io::Result<Option<UdpSocket>> {
        let mut attached = match self.outlet.peek_descriptors(number) {
            Err(error) if is_passing(&error) => return Ok(None),
            attached => attached?,
        };
        // The kernel attaches no descriptor if the process is at its limit.
        let attached = attached.pop().ok_or(rustix::io::Errno::MFILE)?;
        UdpSocket::passed(attached, options.address, &options.udp).map(Some)
    }

    /// Returns the two ends of the store, which are to be passed to another process.
    pub(super) fn ends(&self) -> [BorrowedFd<'_>; 2] {
        [self.inlet.as_fd(), self.outlet.as_fd()]
    }
}

//! The rsockets of this process by descriptor. Each has a real descriptor, an eventfd, so that no other file gets its
//! number.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use polyverbs_libibverbs::errno::Errno;
use verbs_api::provider::ForkLock;

use super::datagram::Datagram;
use super::device::User;
use super::options::Options;
use super::stream::{Ready, Stream};
use super::waiting::{Waiting, event_fd};

/// An rsocket, of either kind.
#[derive(Clone)]
pub(crate) enum Socket {
    Stream(Arc<Stream>),
    Datagram(Arc<Datagram>),
}

struct Entry {
    socket: Socket,
    user: User,
    fd: OwnedFd,
}

// A child of a fork keeps the entries of the descriptors that it has inherited, because it may close them.
static SOCKETS: ForkLock<Option<HashMap<c_int, Entry>>> = ForkLock::new(None);

/// Assigns a descriptor to a socket and adds it to the table.
///
/// # Errors
/// The process cannot open further files; the socket is closed.
pub(crate) fn insert(socket: Socket, close_on_exec: bool) -> Result<c_int, Errno> {
    let flags = if close_on_exec { libc::EFD_CLOEXEC } else { 0 };
    let fd = event_fd(flags).inspect_err(|_| socket.close())?;
    let number = fd.as_raw_fd();
    let entry = Entry {
        socket,
        user: User::new(),
        fd,
    };
    let mut all = SOCKETS.lock();
    // If there is an old entry, the program has closed its descriptor by the system's `close`, and can no longer refer to
    // that socket.
    let closed = all.get_or_insert_default().insert(number, entry);
    drop(all);
    if let Some(Entry { socket, user, fd }) = closed {
        // The number belongs to the new descriptor now, so the old one must not be closed.
        std::mem::forget(fd);
        end(socket, user, |_| ());
    }
    Ok(number)
}

/// The socket with this descriptor, even if it was inherited from the parent process; `None` if there is none.
pub(crate) fn find(fd: c_int) -> Option<Socket> {
    let all = SOCKETS.lock();
    all.as_ref()?.get(&fd).map(|entry| entry.socket.clone())
}

/// The socket with this descriptor.
///
/// # Errors
/// `EBADF`: there is none, or it was inherited from the parent process, of which a thread may have held its locks when the
/// process forked.
pub(crate) fn get(fd: c_int) -> Result<Socket, Errno> {
    find(fd)
        .filter(|socket| !socket.waiting().is_parents())
        .ok_or(Errno(libc::EBADF))
}

/// Closes a socket and then its descriptor, so that no other file gets the number before the socket is closed.
///
/// # Errors
/// `EBADF`: there is no socket with this descriptor.
pub(crate) fn close(fd: c_int) -> Result<(), Errno> {
    let mut all = SOCKETS.lock();
    let entry = all.as_mut().and_then(|all| all.remove(&fd));
    drop(all);
    let Entry { socket, user, fd } = entry.ok_or(Errno(libc::EBADF))?;
    end(socket, user, Socket::close);
    drop(fd);
    Ok(())
}

// Ends a socket by `close`. One that was inherited from the parent process is only forgotten.
fn end(socket: Socket, user: User, close: impl FnOnce(&Socket)) {
    if socket.waiting().is_parents() {
        std::mem::forget((socket, user));
        return;
    }
    close(&socket);
    drop(socket);
    drop(user);
}

// Functions that both kinds of sockets have.
macro_rules! either {
    ($self:ident, $socket:ident => $what:expr) => {
        match $self {
            Self::Stream($socket) => $what,
            Self::Datagram($socket) => $what,
        }
    };
}

impl Socket {
    /// The stream socket.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: it is a datagram socket, which does not support the call.
    pub(crate) fn stream(&self) -> Result<&Arc<Stream>, Errno> {
        match self {
            Self::Stream(stream) => Ok(stream),
            Self::Datagram(_) => Err(Errno::OPNOTSUPP),
        }
    }

    pub(crate) fn bind(&self, at: SocketAddr) -> Result<(), Errno> {
        either!(self, socket => socket.bind(at))
    }

    pub(crate) fn connect(&self, to: SocketAddr) -> Result<(), Errno> {
        either!(self, socket => socket.connect(to))
    }

    pub(crate) fn waiting(&self) -> &Waiting {
        either!(self, socket => socket.waiting())
    }

    pub(crate) fn ready(&self, arm: bool) -> Ready {
        either!(self, socket => socket.ready(arm))
    }

    pub(crate) fn local(&self) -> SocketAddr {
        either!(self, socket => socket.local())
    }

    pub(crate) fn peer(&self) -> Result<SocketAddr, Errno> {
        either!(self, socket => socket.peer())
    }

    pub(crate) fn take_error(&self) -> Option<Errno> {
        either!(self, socket => socket.take_error())
    }

    pub(crate) fn with_options<T>(&self, look: impl FnOnce(&mut Options, bool) -> T) -> T {
        either!(self, socket => socket.with_options(look))
    }

    /// A descriptor that a thread waiting for the socket has to poll too, that of a datagram socket's UDP socket; `None` if
    /// there is none.
    pub(crate) fn file(&self) -> Option<c_int> {
        match self {
            Self::Stream(_) => None,
            Self::Datagram(datagram) => datagram.file(),
        }
    }

    /// Sends a keep-alive on a stream socket if there was no traffic for a while.
    pub(crate) fn probe(&self) {
        if let Self::Stream(stream) = self {
            stream.probe();
        }
    }

    fn close(&self) {
        either!(self, socket => socket.close());
    }
}

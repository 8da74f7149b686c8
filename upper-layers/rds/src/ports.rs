//! What processes at one address agree on by names that only one of them can have: who has a port, and who the leader is.

use std::io::{self, Read as _};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram, UnixListener, UnixStream};

use polyverbs::emulated::Unshared;

fn name(rest: &str) -> io::Result<UnixAddress> {
    UnixAddress::from_abstract_name(format!("polyverbs-rds/{rest}"))
}

fn unshared(named: impl Into<OwnedFd>) -> Unshared {
    Unshared::new(named.into())
}

/// A port of an address, among all processes of this machine. Dropped, or with its process, it is free.
pub(crate) struct PortLock {
    _named: Unshared,
}

impl PortLock {
    /// Takes a port, if no process has it.
    pub(crate) fn take(at: SocketAddr) -> io::Result<Self> {
        let named = UnixDatagram::bind_addr(&name(&format!("{}/{}", at.ip(), at.port()))?)?;
        Ok(Self {
            _named: unshared(named),
        })
    }
}

/// By this others see when the leader is gone. It takes no connection, and says nothing.
pub(crate) struct Presence {
    /// Without it the others find out later, by silence.
    _named: Option<Unshared>,
}

impl Presence {
    pub(crate) fn of_leader(at: IpAddr) -> Self {
        let named = name(&format!("{at}/leader")).and_then(|name| UnixListener::bind_addr(&name));
        Self {
            _named: named.ok().map(unshared),
        }
    }
}

/// The leader that there is, as another process sees it.
pub(crate) struct Followed(UnixStream);

impl Followed {
    /// And the same for a thread that waits.
    pub(crate) fn leader(at: IpAddr) -> io::Result<(Self, Self)> {
        let stream = UnixStream::connect_addr(&name(&format!("{at}/leader"))?)?;
        Ok((Self(stream.try_clone()?), Self(stream)))
    }

    /// Returns when the leader is gone, or is followed no longer.
    pub(crate) fn wait_for_end(mut self) {
        // Nothing is ever sent.
        let _ = self.0.read(&mut [0]);
    }
}

impl Drop for Followed {
    /// Ends the wait of the other one.
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

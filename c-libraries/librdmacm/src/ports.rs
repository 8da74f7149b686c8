//! The ports of this process's identifiers. As with the kernel, an identifier keeps its port until it is destroyed.
//! Conflicts with other processes are noticed only when it listens.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use polyverbs_libibverbs::errno::Errno;
use verbs_api::provider::{Mutex, PerProcess, random};

use crate::device::udp_at;

/// Which other identifiers an identifier may share its port with.
#[derive(Clone, Copy, Default)]
pub struct Sharing {
    /// With identifiers that have set the same option, `RDMA_OPTION_ID_REUSEADDR`.
    pub reuses_address: bool,
    /// An IPv6 identifier with IPv4 identifiers, because it does not listen for IPv4 connections (`RDMA_OPTION_ID_AFONLY`).
    pub is_alone_in_family: bool,
}

struct Bound {
    number: u64,
    // A value of `enum rdma_port_space`.
    space: c_int,
    at: SocketAddr,
    sharing: Sharing,
}

impl Bound {
    // Why this port and another identifier's cannot be taken at the same time.
    fn conflict(&self, other: &Self) -> Option<Errno> {
        let is_same = other.space == self.space && other.at.port() == self.at.port();
        let is_shared = other.sharing.reuses_address && self.sharing.reuses_address;
        // One of IPv4 is for IPv4 alone.
        let is_alone = |of: &Self| of.at.is_ipv4() || of.sharing.is_alone_in_family;
        let are_alone = is_alone(other) && is_alone(self);
        let are_apart = are_alone && other.at.is_ipv4() != self.at.is_ipv4();
        if other.number == self.number || !is_same || is_shared || are_apart {
            return None;
        }
        if other.at.ip().is_unspecified() || self.at.ip().is_unspecified() {
            return Some(Errno(libc::EADDRNOTAVAIL));
        }
        (other.at.ip() == self.at.ip()).then_some(Errno(libc::EADDRINUSE))
    }
}

// The range of assigned ports. It is above the range that Linux assigns to connections, because a TCP listener may need the
// port later.
const EPHEMERAL: RangeInclusive<u16> = 61_000..=u16::MAX;

/// A random port of those that may be assigned.
pub(crate) fn some_port() -> u16 {
    let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
    EPHEMERAL.start() + (random() as u32 % count) as u16
}

// All ports that may be assigned, beginning with a random one.
fn some_ports() -> impl Iterator<Item = u16> {
    let first = some_port();
    (first..=*EPHEMERAL.end()).chain(*EPHEMERAL.start()..first)
}

// The ports that identifiers of this process have. A child of a fork begins without any; conflicts with its parent are
// those with another process.
static BOUND: PerProcess<Mutex<Vec<Bound>>> = PerProcess::new(Mutex::default);

// A child goes on from the number of its parent: the numbers of ports that it has inherited are none of its own.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Ports below this one are privileged.
const PRIVILEGED: u16 = 1024;

/// Whether this process may not take a port because it is privileged, which the system decides for its sockets.
pub(crate) fn is_forbidden(at: SocketAddr) -> bool {
    let everywhere = match at {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let bind = || udp_at(SocketAddr::new(everywhere, at.port()), true);
    at.port() < PRIVILEGED && bind().is_err_and(|error| error == rustix::io::Errno::ACCESS)
}

/// A port that an identifier has; it becomes free when this is dropped.
pub(crate) struct Port {
    number: u64,
    at: SocketAddr,
}

impl Port {
    /// Takes the port of `at` for an identifier. Two identifiers may share a port if both allow it.
    ///
    /// # Errors
    /// Another identifier has it: at this address, or one of the two at any address. It is privileged, and the process may not
    /// take it.
    pub(crate) fn take(space: c_int, at: SocketAddr, sharing: Sharing) -> Result<Self, Errno> {
        if is_forbidden(at) {
            return Err(Errno(libc::EACCES));
        }
        let one = Bound {
            number: TAKEN.fetch_add(1, Ordering::Relaxed),
            space,
            at,
            sharing,
        };
        let number = one.number;
        let mut bound = BOUND.lock();
        match bound.iter().find_map(|other| one.conflict(other)) {
            Some(errno) => Err(errno),
            None => {
                bound.push(one);
                Ok(Self { number, at })
            }
        }
    }

    /// The identifier's options have changed. Ports that are shared already stay so.
    pub(crate) fn share(&self, sharing: Sharing) {
        let mut bound = BOUND.lock();
        if let Some(own) = bound.iter_mut().find(|one| one.number == self.number) {
            own.sharing = sharing;
        }
    }

    /// Takes the port for this identifier alone: it is going to listen.
    ///
    /// # Errors
    /// Another identifier shares it.
    pub(crate) fn make_exclusive(&self) -> Result<(), Errno> {
        let mut bound = BOUND.lock();
        let Some(place) = bound.iter().position(|one| one.number == self.number) else {
            return Ok(());
        };
        let before = std::mem::replace(&mut bound[place].sharing.reuses_address, false);
        let conflict = bound.iter().find_map(|other| bound[place].conflict(other));
        conflict.map_or(Ok(()), |errno| {
            bound[place].sharing.reuses_address = before;
            Err(errno)
        })
    }

    /// Takes a free port for an identifier; the port in `at` is ignored.
    ///
    /// # Errors
    /// All ports are taken.
    pub(crate) fn assign(
        space: c_int,
        mut at: SocketAddr,
        sharing: Sharing,
    ) -> Result<Self, Errno> {
        for port in some_ports() {
            at.set_port(port);
            if let Ok(port) = Self::take(space, at, sharing) {
                return Ok(port);
            }
        }
        Err(Errno(libc::EADDRNOTAVAIL))
    }

    /// The address of the identifier, with the port that it has taken.
    pub(crate) const fn at(&self) -> SocketAddr {
        self.at
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        BOUND.lock().retain(|one| one.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::port_space;

    #[test]
    fn ipv4_and_ipv6_alone_share_a_port_in_both_orders() {
        let take = |at: &str, is_alone_in_family| {
            let sharing = Sharing {
                is_alone_in_family,
                ..Sharing::default()
            };
            Port::take(port_space::TCP, at.parse().unwrap(), sharing)
        };
        let (v4, v6) = ("0.0.0.0:60999", "[::]:60999");
        for [first, second] in [[(v4, false), (v6, true)], [(v6, true), (v4, false)]] {
            let _first = take(first.0, first.1).unwrap();
            assert!(take(second.0, second.1).is_ok());
        }
        for [first, second] in [[v4, v6], [v6, v4]] {
            let _first = take(first, false).unwrap();
            assert_eq!(take(second, false).err(), Some(Errno(libc::EADDRNOTAVAIL)));
        }
    }
}

//! The ports of this process's identifiers. As with the kernel, an identifier keeps its port until it is destroyed.
//! Conflicts with other processes are noticed only when it listens.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use polyverbs_libibverbs::errno::Errno;
use verbs_api::provider::{Mutex, PerProcess, random};

use crate::device::Service;

/// Which other identifiers an identifier may share its port with.
#[derive(Clone, Copy, Default)]
pub struct Sharing {
    /// With identifiers that have set the same option, `RDMA_OPTION_ID_REUSEADDR`.
    pub reuses_address: bool,
    /// An IPv6 identifier with IPv4 identifiers, because it does not listen for IPv4 connections (`RDMA_OPTION_ID_AFONLY`).
    pub is_alone_in_family: bool,
}

struct Bound {
    service: Service,
    at: SocketAddr,
    sharing: Sharing,
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

/// A port that an identifier has; it becomes free when this is dropped.
pub(crate) struct Port {
    service: Service,
    at: SocketAddr,
}

impl Port {
    /// Takes the port of `at` for an identifier. Two identifiers may share a port if both allow it.
    ///
    /// # Errors
    /// Another identifier has the port, at this address; or one of the two is bound to a wildcard address.
    pub(crate) fn take(service: Service, at: SocketAddr, sharing: Sharing) -> Result<Self, Errno> {
        let mut bound = BOUND.lock();
        let of_others = bound.iter().filter(|other| {
            let is_same = other.service == service && other.at.port() == at.port();
            let is_shared = other.sharing.reuses_address && sharing.reuses_address;
            // An IPv4 identifier listens only for IPv4 connections.
            let is_alone =
                |at: SocketAddr, sharing: Sharing| at.is_ipv4() || sharing.is_alone_in_family;
            let are_alone = is_alone(other.at, other.sharing) && is_alone(at, sharing);
            is_same && !is_shared && !(are_alone && other.at.is_ipv4() != at.is_ipv4())
        });
        for other in of_others {
            if other.at.ip().is_unspecified() || at.ip().is_unspecified() {
                return Err(Errno(libc::EADDRNOTAVAIL));
            }
            if other.at.ip() == at.ip() {
                return Err(Errno(libc::EADDRINUSE));
            }
        }
        bound.push(Bound {
            service,
            at,
            sharing,
        });
        Ok(Self { service, at })
    }

    /// Takes a free port for an identifier; the port in `at` is ignored.
    ///
    /// # Errors
    /// All ports are taken.
    pub(crate) fn assign(
        service: Service,
        mut at: SocketAddr,
        sharing: Sharing,
    ) -> Result<Self, Errno> {
        for port in some_ports() {
            at.set_port(port);
            if let Ok(port) = Self::take(service, at, sharing) {
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
        let mut bound = BOUND.lock();
        let is_this = |other: &Bound| other.service == self.service && other.at == self.at;
        if let Some(place) = bound.iter().position(is_this) {
            bound.swap_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_and_ipv6_alone_share_a_port_in_both_orders() {
        let take = |at: &str, is_alone_in_family| {
            let sharing = Sharing {
                is_alone_in_family,
                ..Sharing::default()
            };
            Port::take(Service::Connections, at.parse().unwrap(), sharing)
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

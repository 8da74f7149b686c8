//! Ports of this process's identifiers: as with the kernel, an identifier keeps its port until it is destroyed. Conflicts with
//! other processes show when it listens.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use polyverbs_libibverbs::errno::Errno;
use verbs_api::provider::{Mutex, PerProcess, random};

use crate::device::Service;

/// With which other identifiers an identifier shares its port.
#[derive(Clone, Copy, Default)]
pub struct Sharing {
    /// With those that do the same: `RDMA_OPTION_ID_REUSEADDR`.
    pub reuses_address: bool,
    /// One of IPv6 with those of IPv4: `RDMA_OPTION_ID_AFONLY`.
    pub is_alone_in_family: bool,
}

struct Bound {
    service: Service,
    at: SocketAddr,
    sharing: Sharing,
}

// Above the ports that Linux assigns to connections: a TCP listener may need the port later.
const EPHEMERAL: RangeInclusive<u16> = 61_000..=u16::MAX;

/// The next port to assign.
pub(crate) fn some_port() -> u16 {
    let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
    EPHEMERAL.start() + (random() as u32 % count) as u16
}

// All ports that may be assigned, beginning with a different one each time.
fn some_ports() -> impl Iterator<Item = u16> {
    let first = some_port();
    (first..=*EPHEMERAL.end()).chain(*EPHEMERAL.start()..first)
}

// A child of a fork has none of its parent's ports: conflicts with the parent show as those with any other process do.
static BOUND: PerProcess<Mutex<Vec<Bound>>> = PerProcess::new(Mutex::default);

/// A port, taken until this is dropped.
pub(crate) struct Port {
    service: Service,
    at: SocketAddr,
}

impl Port {
    /// Takes the port of an address. Two identifiers may share it if both allow that.
    ///
    /// # Errors
    /// Another identifier has it: at this address, or one of the two at any address.
    pub(crate) fn take(service: Service, at: SocketAddr, sharing: Sharing) -> Result<Self, Errno> {
        let mut bound = BOUND.lock();
        let of_others = bound.iter().filter(|other| {
            let is_same = other.service == service && other.at.port() == at.port();
            let is_shared = other.sharing.reuses_address && sharing.reuses_address;
            // One of IPv4 is for IPv4 alone.
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

    /// Assigns a port, whatever the address says.
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

    /// The address with the port.
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

//! The ports that identifiers of this process are bound to: one of a service has a port, as with the kernel, until it is
//! destroyed. Of other processes a listener is told.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Mutex;

use polyverbs_libibverbs::errno::Errno;
use polyverbs_libibverbs::lock::lock;

use crate::device::Service;
use crate::random::random;

/// With whom an identifier shares its port.
#[derive(Clone, Copy, Default)]
pub struct Sharing {
    /// With others that say so too: `RDMA_OPTION_ID_REUSEADDR`.
    pub reuses_address: bool,
    /// With one of the other family that says so too: `RDMA_OPTION_ID_AFONLY`.
    pub is_alone_in_family: bool,
}

struct Bound {
    service: Service,
    at: SocketAddr,
    sharing: Sharing,
}

// Above those that Linux gives to connections: a listener of TCP may have to have the port later.
const EPHEMERAL: RangeInclusive<u16> = 61_000..=u16::MAX;

/// A port of those that are assigned.
pub(crate) fn some_port() -> u16 {
    let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
    EPHEMERAL.start() + (random() % count) as u16
}

// Each port of those that are assigned, in turn from one of them.
fn some_ports() -> impl Iterator<Item = u16> {
    let first = some_port();
    (first..=*EPHEMERAL.end()).chain(*EPHEMERAL.start()..first)
}

static BOUND: Mutex<Vec<Bound>> = Mutex::new(Vec::new());

/// A port that is taken until this is dropped.
pub(crate) struct Port {
    service: Service,
    at: SocketAddr,
}

impl Port {
    /// Takes the port of an address. Two identifiers may have the same where both share it.
    ///
    /// # Errors
    /// An identifier has it: at this address, or one of the two at every address.
    pub(crate) fn take(service: Service, at: SocketAddr, sharing: Sharing) -> Result<Self, Errno> {
        let mut bound = lock(&BOUND);
        let of_others = bound.iter().filter(|other| {
            let is_same = other.service == service && other.at.port() == at.port();
            let is_shared = other.sharing.reuses_address && sharing.reuses_address;
            let are_alone = other.sharing.is_alone_in_family && sharing.is_alone_in_family;
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

    /// Takes one of the ports that are assigned, whatever that of the address is.
    ///
    /// # Errors
    /// Identifiers have them all.
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
        let mut bound = lock(&BOUND);
        let is_this = |other: &Bound| other.service == self.service && other.at == self.at;
        if let Some(place) = bound.iter().position(is_this) {
            bound.swap_remove(place);
        }
    }
}

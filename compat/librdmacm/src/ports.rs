//! The ports that identifiers of this process are bound to: one of a service has a port, as with the kernel, until it is
//! destroyed. Of other processes a listener is told.

use std::net::SocketAddr;
use std::sync::Mutex;

use polyverbs_libibverbs::context::lock;
use polyverbs_libibverbs::errno::Errno;

use crate::device::Service;

struct Bound {
    service: Service,
    at: SocketAddr,
    // May be shared with others of which this is true.
    is_shared: bool,
}

static BOUND: Mutex<Vec<Bound>> = Mutex::new(Vec::new());

/// A port that is taken until this is dropped.
pub(crate) struct Port {
    service: Service,
    at: SocketAddr,
}

impl Port {
    /// Takes the port of an address; `is_shared` where `RDMA_OPTION_ID_REUSEADDR` is set.
    ///
    /// # Errors
    /// An identifier has it: at this address, or one of the two at every address.
    pub(crate) fn take(service: Service, at: SocketAddr, is_shared: bool) -> Result<Self, Errno> {
        let mut bound = lock(&BOUND);
        let of_others = bound.iter().filter(|other| {
            let is_same = other.service == service && other.at.port() == at.port();
            is_same && !(other.is_shared && is_shared)
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
            is_shared,
        });
        Ok(Self { service, at })
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

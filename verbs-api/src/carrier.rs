//! What carries the messages by which connections are made: between a provider and whoever speaks the protocols.
//!
//! A program does not see this either. A provider knows its sockets and no protocol of connections; the crate that knows
//! them finds here, on any device, what it sends with and who tells it what has come.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::provider::AsAny;

/// How a device carries what connections are made with.
#[derive(Clone)]
#[non_exhaustive]
pub enum Carrier {
    /// Management datagrams to and from queue pair 1.
    Datagrams(Arc<dyn ManagementPort>),
}

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Datagrams(port) => f.debug_tuple("Datagrams").field(&port.address()).finish(),
        }
    }
}

/// Queue pair 1 of a device on an IP network.
///
/// Several processes may share its address: each has communication ids of its own, by which what answers its messages
/// finds it, and names the services that it answers for.
pub trait ManagementPort: Send + Sync + 'static {
    /// The device's address.
    fn address(&self) -> IpAddr;

    /// The communication ids of this process: with these upper bits, and this many lower ones to choose.
    fn communication_ids(&self) -> (u32, u32);

    /// Who is told what comes. The first one made stays; whoever is later gets that one.
    fn attach(&self, make: &mut dyn FnMut() -> Arc<dyn ManagementSink>) -> Arc<dyn ManagementSink>;

    /// Sends a management datagram of 256 octets. It may be lost. Call with no lock held.
    fn send(&self, to: IpAddr, datagram: &[u8]);

    /// Requests for this service are for this process from now on, whichever of those at the address they reach.
    ///
    /// # Errors
    /// Another one answers for it ([`AddrInUse`](io::ErrorKind::AddrInUse)).
    fn serve(&self, service: u64) -> io::Result<()>;

    /// They no longer are.
    fn withdraw(&self, service: u64);

    /// Time that has passed since some moment.
    fn now(&self) -> Duration;

    /// Has [`ManagementSink::due`] called at `at`, or shortly after it.
    fn wake_at(&self, at: Duration);
}

/// Takes what comes to queue pair 1. Called with no lock held, on a thread that must not be kept waiting.
pub trait ManagementSink: AsAny {
    /// A management datagram has come.
    fn datagram(&self, from: IpAddr, datagram: &[u8]);

    /// A moment has come that was asked for.
    fn due(&self);
}

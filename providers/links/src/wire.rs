//! Links with a wire: frames become octets on sockets.
//!
//! How, and why so, is told in `docs/wire-links.md` in the root. A link is generic over a [`codec`] that a driver hands
//! it; the sockets are those of `polyverbs-sockets`.
//!
//! Read first: [`codec`], then [`udp`] and [`tcp`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

mod batch;
pub mod codec;
pub mod octets;
pub mod queue;
mod tampering;
pub mod tcp;
mod through;
pub mod udp;

pub use codec::{
    Arrival, Common, DatagramCodec, Envelope, Found, Leaving, Opened, StreamCodec, StreamEvent,
    TxMeta,
};
pub use octets::{OctetCapture, OctetTap, WireTap};
pub use queue::OctetQueue;
// What the interfaces of this crate are made of: drivers need no sockets of their own.
pub use polyverbs_sockets::{
    Connection, GroupOptions, IoHandler, Lease, Offload, QpnRange, Reactor, Received, Source,
    StreamError, TcpListener, TcpOptions, TcpSocket, TcpTap, Way, source_of,
};
pub use tcp::{Announcement, Attachment, TcpCounts, TcpLink, TcpLinkOptions};
pub use through::{NewStream, StreamThroughOctets, ThroughOctets};
pub use udp::{UdpCounts, UdpLink, UdpLinkOptions};

// The lock, whatever became of who had it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// So many more, where nobody else counts this at the same time.
#[inline]
fn count_alone(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

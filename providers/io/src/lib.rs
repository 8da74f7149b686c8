//! What an emulated device runs on: the links that carry its frames to other processes and machines, as bytes on sockets or as
//! records in shared memory, and its time, real or virtual.
//!
//! `docs/wire-links.md` describes the design and its reasons. A link is generic over a [`codec`] that a driver supplies.
//! Everything works without privileges. A link finds out while it runs which offloads the kernel lacks (segmentation,
//! joining), and its sockets report that.
//!
//! This is the only crate with socket code. Read [`codec`] first, then [`udp`], [`tcp`] and [`shm`]; then [`group`] (one
//! port for several processes) and [`reactor`] (which thread reads). [`sim`] has virtual time, models of links, and faults.
#![deny(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::FromZeros as _;

/// Defines a public struct of counts, and the private `Counters` that a link increments.
macro_rules! counts {
    ($(#[$about:meta])* $counts:ident, $($(#[$doc:meta])* $name:ident,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            fn add_to(&self, counts: &mut $counts) {
                $(counts.$name += self.$name.load(Ordering::Relaxed);)*
            }
        }
    };
}

mod batch;
pub mod capture;
pub mod codec;
pub mod emulated;
mod exit;
mod fence;
pub mod fork;
pub mod group;
mod large_pages;
mod memory;
mod qpn_range;
pub mod queue;
pub mod reactor;
pub mod shm;
pub mod sim;
pub mod sockets;
mod tampering;
pub mod tcp;
mod thread;
mod through;
pub mod timer;
pub mod udp;

pub use capture::{DatagramTap, OctetCapture, WireTap};
pub use codec::{
    Arrival, Common, DatagramCodec, Envelope, Found, Leaving, Opened, StreamCodec, StreamEvent,
    TxMeta,
};
pub use group::{
    Admission, GroupOptions, HandError, Holder, JoinError, Lease, Name, Presence, Service, Witness,
};
pub use qpn_range::QpnRange;
pub use queue::ByteQueue;
pub use reactor::{IoHandler, Reactor, Ready, Source};
pub use shm::{Put, Readers, Record, RecordMeta, ShmPort};
// The public interfaces of this crate use these types.
pub use sockets::{
    Offload, Received, StreamError, TcpListener, TcpSocket, TcpTap, Way, has_descriptors,
    most_descriptors, source_of,
};
pub use tcp::{Announcement, Attachment, TcpCounts, TcpLink, TcpLinkOptions};
pub use through::{through_datagrams, through_streams};
pub use timer::RealHost;
pub use udp::{UdpCounts, UdpLink, UdpLinkOptions};

// Allocates zeroed bytes. A page occupies no memory before the program touches it.
fn zeroed(bytes: usize) -> io::Result<Box<[u8]>> {
    let made = <[u8]>::new_box_zeroed_with_elems(bytes);
    made.map_err(|_| io::ErrorKind::OutOfMemory.into())
}

// Increments a counter that other threads may increment at the same time.
#[inline]
fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

// Adds to a counter that no other thread changes at the same time.
#[inline]
fn count_alone(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

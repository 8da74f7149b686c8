//! What an emulated device runs on: time, real or virtual, and the links that carry its frames.
//!
//! [`emulated`] makes devices on networks of their own, within the process; [`timer`] runs these in real time, and [`sim`] in
//! virtual time, with models of links and with faults. The links of the Cargo feature `sockets` carry frames to other processes
//! and machines: as bytes on sockets, or as records in shared memory.
//!
//! `docs/wire-links.md` describes the design and its reasons. A link is generic over a [`codec`] that a driver supplies.
//! Everything works without privileges. A link finds out while it runs which offloads the kernel lacks (segmentation,
//! joining), and its sockets report that.
//!
//! This is the only crate with socket code. Read [`codec`] first, then [`udp`], [`tcp`] and [`shm`]; then [`group`] (one
//! port for several processes) and [`reactor`] (which thread reads).
#![deny(unsafe_code)]

#[cfg(all(feature = "sockets", not(target_os = "linux")))]
compile_error!(
    "links to other processes and machines need Linux; elsewhere depend on `polyverbs` with `default-features = false, \
     features = [\"emulated\"]`, which has devices within the process"
);

pub mod emulated;
#[cfg(target_os = "linux")]
mod fence;
#[cfg(target_os = "linux")]
mod large_pages;
pub mod sim;
pub mod timer;

pub use timer::RealHost;

#[cfg(feature = "sockets")]
#[macro_use]
mod counters;
#[cfg(feature = "sockets")]
mod batch;
#[cfg(feature = "sockets")]
pub mod capture;
#[cfg(feature = "sockets")]
pub mod codec;
#[cfg(feature = "sockets")]
mod exit;
#[cfg(feature = "sockets")]
pub mod fork;
#[cfg(feature = "sockets")]
pub mod group;
#[cfg(feature = "sockets")]
mod memory;
#[cfg(feature = "sockets")]
mod qpn_range;
#[cfg(feature = "sockets")]
pub mod queue;
#[cfg(feature = "sockets")]
pub mod reactor;
#[cfg(feature = "sockets")]
mod shared_counters;
#[cfg(feature = "sockets")]
pub mod shm;
#[cfg(feature = "sockets")]
pub mod sockets;
#[cfg(feature = "sockets")]
mod tampering;
#[cfg(feature = "sockets")]
pub mod tcp;
#[cfg(feature = "sockets")]
mod thread;
#[cfg(feature = "sockets")]
mod through;
#[cfg(feature = "sockets")]
pub mod udp;

#[cfg(feature = "sockets")]
pub use self::{
    capture::{DatagramTap, OctetCapture, Tap, WireTap},
    codec::{
        Arrival, Common, DatagramCodec, Envelope, Found, Leaving, Opened, StreamCodec, StreamEvent,
        TxMeta,
    },
    group::{
        Admission, GroupOptions, HandError, Holder, JoinError, Lease, Mail, Name, Presence,
        Service, Witness,
    },
    qpn_range::QpnRange,
    queue::ByteQueue,
    reactor::{IoHandler, Reactor, Ready, Source},
    shared_counters::SharedCounters,
    shm::{Put, Readers, Record, RecordMeta, ShmPort},
    // The public interfaces of this crate use these types.
    sockets::{
        Offload, Received, StreamError, TcpListener, TcpSocket, TcpTap, Way, has_descriptors,
        most_descriptors, source_of,
    },
    tcp::{Announcement, Attachment, TcpCounts, TcpLink, TcpLinkOptions},
    through::{through_datagrams, through_streams},
    udp::{UdpCounts, UdpLink, UdpLinkOptions},
};

// Allocates zeroed bytes. A page occupies no memory before the program touches it.
#[cfg(feature = "sockets")]
fn zeroed(bytes: usize) -> std::io::Result<Box<[u8]>> {
    use zerocopy::FromZeros as _;
    let made = <[u8]>::new_box_zeroed_with_elems(bytes);
    made.map_err(|_| std::io::ErrorKind::OutOfMemory.into())
}

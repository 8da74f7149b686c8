//! Sockets that links with a wire are made of: octets and addresses, no frames.
//!
//! Everything works without privileges. What a kernel does not have (segmentation, joining) is found out while running,
//! and the sockets say so.
//!
//! The only crate with socket code. Read first: [`udp`] and [`tcp`]; then [`group`] (one port, several processes) and [`reactor`]
//! (who reads).
#![deny(unsafe_code)]

mod address;
mod classes;
mod control;
pub mod exit;
pub mod flows;
pub mod group;
mod interface;
mod joining;
mod local;
mod memory;
pub mod multicast;
pub mod piece;
pub mod reactor;
pub mod receive;
pub mod shm;
mod sys;
pub mod tcp;
pub mod thread;
pub mod udp;

pub use exit::{FlushOnExit, at_exit};
pub use flows::FlowSockets;
pub use group::{GroupOptions, HandError, Handed, Holder, JoinError, Lease, QpnRange, Service};
pub use local::Admission;
pub use multicast::Membership;
pub use piece::Piece;
pub use reactor::{IoHandler, Reactor, Ready, Source};
pub use receive::{Message, ReceiveBatch};
pub use shm::{Put, Record, RecordMeta, ShmPort};
pub use tcp::{
    Connection, Ends, Passed, Received, StreamError, TcpListener, TcpOptions, TcpSocket, TcpTap,
    Way,
};
pub use udp::{
    Offload, SendError, Transmit, UdpOptions, UdpSocket, interface_mtu, path_mtu, source_of,
};

/// Whether tests run under a checker of memory, some thirty times slower.
#[cfg(test)]
fn is_memory_checked() -> bool {
    std::env::var_os("POLYVERBS_MEMORY_CHECK").is_some()
}

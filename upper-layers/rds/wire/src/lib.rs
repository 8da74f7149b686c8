//! RDS over verbs on the wire, as Linux's `rds_rdma` has it: what a SEND carries and what connections are made with.
//!
//! | module | holds |
//! | --- | --- |
//! | [`header`](Header) | the header of each fragment, its flags and its checksum |
//! | [`extension`](Extension) | what a header says beyond that |
//! | [`connect`](ConnectData) | private data of requests and replies, and which version they agree on |
//! | [`congestion`](CongestionMap) | which ports of an address take no more messages |
//!
//! Every number is big-endian. Nothing panics whatever the bytes are.
#![forbid(unsafe_code)]

mod congestion;
mod connect;
mod extension;
mod header;

pub use congestion::{CONGESTION_MAP_BYTES, CongestionMap};
pub use connect::{ConnectData, MINOR_MASK, Version};
pub use extension::{Extension, Extensions};
pub use header::{Flags, HEADER, Header, HeaderError, checksum};

/// The port of the RDMA connection manager's port space TCP where a host listens for its IPv4 peers.
pub const PORT: u16 = 18634;

/// The port where a host listens for its IPv6 peers.
pub const PORT_V6: u16 = 16385;

/// The most bytes of a message that one fragment carries.
pub const FRAGMENT: usize = 4096;

/// The most bytes of a message.
pub const MAX_MESSAGE: usize = 1 << 20;

//! The wire formats of RDS over verbs, as in Linux's `rds_rdma`: the contents of SEND messages, and the private data of
//! connections.
//!
//! | module | holds |
//! | --- | --- |
//! | [`header`](Header) | the header of each fragment, its flags and its checksum |
//! | [`extension`](Extension) | extension headers |
//! | [`connect`](ConnectData) | private data of requests and replies, and the version that they agree on |
//! | [`congestion`](CongestionMap) | the congested ports of an address |
//!
//! All numbers are big-endian. No function panics on any input.

mod congestion;
mod connect;
mod extension;
mod header;

pub use congestion::{CONGESTION_MAP_BYTES, CongestionMap};
pub use connect::{ConnectData, MINOR_MASK, Version};
pub use extension::{Extension, Extensions};
pub use header::{Flags, HEADER, Header, HeaderError, checksum};

/// The port on which a host listens for RDS peers with IPv4 addresses, in the TCP port space of the RDMA connection
/// manager.
pub const PORT: u16 = 18634;

/// The port on which a host listens for RDS peers with IPv6 addresses, in the same port space.
pub const PORT_V6: u16 = 16385;

/// The most payload bytes of a fragment.
pub const FRAGMENT: usize = 4096;

/// The most payload bytes of a message.
pub const MAX_MESSAGE: usize = 1 << 20;

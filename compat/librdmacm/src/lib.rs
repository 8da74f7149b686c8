//! The connection manager of rdma-core's C interface over Polyverbs' connections.
//!
//! Each function is what the symbol of the same meaning does. What goes over the wire, and when, is the matter of
//! `polyverbs-connection`; queue pairs and the objects around them are those of `polyverbs-libibverbs`. Which symbol is
//! which function stands in the crate `polyverbs-compat`.

pub mod address;
pub mod bind;
pub mod channel;
pub mod connect;
pub mod device;
pub mod endpoint;
pub mod errno;
pub mod events;
pub mod groups;
pub mod id;
pub mod info;
pub mod multicast;
pub mod names;
pub mod options;
mod ports;
pub mod qp;
mod random;
pub mod resolve;
pub mod rsocket;
pub mod state;

pub use polyverbs_abi::rdmacm as abi;

//! rdma-core's connection manager for C programs, over Polyverbs' connections.
//!
//! Each function implements an exported symbol. `polyverbs-connection` implements the protocols, `polyverbs-libibverbs` the
//! QPs and related objects. The crate `polyverbs-c-libraries` maps symbols to functions.

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
pub mod lookup;
pub mod multicast;
pub mod names;
pub mod options;
mod ports;
pub mod qp;
pub mod resolve;
pub mod rsocket;
pub mod state;

pub use polyverbs_abi::rdmacm as abi;

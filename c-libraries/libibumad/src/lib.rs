//! rdma-core's libibumad for C programs, over an emulated fabric: opensm and infiniband-diags exchange management datagrams by it.
//!
//! Each function implements an exported symbol. A *port ID* is the descriptor of a connection to the process that holds the fabric,
//! so that a program can poll it, and its end, however it comes about, ends the program's agents. Nothing is kept here.
//! The crate `polyverbs-c-libraries` maps symbols to functions.

pub mod abi;
pub mod addresses;
pub mod devices;
pub mod mads;
pub mod names;
mod setup;

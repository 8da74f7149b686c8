//! An emulated InfiniBand fabric: the adapters and switches of a topology, and the links between their ports.
//!
//! | module | holds |
//! | --- | --- |
//! | [`query`] | queries of a program: attributes of nodes, and a walk of the fabric |
//! | [`subnet`] | nodes, links, and the MADs between them |
//! | [`topology`] | which nodes and links there are: reading and writing it |
#![forbid(unsafe_code)]

pub mod query;
pub mod subnet;
pub mod topology;

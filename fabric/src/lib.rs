//! An emulated InfiniBand fabric: the adapters and switches of a topology, and the links between their ports.
//!
//! | module | holds |
//! | --- | --- |
//! | [`topology`] | which nodes and links there are: reading and writing it |
#![forbid(unsafe_code)]

pub mod topology;

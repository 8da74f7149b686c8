//! An emulated InfiniBand fabric: the adapters and switches of a topology, and the links between their ports.
//!
//! | module | holds |
//! | --- | --- |
//! | [`attachment`] | a verbs device's end of such a connection |
//! | [`client`] | a program's end of a connection to the process that holds a fabric |
//! | [`files`] | the texts of files below `/sys` |
//! | [`process`] | that process: one thread that waits for messages of programs |
//! | [`protocol`] | the messages between both |
//! | [`members`] | programs that are attached to ports, and their agents |
//! | `transfers` | messages of several segments on their way |
//! | [`query`] | queries of a program: attributes of nodes, and a walk of the fabric |
//! | [`subnet`] | nodes, links, and the MADs between them |
//! | `traps` | traps that are repeated until the subnet manager represses them |
//! | [`topology`] | which nodes and links there are: reading and writing it |
//!
//! Below [`process`] there is no socket, clock or thread, so that a test decides what time it is.
#![forbid(unsafe_code)]

pub mod attachment;
pub mod client;
pub mod files;
pub mod members;
pub mod process;
pub mod protocol;
pub mod query;
mod sockets;
pub mod subnet;
pub mod topology;
mod transfers;
mod traps;

pub use sockets::FabricName;

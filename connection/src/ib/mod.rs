//! InfiniBand's connection manager (IBTA 12), without clock, socket or thread.
//!
//! Read [`types`], then [`Manager`]. A manager serves one address of one device; [`Agent`] carries its messages as management
//! datagrams to and from queue pair 1.

mod admission;
mod agent;
mod calls;
mod connection;
mod limits;
mod liveness;
mod manager;
pub mod private;
mod probed;
mod receive;
pub mod time;
pub mod types;

pub use agent::Agent;
pub use limits::{Counts, ManagerOptions};
pub use manager::Manager;
pub use types::*;

#[cfg(test)]
mod tests;

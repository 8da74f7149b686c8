//! InfiniBand's connection manager (IBTA 12), without clock, socket or thread.
//!
//! Read [`types`], then [`Manager`]. What it is for is an address of one device; who carries its messages as management
//! datagrams to queue pair 1 is another's business.

mod agent;
mod calls;
mod connection;
mod limits;
mod liveness;
mod manager;
pub mod private;
mod receive;
pub mod time;
pub mod types;

pub use agent::Agent;
pub use limits::{Counts, ManagerOptions};
pub use manager::Manager;
pub use types::*;

#[cfg(test)]
mod tests;

//! Virtual time, and links within a process: what tests of software devices run in.
//!
//! The engine has no clock, no thread and no link. Real ones are in `providers/io`; here a [`Simulation`] drives networks in
//! virtual time. A network is direct unless it is given a link: a [`DatagramLink`] may lose, double, reorder, delay and damage;
//! a [`StreamLink`] keeps order and may delay, stall, reset and damage. Both take their faults from a [`FaultSpec`], which is
//! also a text. [`FaultyLink`] goes around any link.
//!
//! Everything that chance decides is seeded: the same frames, sent in the same order with the same seed, meet the same
//! fate.
//!
//! Read first: [`fault`], then [`datagram`].
#![deny(unsafe_code)]

pub mod chance;
pub mod datagram;
pub mod fault;
pub mod faulty;
mod in_flight;
pub mod stream;
pub mod virtual_time;

#[cfg(test)]
mod testing;

pub use datagram::{DatagramCounts, DatagramLink};
pub use fault::{Between, Contract, FaultSpec, FaultSpecError, Rate, Stall, Window};
pub use faulty::FaultyLink;
pub use stream::{StreamCounts, StreamLink};
pub use virtual_time::{Simulation, SimulationError};

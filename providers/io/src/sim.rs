//! Virtual time, and links within a process, for tests of emulated devices.
//!
//! The engine has no clock, no thread and no link. The other modules of this crate have real ones; here a [`Simulation`] drives
//! networks in virtual time, and a [`VirtualClock`] drives those of a program's tests. Devices on a network without a link exchange
//! messages directly. A [`DatagramLink`] may lose, duplicate, reorder, delay and damage frames. A [`StreamLink`] keeps
//! their order and may delay them, stall, reset connections and damage frames. Both take their faults from a [`FaultSpec`],
//! which also has a text form. [`FaultyLink`] adds the faults of a datagram link to any link.
//!
//! All random decisions are seeded: the same faults are injected into the same frames if they are sent in the same order
//! with the same seed.
//!
//! Read first: [`fault`], then [`datagram`].

pub mod chance;
mod clock;
pub mod datagram;
pub mod fault;
pub mod faulty;
mod in_flight;
pub mod stream;
pub mod virtual_time;

#[cfg(test)]
mod testing;

pub use clock::VirtualClock;
pub use datagram::{DatagramCounts, DatagramLink};
pub use fault::{Between, Contract, FaultSpec, FaultSpecError, Rate, Stall, Window};
pub use faulty::FaultyLink;
pub use stream::{StreamCounts, StreamLink};
pub use virtual_time::{Simulation, SimulationError};

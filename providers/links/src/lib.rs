//! What carries the frames of software devices, and what tells them the time.
//!
//! The engine has no clock, no thread and no link; this crate has them. A network of real devices runs on a
//! [`RealHost`]; tests run in virtual time, driven by a [`Simulation`]. A network is direct unless it is given a link:
//! a [`DatagramLink`] may lose, double, reorder, delay and damage; a [`StreamLink`] keeps order and may delay, stall,
//! reset and damage. Both take their faults from a [`FaultSpec`], which is also a text. [`Capture`] goes around either
//! and notes each frame.
//!
//! Everything that chance decides is seeded: the same frames, sent in the same order with the same seed, meet the same
//! fate.
//!
//! Read first: [`fault`], then [`datagram`]; [`wire`] for links between processes and machines.
#![deny(unsafe_code)]

pub mod capture;
mod chance;
pub mod datagram;
pub mod emulated;
pub mod fault;
pub mod faulty;
mod fence;
mod large_pages;
pub mod stream;
pub mod timer;
pub mod virtual_time;
pub mod wire;

#[cfg(test)]
mod testing;

pub use capture::{Capture, CaptureOptions, CapturedFrame, Stage};
pub use datagram::{DatagramCounts, DatagramLink, DatagramOptions};
pub use fault::{
    Between, Contract, DatagramFaults, FaultSpec, FaultSpecError, Rate, Stall, StreamFaults,
};
pub use faulty::FaultyLink;
pub use stream::{StreamCounts, StreamLink, StreamOptions};
pub use timer::RealHost;
pub use virtual_time::{Bound, Ran, Simulation, SimulationError, VirtualHost};

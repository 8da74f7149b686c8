//! Tools for measurements: yardsticks of the machine, connected queue pairs, and samples that pair the two.
//!
//! An absolute figure says little on a machine that others share. Therefore every figure is measured next to a
//! [yardstick], the cost of the primitive that bounds it, immediately before and immediately after; the ratio of the
//! two is the result. `docs/benchmarks.md` in the root explains how to run the benchmarks and what a run printed.
#![deny(unsafe_code)]

pub mod allocations;
pub mod command;
pub mod cpu;
pub mod crowd;
pub mod idle;
pub mod loopback;
pub mod memory;
pub mod partner;
pub mod ping_pong;
pub mod raw;
pub mod report;
pub mod rig;
pub mod sample;
pub mod wired;
pub mod yardstick;

/// The result of setting up a measurement, or the reason why it failed.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

//! The measuring library: yardsticks of the machine, connected queue pairs, and samples that compare the time of a request
//! with a yardstick. The program `bench` of this package measures with it, and so does the command `polyverbs perf`.
//!
//! An absolute figure says little on a machine that other programs share. Therefore a [yardstick], the cost of the
//! primitive that bounds the figure, is measured immediately before and immediately after each figure; the ratio of figure
//! to yardstick is the result. `docs/benchmarks.md` in the root explains how to run the benchmarks and what a run printed.
#![deny(unsafe_code)]

pub mod allocations;
pub mod cpu;
pub mod loopback;
pub mod memory;
pub mod partner;
pub mod ping_pong;
pub mod rig;
pub mod sample;
pub mod side;
pub mod yardstick;

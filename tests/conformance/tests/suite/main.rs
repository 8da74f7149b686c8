//! The behaviour that every device must show.

mod capabilities;
mod completions;
mod control;
mod device;
mod fast_register;
mod fmr_pool;
mod invalidate;
mod keys;
mod leaving;
mod multicast;
mod plans;
mod posting;
mod probes;
mod shared_receive;
mod states;
mod submitted;
mod support;
mod windows;

// The modules use the macros of the crate root, so that a crate with a driver of its own can include them and choose the devices.
use conformance::{cases, steered_cases};

//! The layer in front of emulated devices.

mod faults;
mod notation;
mod transparent;

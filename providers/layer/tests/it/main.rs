//! The layer in front of emulated devices.

mod transparent;

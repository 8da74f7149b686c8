//! Profiles of devices, and the emulated devices that take them on.

mod devices;
mod format;
mod quirks;

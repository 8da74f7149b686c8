//! Profiles of devices, and the emulated devices that take them on.

mod atlas;
mod devices;
mod format;
mod programs;
mod quirks;
mod recorded;
mod reports;

//! Helpers that tests of several crates share.
#![deny(unsafe_code)]

mod children;
mod configuration;
#[cfg(feature = "libraries")]
pub mod libraries;
pub mod preload;
pub mod process;
pub mod waiting;

pub use configuration::configure;

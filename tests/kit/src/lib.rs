//! What tests of several crates need.
#![deny(unsafe_code)]

mod children;
mod configuration;
#[cfg(feature = "libraries")]
pub mod libraries;
pub mod process;
pub mod waiting;

pub use configuration::configure;

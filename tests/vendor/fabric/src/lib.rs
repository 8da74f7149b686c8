//! A third driver of the engine: reliable connections between the queue pairs of one process, and nothing on a wire.
//!
//! [`Plain`] has the mandatory parts of a driver alone, [`Partial`] overrides some of the contract's defaults, and [`Full`] overrides
//! nearly all. Devices of all three pass the same conformance suite. [`form!`] makes further forms, which override what a test
//! needs.
#![forbid(unsafe_code)]

pub mod agents;
mod common;
pub mod driver;
mod forms;
pub mod frames;
#[cfg(feature = "device")]
mod provider;
pub mod requester;
mod responder;

#[doc(hidden)]
pub use {polyverbs_engine, verbs_api};

pub use common::{Common, Hooks};
pub use driver::Form;
pub use forms::{Full, Partial, Plain, SHORT_PACKETS};
pub use frames::{Body, Header};
#[cfg(feature = "device")]
pub use provider::{Kind, PROVIDER};
pub use requester::Sending;
pub use responder::Receiving;

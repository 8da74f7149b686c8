//! A third driver of the engine: reliable connections between the queue pairs of one process, and nothing on a wire.
//!
//! What a driver must have is in [`driver`], and beside it what it overrides: nothing, with the feature `some` a few of
//! the contract's defaults, with `all` every one. Devices of all three builds pass the same conformance suite.
#![forbid(unsafe_code)]

pub mod driver;
mod provider;
mod requester;
mod responder;

pub use driver::AcmeFabric;
pub use provider::{Kind, PROVIDER};
pub use requester::Sending;
pub use responder::Receiving;

pub(crate) type Qp = polyverbs_engine::qp::Qp<AcmeFabric>;
pub(crate) type QpRef = polyverbs_engine::qp::QpRef<AcmeFabric>;
pub(crate) type Cx<'p> = polyverbs_engine::device::Cx<'p, AcmeFabric>;
pub(crate) type Requester = polyverbs_engine::qp::Requester<AcmeFabric>;
pub(crate) type Responder = polyverbs_engine::qp::Responder<AcmeFabric>;

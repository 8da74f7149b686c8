//! A third driver of the engine: reliable connections between the queue pairs of one process, and nothing on a wire.
//!
//! The mandatory parts of a driver are in [`driver`], next to its overrides: none by default, a few of the contract's
//! defaults with the feature `some`, and all with `all`. Devices of all three builds pass the same conformance suite.
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

//! Queue pairs: types, states, attributes, and the object itself.

mod attributes;
mod connect;
mod options;
mod pair;
mod poster;
mod state;
pub(crate) mod submit;

pub use attributes::*;
pub use connect::{ConnectOptions, Half, QpEndpoint, connect_pair};
pub use options::QpOptions;
pub use pair::Qp;
pub use state::*;

pub use crate::srq::SrqStatus;

//! Types that describe queue pairs: sizes, states, attributes, paths, endpoints.

mod attributes;
mod endpoint;
mod path;
mod state;
mod transition;
mod variant;

pub use attributes::{QpAttrMask, QpAttributes, QpCap, QpCounters, QpStatus};
pub use endpoint::{Half, QpEndpoint};
pub use path::AddressVector;
pub use state::QpState;
pub use transition::{BadModify, Transition, check_modify, check_modify_of, transition};
pub use variant::QpVariant;

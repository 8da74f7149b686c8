//! Queue pairs: types, states, attributes, and the object itself.

pub(crate) mod completions;
mod connect;
mod options;
mod pair;
mod poster;
pub(crate) mod submit;

pub use crate::qp_attributes::{
    AddressVector, BadModify, Half, QpAttrMask, QpAttributes, QpCap, QpCounters, QpEndpoint,
    QpState, QpStatus, Transition, check_modify, check_modify_of, transition,
};
pub use crate::service::QpType;
pub use crate::srq::SrqStatus;
pub use connect::{PathOptions, connect_pair, connect_pair_with};
pub use options::QpOptions;
pub use pair::Qp;

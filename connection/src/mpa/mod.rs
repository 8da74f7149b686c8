//! MPA connection setup: request and reply before the first FPDU (RFC 5044 section 7, RFC 6581).
//!
//! [`Negotiation`] takes bytes and time and returns bytes to send; it knows no socket.

mod agent;
mod depth;
mod negotiation;
mod ping;

pub use agent::Agent;
pub use depth::{Depth, Depths};
pub use negotiation::{Failure, Negotiation, Output, StartOptions, StartReply, Started};

pub use verbs_api::provider::carrier::ReadyForms;

#[cfg(test)]
mod tests;

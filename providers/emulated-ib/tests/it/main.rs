//! The driver with peers that the tests play by hand, and over UDP.

mod acknowledges;
mod agents;
mod arbitrary_mads;
mod congestion;
mod credits;
#[cfg(feature = "fabric")]
mod fabric;
mod framed;
mod packets;
mod posting;
mod queues;
mod requester;
mod responder;
mod smoke;
mod states;
mod subnet;
mod support;
mod truncated;
mod udp;

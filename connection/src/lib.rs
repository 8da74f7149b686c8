//! Connections between queue pairs: one API over InfiniBand's connection manager and iWARP's MPA.
//!
//! A program uses [`Connector`] and [`Listener`]. A transport implements [`Backend`](verbs_api::provider::backend::Backend)
//! for them; [`InProcess`] is the simplest. [`ib`] and [`mpa`] are the two protocols as state machines without clock or socket.
//! `docs/connection.md` is the map.
#![forbid(unsafe_code)]

#[macro_use]
mod opaque;
mod panics;

mod backlog;
mod connector;
mod datagrams;
pub mod ib;
mod in_process;
mod long_queue;
pub mod mpa;
mod notice;
mod ping;
mod port_space;

pub use connector::{
    Accepted, Connection, ConnectionOptions, Connector, Incoming, Listener, ReadLimits, Withdrawal,
    flush,
};
pub use datagrams::{DatagramListener, DatagramQuestion, DatagramService};
pub use in_process::InProcess;
pub use port_space::PortSpace;
pub use verbs_api::provider::backend::{ConnectError, Phase, PrivateDataLimits, Refusal};

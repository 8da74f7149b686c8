//! Connections between queue pairs: one face over InfiniBand's connection manager and iWARP's MPA.
//!
//! [`Connector`] and [`Listener`] are what a program uses; [`backend`] is what a transport implements for them, and
//! [`InProcess`] the first that does. [`ib`] and [`mpa`] have the two protocols as state machines without clock or
//! socket. `docs/connection.md` tells what belongs where.
#![forbid(unsafe_code)]

pub mod backend;
#[macro_use]
mod opaque;
mod panics;

mod channel;
mod connector;
mod datagrams;
mod error;
pub mod ib;
mod in_process;
pub mod mpa;
pub mod network_direct;
mod ping;
mod waiting;

pub use backend::PrivateDataLimits;
pub use channel::{ChannelEvent, EventChannel, Happened, Identifier};
pub use connector::{
    Accepted, Connection, ConnectionOptions, Connector, Incoming, Listener, ReadLimits, flush,
};
pub use datagrams::{DatagramListener, DatagramQuestion, DatagramService};
pub use error::{ConnectError, Phase};
pub use in_process::InProcess;

//! An emulated iWARP device: RDMAP over DDP, on the software verbs engine.
//!
//! A driver of [`polyverbs_engine`]. `requester` turns requests into messages and handles the answers, `responder` turns
//! the peer's messages into operations on the engine, `connection` begins and ends their stream, gracefully or abruptly. On
//! a direct network the poster's thread runs a request in the peer's responder (`direct`); over a link a message is divided
//! into DDP segments that arrive later, in order. On an IP network, which takes the Cargo feature `sockets`, these are bytes of TCP
//! streams ([`codec`], [`wire`]).
//!
//! The differences of iWARP to InfiniBand, each with its module:
//!
//! * A send or write completes when the stream has its bytes, which proves nothing about the peer (`requester`).
//! * A message that finds no receive ends the connection; there are no retries (`responder`).
//! * Every fault ends in a Terminate with a layer, a type and a code ([`terminate`]).
//! * The wire names the sink of a read, which needs remote write (`requester`).
//! * A read is answered in its turn: a later write may be placed before (`responder`).
//! * SQD closes the connection (`connection`).
#![forbid(unsafe_code)]

pub mod caps;
#[cfg(feature = "sockets")]
pub mod codec;
mod connection;
mod direct;
mod driver;
mod express;
mod extension;
pub mod header;
mod operations;
mod peer;
mod provider;
#[cfg(feature = "sockets")]
mod rendezvous;
mod requester;
mod responder;
#[cfg(feature = "sockets")]
mod silent;
#[cfg(feature = "sockets")]
mod sockets;
#[cfg(feature = "sockets")]
mod streams;
pub mod terminate;
#[cfg(feature = "sockets")]
pub mod wire;

#[cfg(feature = "sockets")]
pub use codec::MpaCodec;
pub use driver::{Iwarp, ServiceDelay};
pub use provider::{EmulatedIwarp, PROVIDER};
pub use requester::Requester;
pub use responder::Responder;
#[cfg(feature = "sockets")]
pub use wire::{OnWire, WireOptions};

/// The emulated iWARP device.
pub type Device = polyverbs_engine::device::Device<Iwarp>;
/// A queue pair of this device.
pub type Qp = polyverbs_engine::qp::Qp<Iwarp>;
/// A counted reference to a queue pair of this device.
pub type QpRef = polyverbs_engine::qp::QpRef<Iwarp>;
/// A weak reference to a queue pair of this device.
pub type QpWeak = polyverbs_engine::pool::PoolWeak<Qp>;
/// The context of the engine call to which an operation belongs.
pub type Cx<'p> = polyverbs_engine::device::Cx<'p, Iwarp>;
/// The sending half of a queue pair, which the caller has locked.
pub type Sending = polyverbs_engine::qp::Requester<Iwarp>;
/// The receiving half of a queue pair, which the caller has locked.
pub type Receiving = polyverbs_engine::qp::Responder<Iwarp>;

//! An emulated InfiniBand device: RC, UC, UD and multicast, on the software verbs engine.
//!
//! This is a driver of [`polyverbs_engine`]: [`requester`] turns requests into frames and handles the answers,
//! [`responder`] turns frames into operations on the engine, [`datagram`] does both for UD. On a direct network a message
//! of any length is one frame, which the poster's thread passes to the peer's responder. Over a link a message is cut into
//! frames of the path MTU, which are acknowledged, retransmitted and put in order. On an IP network, which takes the Cargo feature
//! `sockets`, the frames are packets of RoCEv2 ([`codec`], [`wire`]).
#![forbid(unsafe_code)]

pub mod answer;
pub mod caps;
#[cfg(feature = "sockets")]
pub mod codec;
pub mod datagram;
mod driver;
mod express;
mod extension;
#[cfg(feature = "fabric")]
mod fabric;
mod frame;
pub mod header;
#[cfg(feature = "sockets")]
pub mod management;
mod operations;
mod pacing;
mod provider;
mod relay;
pub mod requester;
pub mod responder;
pub mod subnet;
#[cfg(feature = "sockets")]
pub mod wire;

#[cfg(feature = "sockets")]
pub use codec::RoceV2;
pub use driver::{InfiniBand, ManagementQp};
pub use provider::{EmulatedIb, PROVIDER, WITH_2A};
#[cfg(feature = "sockets")]
pub use wire::{OnWire, WireOptions};

/// The emulated device.
pub type Device = polyverbs_engine::device::Device<InfiniBand>;
/// A queue pair of this device.
pub type Qp = polyverbs_engine::qp::Qp<InfiniBand>;
/// A counted reference to a queue pair of this device.
pub type QpRef = polyverbs_engine::qp::QpRef<InfiniBand>;
/// The context of the engine call to which an operation belongs.
pub type Cx<'p> = polyverbs_engine::device::Cx<'p, InfiniBand>;
/// The sending half of a queue pair, which the caller has locked.
pub type Sending = polyverbs_engine::qp::Requester<InfiniBand>;
/// The receiving half of a queue pair, which the caller has locked.
pub type Receiving = polyverbs_engine::qp::Responder<InfiniBand>;

//! Asynchronous events.

pub use crate::channel::{CompletionChannel, CqEvent, NextCqEvent};
pub use crate::context::{AsyncEvent, NextEvent};
use crate::ids::Port;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_event_type")]
#[non_exhaustive]
pub enum EventType {
    /// A completion queue overran and is unusable.
    CqErr,
    /// A queue pair failed with no request to report it on.
    QpFatal,
    /// A queue pair got an invalid request from its peer.
    QpReqErr,
    /// A queue pair got an access violation from its peer.
    QpAccessErr,
    /// The first valid packet arrived while the queue pair was ready to receive.
    CommEst,
    /// The send queue has drained.
    SqDrained,
    /// The connection moved to its alternate path.
    PathMig,
    /// The connection failed to move to its alternate path.
    PathMigErr,
    /// A queue pair in error has completed the last receive that it took from a shared queue.
    QpLastWqeReached,
    /// A shared receive queue failed.
    SrqErr,
    /// A shared receive queue fell below its limit.
    SrqLimitReached,
    /// A port carries traffic.
    PortActive,
    /// A port carries no traffic.
    PortErr,
    /// The identifiers of a port changed.
    GidChange,
    /// The device failed.
    DeviceFatal,
    /// The device was removed: every outstanding verb and request has ended or ends with an error.
    DeviceRemoved,
}

impl EventType {
    /// Whether the event belongs to one object, and then goes only to its owner.
    pub const fn is_affiliated(self) -> bool {
        !matches!(
            self,
            Self::PortActive
                | Self::PortErr
                | Self::GidChange
                | Self::DeviceFatal
                | Self::DeviceRemoved
        )
    }
}

/// What an event is about, as a provider names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventSubject {
    /// The object that was created with this identity.
    Object(crate::objects::ObjectId),
    /// A port.
    Port(Port),
    /// The device.
    Device,
}

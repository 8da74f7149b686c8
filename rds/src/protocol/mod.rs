//! The protocol, sans-IO: no socket, no clock, no verbs. A [`Host`] is all of it; its driver passes inputs to it and carries out
//! the actions that it asks for.
//!
//! | module | holds |
//! | --- | --- |
//! | `message` | payload by fragment, operations, messages |
//! | `credits` | flow control, if both sides agreed on it |
//! | `path` | one peer: queues, reassembly, acknowledges, the state of the connection |
//! | `endpoint` | one socket: buffers, messages that wait to be received, congestion monitoring |
//! | `host` | the sockets and paths of one local address |

mod credits;
mod endpoint;
mod host;
mod message;
mod path;

pub use endpoint::{Queued, RdmaStatus, Readiness, SocketOptions};
pub use host::{
    Action, Answer, ArrivalId, Counters, FlowControl, Host, HostLimits, Inbound, Outbound,
    PathInfo, PortError, Process, Refused, Role,
};
pub use message::{
    Attached, Fragment, Fragments, Notify, Operation, OperationStatus, PathId, SocketId,
};
pub use path::{PathState, Payload, ProtocolError, Transmit};

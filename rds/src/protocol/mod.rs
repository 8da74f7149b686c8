//! The RDS protocol, sans-IO: it uses no socket, no clock and no verbs. A [`Host`] has all its state; the driver, which
//! owns the QPs, passes inputs to the host and carries out the actions that the host asks for.
//!
//! | module | holds |
//! | --- | --- |
//! | `message` | payload by fragment, operations, messages |
//! | `credits` | flow control, if both sides agreed on it |
//! | `path` | one peer: queues, reassembly, acknowledgements, the state of the connection |
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

//! Reliable datagram sockets over verbs: the protocol of Linux's `rds_rdma`, also where there is no RDMA device.
//!
//! [`RdsSocket`] is the type that programs use. A socket sends whole messages to any address and port, reliably and in order; one
//! connection of queue pairs for each pair of hosts carries the messages of all sockets. [`protocol`] is the protocol alone,
//! sans-IO.
#![deny(unsafe_code)]

mod connect;
mod error;
mod memory;
mod node;
mod pool;
mod ports;
pub mod protocol;
mod rdma;
mod shared;
mod socket;
mod spin;
mod transport;
mod watch;

pub use error::RdsError;
pub use memory::LocalMemory;
pub use node::{DeviceSource, Sleeping, look_first_at};
pub use polyverbs_wire::rds::MAX_MESSAGE;
pub use protocol::{OperationStatus, RdmaStatus, Readiness, SocketOptions};
pub use rdma::{AtomicOperation, AtomicRequest, Control, Cookie, RdmaFlags, RdmaRequest};
pub use socket::{Outgoing, RdsSocket, Received, Wait};
pub use transport::RdsTransport;

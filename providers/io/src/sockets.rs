//! UDP with segmentation and joining, multicast, TCP: bytes and addresses, no frames.

pub(crate) mod address;
pub(crate) mod control;
mod flows;
pub(crate) mod interface;
mod multicast;
pub(crate) mod receive;
pub(crate) mod sys;
pub(crate) mod tcp;
pub(crate) mod udp;

pub use flows::FlowSockets;
pub use multicast::join_group;
pub use receive::{Message, ReceiveBatch};
pub use tcp::{Ends, Passed, Received, StreamError, TcpListener, TcpSocket, TcpTap, Way};
pub use udp::{Offload, SendError, Transmit, UdpOptions, UdpSocket, interface_mtu, source_of};

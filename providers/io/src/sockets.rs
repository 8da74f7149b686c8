//! UDP sockets with segmentation and receive offload, multicast, and TCP sockets. They know bytes and addresses, but no
//! frames.

pub(crate) mod address;
pub(crate) mod control;
mod flows;
pub(crate) mod interface;
mod multicast;
pub(crate) mod owner;
pub(crate) mod receive;
pub(crate) mod refusal;
pub(crate) mod sys;
pub(crate) mod tcp;
pub(crate) mod udp;

use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit};

pub use flows::FlowSockets;
pub use multicast::{in_family_of, join_group};
pub use receive::{Message, ReceiveBatch};
pub use tcp::{Ends, Passed, Received, StreamError, TcpListener, TcpSocket, TcpTap, Way};
pub use udp::{Offload, SendError, Transmit, UdpOptions, UdpSocket, interface_mtu, source_of};

/// Returns whether the process has used less than three quarters of the descriptors that its limit allows.
pub fn has_descriptors() -> bool {
    let is_low = |probe: OwnedFd| (probe.as_raw_fd() as usize) < most_descriptors() / 4 * 3;
    // The system gives the lowest number that is free.
    eventfd(0, EventfdFlags::CLOEXEC).is_ok_and(is_low)
}

/// Returns how many descriptors the limit of the process allows.
pub fn most_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok());
    limit.unwrap_or(usize::MAX)
}

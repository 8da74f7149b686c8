//! One socket: its buffers, the messages that wait to be received, and the statuses and reports that wait for the program.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use super::message::{Fragments, OperationStatus};

/// Options of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// The send buffer, in bytes: a further message is accepted while fewer bytes than this are unacknowledged. It is also
    /// the length of the longest message.
    pub send_buffer: usize,
    /// The receive buffer, in bytes of payload. While more bytes wait to be received, the socket's port is marked as
    /// congested for all senders; arriving messages are still accepted.
    pub receive_buffer: usize,
    /// Whether the program gets a status for each failed RDMA operation or atomic even if it did not request one for that
    /// operation (`RDS_RECVERR`).
    pub recverr: bool,
    /// Whether the program is notified when a port to which it could not send is no longer congested; ports are reported in
    /// 64 groups, see [`Received::congestion`](crate::Received::congestion) (`RDS_CONG_MONITOR`).
    pub congestion_monitor: bool,
    /// How long a cancel or close of the socket waits for a posted work request of its messages to complete. When it has
    /// passed, the connection to that peer is torn down, which flushes the request.
    pub patience: Duration,
}

impl Default for SocketOptions {
    /// Buffers of 106,496 bytes each way, as on Linux, and a patience of 5 s.
    fn default() -> Self {
        Self {
            send_buffer: 106_496,
            receive_buffer: 106_496,
            recverr: false,
            congestion_monitor: false,
            patience: Duration::from_secs(5),
        }
    }
}

/// The outcome of an RDMA operation or atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaStatus {
    /// The token by which the program identifies the operation.
    pub user_token: u64,
    /// The outcome.
    pub status: OperationStatus,
}

/// A message that waits to be received.
#[derive(Debug)]
pub struct Queued<F> {
    /// The sender.
    pub from: SocketAddr,
    /// Length of the payload, in bytes.
    pub length: u32,
    /// The payload.
    pub fragments: Fragments<F>,
    /// The cookie that came with the message: the key and the offset of memory that the sender has registered for RDMA.
    /// `None` if the message carried none.
    pub cookie: Option<u64>,
}

/// The state of a socket that `poll` reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A message, a status or a congestion update can be received.
    pub readable: bool,
    /// The send buffer has room, so that a further message can be sent unless its destination is congested.
    pub writable: bool,
    /// A congestion map has arrived since the previous call, so that a destination may no longer be congested. Always false
    /// if the socket has a congestion monitor.
    pub congestion_changed: bool,
}

#[derive(Debug)]
pub(crate) struct Endpoint<F> {
    pub(crate) port: u16,
    pub(crate) options: SocketOptions,
    pub(crate) sent: usize,
    pub(crate) received: usize,
    pub(crate) is_congested: bool,
    /// The leader, the process of this address that peers connect to, knows that this process has the socket's port. Always
    /// true in the leader.
    pub(crate) is_announced: bool,
    /// The number of messages that were given up without an acknowledgement and not yet reported to the program.
    pub(crate) undelivered: u64,
    queue: VecDeque<Queued<F>>,
    statuses: VecDeque<RdmaStatus>,
    /// A bit for each group of ports to which a send was refused because of congestion, and which has not become free
    /// since.
    waits_for: u64,
    /// A bit for each group of which a port became free and which was not yet reported to the program.
    freed: u64,
    /// The host's count of congestion changes when the program last read the readiness.
    generation: u64,
}

impl<F> Endpoint<F> {
    pub(crate) fn new(port: u16, options: SocketOptions, generation: u64) -> Self {
        Self {
            port,
            options,
            sent: 0,
            received: 0,
            is_congested: false,
            is_announced: false,
            undelivered: 0,
            queue: VecDeque::new(),
            statuses: VecDeque::new(),
            waits_for: 0,
            freed: 0,
            generation,
        }
    }

    pub(crate) fn queued(&self) -> impl ExactSizeIterator<Item = &Queued<F>> {
        self.queue.iter()
    }

    /// Whether a further message is accepted. Only the bytes that are already unacknowledged count, so that the last
    /// message may exceed the buffer, as on Linux.
    pub(crate) fn has_room(&self) -> bool {
        self.sent < self.options.send_buffer
    }

    pub(crate) fn readiness(&mut self, generation: u64) -> Readiness {
        let is_new = self.generation != generation;
        self.generation = generation;
        let is_told = self.freed != 0 && self.options.congestion_monitor;
        Readiness {
            readable: !self.queue.is_empty()
                || !self.statuses.is_empty()
                || is_told
                || self.undelivered > 0,
            writable: self.has_room(),
            congestion_changed: is_new && !self.options.congestion_monitor,
        }
    }

    pub(crate) fn was_refused(&mut self, port: u16) {
        if self.options.congestion_monitor {
            self.waits_for |= group(port);
        }
    }

    /// Notes that ports of these groups are no longer congested. Returns whether there is a group to report to the program:
    /// one to which a send of the program was refused.
    pub(crate) fn ports_freed(&mut self, groups: u64) -> bool {
        self.freed |= self.waits_for & groups;
        self.waits_for &= !groups;
        self.freed != 0
    }

    pub(crate) fn push(&mut self, message: Queued<F>) {
        self.received += message.length as usize;
        self.queue.push_back(message);
    }

    pub(crate) fn front(&self) -> Option<&Queued<F>> {
        self.queue.front()
    }

    pub(crate) fn pop(&mut self) -> Option<Queued<F>> {
        let message = self.queue.pop_front()?;
        self.received -= message.length as usize;
        Some(message)
    }

    pub(crate) fn push_status(&mut self, status: RdmaStatus) {
        self.statuses.push_back(status);
    }

    pub(crate) fn take_statuses(&mut self, most: usize) -> Vec<RdmaStatus> {
        let count = most.min(self.statuses.len());
        self.statuses.drain(..count).collect()
    }

    pub(crate) fn take_freed(&mut self) -> Option<u64> {
        let freed = std::mem::take(&mut self.freed);
        (freed != 0).then_some(freed)
    }

    /// Updates whether the port is congested: congestion begins above the size of the receive buffer and ends below half of
    /// it. Returns whether this has changed.
    pub(crate) fn congestion_changes(&mut self) -> bool {
        let buffer = self.options.receive_buffer;
        let is_congested = match self.is_congested {
            false => self.received > buffer,
            true => self.received >= buffer / 2,
        };
        is_congested != std::mem::replace(&mut self.is_congested, is_congested)
    }
}

/// The group of a port for the congestion monitor, as a bit: ports are reported in 64 groups, by the port modulo 64.
pub(crate) const fn group(port: u16) -> u64 {
    1 << (port % 64)
}

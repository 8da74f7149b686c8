//! One socket: its buffers, the messages that wait to be received, and the reports for the program.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use super::message::{Fragments, OperationStatus};

/// Options of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// The most unacknowledged bytes with which a further message is sent; also the longest message.
    pub send_buffer: usize,
    /// Bytes that may wait to be received; above that the socket's port is congested.
    pub receive_buffer: usize,
    /// Operations that fail are reported even if the program did not ask for a report.
    pub recverr: bool,
    /// Ports that become free are reported by their groups, see [`Received::congestion`](crate::Received::congestion).
    pub congestion_monitor: bool,
    /// How long a program that cancels messages or closes the socket waits for a peer to complete a posted request. After that
    /// time the connection to the peer ends.
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

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaStatus {
    /// The name that the program gave the operation.
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
    /// The cookie of memory of the sender: a key and an offset.
    pub cookie: Option<u64>,
}

/// The state of a socket that `poll` reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A message, a status or a congestion update can be received.
    pub readable: bool,
    /// A further message can be sent, unless its destination is congested.
    pub writable: bool,
    /// A congestion map has arrived since the previous call, and the socket has no congestion monitor.
    pub congestion_changed: bool,
}

#[derive(Debug)]
pub(crate) struct Endpoint<F> {
    pub(crate) port: u16,
    pub(crate) options: SocketOptions,
    pub(crate) sent: usize,
    pub(crate) received: usize,
    pub(crate) is_congested: bool,
    /// The leader, which peers connect to, knows of the socket.
    pub(crate) is_announced: bool,
    /// The number of messages that were given up and not reported yet.
    pub(crate) undelivered: u64,
    queue: VecDeque<Queued<F>>,
    statuses: VecDeque<RdmaStatus>,
    /// Groups of ports to which the program could not send because of congestion.
    waits_for: u64,
    /// The groups among them that became free.
    freed: u64,
    /// The number of congestion maps that had arrived when readiness was read last.
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

    /// The *old* total counts: the last message may exceed the buffer, and a socket that cannot send has a full one.
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

    /// Notes that ports of these groups became free. Returns whether the program waits for one.
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

    /// Whether congestion has begun or ended: it begins above the size of the buffer and ends below half of it.
    pub(crate) fn congestion_changes(&mut self) -> bool {
        let buffer = self.options.receive_buffer;
        let is_congested = match self.is_congested {
            false => self.received > buffer,
            true => self.received >= buffer / 2,
        };
        is_congested != std::mem::replace(&mut self.is_congested, is_congested)
    }
}

/// The bit of a port in the 64 groups of the congestion monitor.
pub(crate) const fn group(port: u16) -> u64 {
    1 << (port % 64)
}

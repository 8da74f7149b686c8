//! The options with which a program makes a connection.

use verbs_api::{PathOptions, ids::Psn};

/// How many RDMA reads and atomics one side of a connection handles at one time, from its own point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// How many of the peer's reads and atomics it executes at one time (responder resources, IRD).
    pub inbound: u8,
    /// How many reads and atomics of its own it has outstanding at one time (initiator depth, ORD).
    pub outbound: u8,
}

/// Options of one side of a connection.
///
/// ```
/// use polyverbs::{Access, PathOptions, connection::ConnectionOptions};
/// let options = ConnectionOptions::new()
///     .path(PathOptions::new().access(Access::REMOTE_WRITE).rnr_retry(3))
///     .reads(4, 4)
///     .private_data(b"chat");
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ConnectionOptions {
    pub(super) path: PathOptions,
    pub(super) reads: ReadLimits,
    pub(super) private_data: Vec<u8>,
    pub(super) source_port: u16,
    pub(super) as_peer_asks: bool,
    pub(super) flow_control: bool,
    /// The PSN that the program chose; `None` unless it modifies the queue pair itself.
    pub(super) takes_psn: Option<Psn>,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        let reads = ReadLimits {
            inbound: 16,
            outbound: 16,
        };
        Self {
            path: PathOptions::new(),
            reads,
            private_data: Vec::new(),
            source_port: 0,
            as_peer_asks: false,
            flow_control: false,
            takes_psn: None,
        }
    }
}

impl ConnectionOptions {
    /// Options with 16 reads in each direction, no private data, and no access rights for the peer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the options with which the queue pair is brought up, such as the peer's [access rights](PathOptions::access).
    pub fn path(mut self, path: PathOptions) -> Self {
        self.path = path;
        self
    }

    /// Does what the peer asks for, as connections of Linux's RDMA connection manager do. The passive side retries as often as the
    /// request says, and sends with its traffic class; the active side repeats RNR retries as often as the answer says. What
    /// [`path`](Self::path) says is then what this side asks for, and what it does where the transport conveys nothing.
    pub const fn as_peer_asks(mut self) -> Self {
        self.as_peer_asks = true;
        self
    }

    /// Asks the peer for end-to-end flow control, for which InfiniBand's messages have a bit. The queue pair is not changed by it.
    pub const fn flow_control(mut self, flow_control: bool) -> Self {
        self.flow_control = flow_control;
        self
    }

    /// Sets the largest number of reads and atomics in each direction; it is reduced to the device's limits and the peer's
    /// offer.
    pub fn reads(mut self, inbound: u8, outbound: u8) -> Self {
        self.reads = ReadLimits { inbound, outbound };
        self
    }

    /// Sets the private data that is sent to the peer, of at most
    /// [`Connector::max_private_data`](crate::Connector::max_private_data).
    pub fn private_data(mut self, private_data: &[u8]) -> Self {
        self.private_data = private_data.to_vec();
        self
    }

    /// Sets the source port of the active side, which its peer sees; by default one is assigned.
    pub const fn source_port(mut self, port: u16) -> Self {
        self.source_port = port;
        self
    }

    /// Leaves it to the program to modify the queue pair, with the attributes of
    /// [`Accepted::steps`](crate::Accepted::steps) or [`Incoming::steps`](crate::Incoming::steps), before it completes or
    /// accepts. `psn` is the first PSN that the peer sends (within one process, the first that this side sends), as in
    /// those attributes. Not possible on iWARP.
    pub const fn brought_up_by_program(mut self, psn: Psn) -> Self {
        self.takes_psn = Some(psn);
        self
    }
}

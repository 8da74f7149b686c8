//! What a path carries.

use std::fmt::Debug;

use polyverbs_rds_wire::Extension;
use smallvec::SmallVec;

/// The port by which hosts tell each other of themselves; no socket has it.
pub(crate) const PROBE_PORT: u16 = 1;

/// The port of a congestion map's message, of acknowledges, and of pings.
pub(crate) const NO_PORT: u16 = 0;

/// A stretch of payload of at most [`FRAGMENT`](polyverbs_rds_wire::FRAGMENT) bytes. The protocol moves it and does not look at it.
pub trait Fragment: Debug {
    /// Its bytes, from the beginning; `into` is no longer than it.
    fn copy_to(&self, into: &mut [u8]);

    /// Bytes of memory that are not free before it is dropped.
    fn held(&self) -> usize;
}

/// An operation on the peer's memory, as whoever posts it knows it.
pub trait Operation: Debug {
    /// How many requests it takes on the queue pair.
    fn requests(&self) -> u32;

    /// Whether its completion shows that the peer has carried it out. A write over iWARP is complete when it has left.
    fn is_shown_by_completion(&self) -> bool;
}

/// A message's payload.
pub type Fragments<F> = SmallVec<[F; 1]>;

/// One of a host's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId(pub(crate) u32);

/// One of a host's paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub(crate) u32);

impl PathId {
    /// Counts up from 0.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What became of an operation: the numbers of Linux's `RDS_RDMA_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum OperationStatus {
    /// It was carried out.
    Success = 0,
    /// The peer refused it.
    RemoteError = 1,
    /// It was cancelled.
    Canceled = 2,
    /// Its connection ended before it was known to be carried out; it is not tried again.
    Dropped = 3,
    /// Anything else.
    OtherError = 4,
}

/// An operation that goes with a message.
#[derive(Debug)]
pub struct Attached<O> {
    /// What is posted.
    pub operation: O,
    /// The peer's key: the peer is told that it has been used.
    pub rkey: Option<u32>,
    /// The message waits for the operation.
    pub fence: bool,
    /// Without data, no message goes with the operation.
    pub is_silent: bool,
    /// The program's name for it, and when it is told.
    pub user_token: u64,
    /// When the program is told.
    pub notify: Notify,
}

/// When a program is told what became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// Never.
    Never,
    /// If it fails.
    OnError,
    /// Always.
    Always,
}

/// Where a message comes from that is passed on: its sender is told that it has arrived when the next one has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) path: PathId,
    /// Which of the peer's numberings the sequence number is of.
    pub(crate) numbering: u32,
    pub(crate) sequence: u64,
    /// Bytes that the message takes of a host's memory.
    pub(crate) held: usize,
}

/// A message that a path is to carry.
#[derive(Debug)]
pub(crate) struct Message<F, O> {
    pub(crate) socket: Option<SocketId>,
    pub(crate) origin: Option<Origin>,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) length: u32,
    pub(crate) fragments: Fragments<F>,
    pub(crate) attached: Option<Attached<O>>,
    pub(crate) extension: Option<Extension>,
    /// The number that the sender of a message has given it that is passed on.
    pub(crate) passed: Option<Extension>,
    pub(crate) sequence: u64,
    pub(crate) is_ack_required: bool,
    pub(crate) is_retransmitted: bool,
    /// Its socket wants it no more; what is posted of it goes out.
    pub(crate) is_canceled: bool,
    /// The last request that was posted for it; 0 before the first.
    pub(crate) last_request: u64,
    /// The last request of its operation.
    pub(crate) operation_request: u64,
    /// The peer has carried out its operation.
    pub(crate) is_operation_done: bool,
}

impl<F, O> Message<F, O> {
    /// One that is a header only, and of no socket.
    pub(crate) fn header_only(source_port: u16, destination_port: u16) -> Self {
        Self {
            socket: None,
            origin: None,
            source_port,
            destination_port,
            length: 0,
            fragments: Fragments::new(),
            attached: None,
            extension: None,
            passed: None,
            sequence: 0,
            is_ack_required: false,
            is_retransmitted: false,
            is_canceled: false,
            last_request: 0,
            operation_request: 0,
            is_operation_done: false,
        }
    }

    /// Whether it answers a ping.
    pub(crate) fn is_pong(&self) -> bool {
        self.source_port == NO_PORT && self.destination_port != PROBE_PORT && self.origin.is_none()
    }

    /// How many requests carry its header and payload.
    pub(crate) fn data_requests(&self) -> usize {
        let is_silent = self
            .attached
            .as_ref()
            .is_some_and(|attached| attached.is_silent);
        match self.fragments.len() {
            0 if is_silent && self.extension.is_none() => 0,
            fragments => fragments.max(1),
        }
    }
}

/// A message that has arrived whole.
#[derive(Debug)]
pub(crate) struct Arrived<F> {
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) length: u32,
    pub(crate) fragments: Fragments<F>,
    pub(crate) extensions: polyverbs_rds_wire::Extensions,
    pub(crate) sequence: u64,
    pub(crate) is_ack_required: bool,
    pub(crate) is_retransmitted: bool,
}

/// Bytes of a host's memory that a message takes while it waits, with what is kept of a header.
pub(crate) fn held<F: Fragment>(fragments: &Fragments<F>) -> usize {
    size_of::<Arrived<F>>() + fragments.iter().map(F::held).sum::<usize>()
}

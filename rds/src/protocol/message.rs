//! Messages of a path and their parts.

use std::fmt::Debug;

use polyverbs_wire::rds::Extension;
use smallvec::SmallVec;

/// The port on which hosts exchange messages about themselves; no socket has it.
pub(crate) const PROBE_PORT: u16 = 1;

/// The port of congestion maps, acknowledges and pings.
pub(crate) const NO_PORT: u16 = 0;

/// A piece of payload of at most [`FRAGMENT`](polyverbs_wire::rds::FRAGMENT) bytes. The protocol moves it and does not read it.
pub trait Fragment: Debug {
    /// Copies bytes from the beginning of the fragment; `into` is no longer than the fragment.
    fn copy_to(&self, into: &mut [u8]);

    /// Bytes of memory that stay in use until the fragment is dropped.
    fn held(&self) -> usize;
}

/// An operation on the peer's memory, in the form that its poster uses.
pub trait Operation: Debug {
    /// The number of requests that it takes on the queue pair.
    fn requests(&self) -> u32;

    /// Whether the completion shows that the peer has carried the operation out. A write over iWARP completes when it has left.
    fn is_shown_by_completion(&self) -> bool;
}

/// The payload of a message.
pub type Fragments<F> = SmallVec<[F; 1]>;

/// One of a host's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId(pub(crate) u32);

/// One of a host's paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub(crate) u32);

impl PathId {
    /// The position of the path in tables; paths are numbered from 0.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The outcome of an operation, with the numbers of Linux's `RDS_RDMA_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum OperationStatus {
    /// The peer has carried the operation out.
    Success = 0,
    /// The peer refused the operation.
    RemoteError = 1,
    /// The program cancelled the operation.
    Canceled = 2,
    /// The connection ended before the operation was known to be carried out; it is not tried again.
    Dropped = 3,
    /// The operation failed for another reason.
    OtherError = 4,
}

/// An operation that goes with a message.
#[derive(Debug)]
pub struct Attached<O> {
    /// The operation to post.
    pub operation: O,
    /// The key of the peer's memory; the message reports to the peer that it was used.
    pub rkey: Option<u32>,
    /// The message waits for the operation.
    pub fence: bool,
    /// No message goes with the operation if there is no payload.
    pub is_silent: bool,
    /// The program's name for the operation.
    pub user_token: u64,
    /// When the program gets a status.
    pub notify: Notify,
}

/// When a program gets the status of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// Never.
    Never,
    /// Only if the operation fails.
    OnError,
    /// Always.
    Always,
}

/// The origin of a message that is forwarded. Its sender gets an acknowledge when the next host has the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) path: PathId,
    /// The numbering of the peer that the sequence number belongs to.
    pub(crate) numbering: u32,
    pub(crate) sequence: u64,
    /// Bytes of the host's memory that the message takes.
    pub(crate) held: usize,
}

/// A message to send on a path.
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
    /// The sequence number that the sender of a forwarded message gave it.
    pub(crate) passed: Option<Extension>,
    pub(crate) sequence: u64,
    pub(crate) is_ack_required: bool,
    pub(crate) is_retransmitted: bool,
    /// The socket has cancelled the message; the requests that were posted for it are still sent.
    pub(crate) is_canceled: bool,
    /// The number of the last request that was posted for the message; 0 before the first.
    pub(crate) last_request: u64,
    /// The number of the last request of its operation.
    pub(crate) operation_request: u64,
    /// The peer has carried out its operation.
    pub(crate) is_operation_done: bool,
}

impl<F, O> Message<F, O> {
    /// A message without payload that belongs to no socket.
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

    /// Whether the message answers a ping.
    pub(crate) fn is_pong(&self) -> bool {
        self.source_port == NO_PORT && self.destination_port != PROBE_PORT && self.origin.is_none()
    }

    /// The number of requests that carry its header and payload.
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
    pub(crate) extensions: polyverbs_wire::rds::Extensions,
    pub(crate) sequence: u64,
    pub(crate) is_ack_required: bool,
    pub(crate) is_retransmitted: bool,
}

/// Bytes of a host's memory that a waiting message takes, including the part of the header that is kept.
pub(crate) fn held<F: Fragment>(fragments: &Fragments<F>) -> usize {
    size_of::<Arrived<F>>() + fragments.iter().map(F::held).sum::<usize>()
}

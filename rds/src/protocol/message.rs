//! The messages that a path carries between two hosts, and their parts.

use std::fmt::Debug;

use polyverbs_wire::rds::Extension;
use smallvec::SmallVec;

/// The port on which hosts, and the processes of one host, exchange messages about themselves; no socket can bind it.
pub(crate) const PROBE_PORT: u16 = 1;

/// The port of congestion maps, acknowledgements and pings; no socket can bind it.
pub(crate) const NO_PORT: u16 = 0;

/// The value by which a member, a process that is not the leader, announces a port to the leader. The member sends the
/// value in the extension header that otherwise carries the number of paths.
pub(crate) const HAS_PORT: u16 = 1;

/// A piece of a message's payload, of at most [`FRAGMENT`](polyverbs_wire::rds::FRAGMENT) bytes. The protocol moves
/// fragments and reads only those of congestion maps.
pub trait Fragment: Debug {
    /// Copies bytes from the beginning of the fragment; `into` is no longer than the fragment.
    fn copy_to(&self, into: &mut [u8]);

    /// The bytes of memory that become free when the fragment is dropped.
    fn held(&self) -> usize;
}

/// An RDMA operation or atomic on the peer's memory, in the form in which the driver posts it.
pub trait Operation: Debug {
    /// The number of send work requests that the operation takes on the QP.
    fn requests(&self) -> u32;

    /// Whether the completion of its last work request shows that the peer has executed the operation. False for a write
    /// over iWARP, which completes as soon as it was sent.
    fn is_shown_by_completion(&self) -> bool;
}

/// The payload of a message, divided into fragments.
pub type Fragments<F> = SmallVec<[F; 1]>;

/// Identifies a socket of a [`Host`](super::Host).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId(pub(crate) u32);

/// Identifies a path of a [`Host`](super::Host): the messages and the connection between the host and one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub(crate) u32);

impl PathId {
    /// The index of the path in tables; paths are numbered from 0.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The outcome of an RDMA operation or atomic, with the values of Linux's `RDS_RDMA_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum OperationStatus {
    /// The peer has executed the operation.
    Success = 0,
    /// The peer refused the operation, for example because of a wrong key.
    RemoteError = 1,
    /// The program cancelled the operation.
    Canceled = 2,
    /// The connection ended before the outcome of the operation was known. It may have been executed, so it is not retried.
    Dropped = 3,
    /// The operation failed for another reason.
    OtherError = 4,
}

/// An RDMA operation or atomic that is sent with a message.
#[derive(Debug)]
pub struct Attached<O> {
    /// The operation to post.
    pub operation: O,
    /// The key of the peer's memory that the operation uses. The message reports the use to the peer, which may then free
    /// the memory; `None` if there is nothing to report.
    pub rkey: Option<u32>,
    /// Whether the message is sent with the fence flag, so that it waits until the operation has completed.
    pub fence: bool,
    /// Whether no message is sent with the operation if the message would have no payload.
    pub is_silent: bool,
    /// The token by which the program identifies the operation.
    pub user_token: u64,
    /// When the program gets a status of the operation.
    pub notify: Notify,
}

/// When a program gets a status of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The program gets no status.
    Never,
    /// The program gets a status only if the operation fails.
    OnError,
    /// The program gets a status of every outcome.
    Always,
}

/// The origin of a message that this process forwards between a peer and another process. Its sender gets an
/// acknowledgement when the next process has acknowledged the forwarded message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) path: PathId,
    /// Counts the restarts of the peer: the value when the message arrived. After a restart, `sequence` means nothing to
    /// the peer.
    pub(crate) numbering: u32,
    pub(crate) sequence: u64,
    /// Bytes of memory that the message takes here until it is forwarded and acknowledged.
    pub(crate) held: usize,
}

/// A message that is queued for a peer or not acknowledged by it yet.
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
    /// The header extension that carries the sequence number that the peer gave a forwarded message.
    pub(crate) passed: Option<Extension>,
    pub(crate) sequence: u64,
    pub(crate) is_ack_required: bool,
    pub(crate) is_retransmitted: bool,
    /// The socket has cancelled the message. Work requests that were posted for it complete, but it is not retransmitted.
    pub(crate) is_canceled: bool,
    /// The number of the last work request that was posted for the message; 0 if none was posted on this connection.
    pub(crate) last_request: u64,
    /// The number of the last work request of the message's operation; 0 if the operation was not posted.
    pub(crate) operation_request: u64,
    /// The completion has shown that the peer has executed the message's operation, so that a retransmission does not
    /// repeat it.
    pub(crate) is_operation_done: bool,
}

impl<F, O> Message<F, O> {
    /// A message between these ports that has no payload and belongs to no socket.
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

    /// Whether the message has an operation that is not known to be carried out.
    pub(crate) fn is_operation_due(&self) -> bool {
        self.attached.is_some() && !self.is_operation_done
    }

    /// Whether the message is the answer to a ping.
    pub(crate) fn is_pong(&self) -> bool {
        self.source_port == NO_PORT && self.destination_port != PROBE_PORT && self.origin.is_none()
    }

    /// The number of sends that the header and payload of the message take: one per fragment. 0 if only an operation is
    /// posted and no message is sent.
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

/// A message of a peer of which all fragments have arrived.
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

/// Bytes of memory that a message takes while it waits to be received or forwarded: its fragments and the kept part of its
/// header.
pub(crate) fn held<F: Fragment>(fragments: &Fragments<F>) -> usize {
    size_of::<Arrived<F>>() + fragments.iter().map(F::held).sum::<usize>()
}

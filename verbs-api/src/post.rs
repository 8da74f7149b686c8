//! The checks of a request before a provider gets it, and the reasons for a refusal.

use std::{fmt, io};

use rustix::io::Errno;
use thiserror::Error;

use crate::capability::{BaselineGaps, Features, feature_names};
use crate::error::{ErrorKind, GapNames, kind_of_errno};
use crate::object_id::{ObjectId, ObjectKind};
use crate::qp_attributes::{QpState, QpVariant};
use crate::service::{Operations, QpType};

/// The rules that posting to a queue pair checks. They are fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpRules {
    /// The service type of the queue pair.
    pub qp_type: QpType,
    /// The variant of the service that an extension made of the queue pair; `None` for an ordinary one.
    pub variant: Option<&'static QpVariant>,
    /// The permitted operations of a queue pair that is a variant; empty otherwise. `operations` is empty for a variant, so
    /// that its requests take the slow path, which has further checks.
    pub special_operations: Operations,
    /// The protection domain of the queue pair.
    pub pd: ObjectId,
    /// The operations that the queue pair was created for.
    pub operations: Operations,
    /// The features granted to the program.
    pub features: Features,
    /// The baseline abilities that the device lacks, without those that the program was granted nevertheless.
    pub gaps: BaselineGaps,
    /// Most scatter/gather entries of a send-queue request other than a read.
    pub max_send_sge: u32,
    /// Most scatter/gather entries of an RDMA read.
    pub max_sge_rd: u32,
    /// Most scatter/gather entries of a receive.
    pub max_recv_sge: u32,
    /// Whether the queue pair takes its receives from a shared receive queue.
    pub has_srq: bool,
    /// Most bytes of inline data.
    pub max_inline_data: u32,
    /// Whether an RDMA read may fill private buffers, which grant peers no rights.
    pub reads_into_buffers: bool,
    /// Most bytes of one message. The provider checks that a datagram fits the path MTU.
    pub max_msg_sz: u64,
    /// Most pages, blocks or elements of one fast-register.
    pub max_fast_reg_page_list_len: u32,
    /// The page sizes that a fast-register may have: bit n stands for 2^n bytes.
    pub page_size_cap: u64,
}

impl QpRules {
    // Every request of a variant takes a closer look, so that those of others need not.
    pub(crate) fn of_variant(self, variant: &'static QpVariant) -> Self {
        Self {
            variant: Some(variant),
            special_operations: self.operations,
            operations: Operations::empty(),
            ..self
        }
    }
}

/// Why a request was refused. No part of it was posted, and the queue pair is unchanged.
///
/// ```
/// use verbs_api::{ErrorKind, wr::PostReason};
/// let reason = PostReason::TooManySges { max: 1, given: 2 };
/// assert_eq!(reason.kind(), ErrorKind::InvalidArgument);
/// assert_eq!(reason.to_string(), "2 scatter/gather entries, at most 1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostReason {
    /// A window or region that was made from another open device.
    #[error("the {0} belongs to another open device")]
    AnotherDevice(ObjectKind),
    /// The result or source of an atomic operation does not have eight bytes.
    #[error("an atomic operation needs 8 bytes, the data has {given}")]
    AtomicLength {
        /// How many bytes the scatter/gather list has.
        given: u64,
    },
    /// The device lacks a baseline operation.
    #[error("{}: this device has the gap {}", operation.names().join(", "), GapNames(*gaps))]
    BaselineGap {
        /// The operation that the device lacks.
        operation: Operations,
        /// The gaps in the device's attributes that say so.
        gaps: BaselineGaps,
    },
    /// The request has a datagram destination, but the queue pair is connected.
    #[error("a destination is for datagrams; this queue pair is connected")]
    DestinationOnConnected,
    /// The device was removed.
    #[error("the device was removed")]
    DeviceRemoved,
    /// The request breaks a rule of the extension that it belongs to.
    #[error("{extension}: {reason}")]
    Extension {
        /// Name of the extension.
        extension: &'static str,
        /// The rule of the extension that was broken.
        reason: &'static str,
    },
    /// The address handle belongs to another protection domain than the queue pair.
    #[error("the address handle belongs to another protection domain")]
    ForeignAh,
    /// The queue pair takes its receives from a shared receive queue, so none can be posted to it.
    #[error("this queue pair takes its receives from a shared receive queue: post there")]
    HasSrq,
    /// The request's access rights cannot be granted together.
    #[error("illegal rights: {0}")]
    IllegalAccess(&'static str),
    /// The request has inline data, but is neither a send nor a write.
    #[error("inline bytes are for sends and writes")]
    InlineNotAllowed,
    /// The request has more bytes of inline data than the queue pair was created for.
    #[error("{given} inline bytes, at most {max} (max_inline_data)")]
    InlineTooLong {
        /// The largest number of inline bytes allowed.
        max: u32,
        /// The number of inline bytes given.
        given: usize,
    },
    /// The queue pair, or an object that the request names, was destroyed.
    #[error("the handle was destroyed")]
    InvalidHandle,
    /// The queue pair is in a state in which it does not accept the request.
    #[error("not allowed in state {0}")]
    InvalidState(QpState),
    /// The message is longer than the device, or for a datagram the path MTU, allows.
    #[error("a message of {given} bytes, at most {max}")]
    MessageTooLong {
        /// The largest number of bytes that a message may have.
        max: u64,
        /// The number of bytes of the message.
        given: u64,
    },
    /// A datagram has no destination.
    #[error("a datagram needs a destination")]
    NoDestination,
    /// The queue pair has no receive queue.
    #[error("this queue pair has no receive queue")]
    NoReceives,
    /// A fast-register has no page list.
    #[error("a fast-register needs a page list")]
    NoPages,
    /// A bind has no window.
    #[error("a bind needs a window")]
    NoWindow,
    /// The operation needs features that the program was not granted.
    #[error(
        "{} needs {}, which the device lacks or the program did not ask for (Requirements::needs)",
        operation.names().join(", "),
        feature_names(*missing).join(", ")
    )]
    OperationNeeds {
        /// The operation that was posted.
        operation: Operations,
        /// The features that the operation needs and the program lacks.
        missing: Features,
    },
    /// The queue pair was not created for this operation.
    #[error(
        "the queue pair was not created for {}: QpOptions::operations adds it, where the service has it",
        missing.names().join(", ")
    )]
    OperationNotEnabled {
        /// The operation that the queue pair was not created for.
        missing: Operations,
    },
    /// The operating system, or the driver of the device, refused the request with an error number.
    #[error("the device refused it: {}", io::Error::from_raw_os_error(*errno))]
    Os {
        /// The error number (`errno`) of the refusal.
        errno: i32,
    },
    /// A read into a buffer of a [`BufferPool`](crate::BufferPool), where the device has
    /// [`BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE`](crate::capability::BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE).
    #[error(
        "this device reads only into memory that grants REMOTE_WRITE, and a private buffer grants peers nothing"
    )]
    PrivateReadSink,
    /// The page size of a page list is not one that the device supports.
    #[error(
        "pages of {given} bytes; the device has those of the bits {supported:#x} (page_size_cap)"
    )]
    PageSize {
        /// The page size of the list in bytes.
        given: u64,
        /// The page sizes that the device supports: bit n stands for 2^n bytes.
        supported: u64,
    },
    /// The queue contains as many outstanding requests as it was created for.
    #[error("the queue is full ({max} requests)")]
    QueueFull {
        /// The largest number of outstanding requests.
        max: u32,
    },
    /// A fast-register has no bytes, or more than its page list maps.
    #[error("{given} bytes are to be registered, the list maps {mapped}")]
    RegionLength {
        /// How many bytes the page list maps.
        mapped: u64,
        /// How many bytes the fast-register has.
        given: u32,
    },
    /// The page list is longer than the device or the key allows.
    #[error("a page list of {given} entries, at most {max} (max_fast_reg_page_list_len)")]
    TooManyPages {
        /// The largest number of page list entries allowed.
        max: u32,
        /// The number of entries of the page list.
        given: u32,
    },
    /// The request has more scatter/gather entries than the queue was created for.
    #[error("{given} scatter/gather entries, at most {max}")]
    TooManySges {
        /// The largest number of scatter/gather entries allowed.
        max: u32,
        /// The number of scatter/gather entries given.
        given: usize,
    },
    /// The request uses a feature that the program was not granted.
    #[error("needs {}, which the device lacks or the program did not ask for (Requirements::needs)", feature_names(*missing).join(", "))]
    Unsupported {
        /// The features that the program was not granted.
        missing: Features,
    },
    /// The window is of type 2, but [`Qp::bind_mw`](crate::Qp::bind_mw) binds only those of type 1.
    #[error("a window of type 2 is bound by a posted request, bind_mw is for those of type 1")]
    WindowType,
}

impl PostReason {
    /// The operating system has not enough memory to post the request.
    pub const NO_MEMORY: Self = Self::Os {
        errno: Errno::NOMEM.raw_os_error(),
    };

    /// Returns the kind of the refusal.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::DeviceRemoved => ErrorKind::DeviceRemoved,
            Self::InvalidHandle => ErrorKind::InvalidHandle,
            Self::Os { errno } => kind_of_errno(*errno),
            Self::QueueFull { .. } => ErrorKind::Resources,
            Self::BaselineGap { .. }
            | Self::OperationNeeds { .. }
            | Self::OperationNotEnabled { .. }
            | Self::PrivateReadSink
            | Self::Unsupported { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::InvalidArgument,
        }
    }
}

/// A request was not posted. If it was part of a batch, the requests before it were posted, and it is the first of those
/// that remain in the batch.
///
/// The displayed text counts from one: the request at index 2 is "request 3 of the batch".
///
/// ```no_run
/// # fn example(qp: &verbs_api::Qp, cq: &verbs_api::Cq, batch: &mut verbs_api::Batch<'_>)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::{ErrorKind, PostError};
/// while let Err(PostError { index, reason }) = qp.post(batch) {
///     println!("{index} were posted, {} remain: {reason}", batch.len());
///     if reason.kind() != ErrorKind::Resources {
///         batch.remove_first(); // this one will never be posted
///         continue;
///     }
///     cq.next().wait()?; // the queue was full: now a request has completed
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// How many requests of the batch were posted before it; 0 for a request that was posted by itself.
    pub index: usize,
    /// Why the request was refused.
    pub reason: PostReason,
}

impl PostError {
    /// Returns the kind of the refusal.
    pub const fn kind(&self) -> ErrorKind {
        self.reason.kind()
    }
}

impl From<PostReason> for PostError {
    fn from(reason: PostReason) -> Self {
        Self { index: 0, reason }
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, reason } = self;
        match index {
            0 => write!(f, "refused: {reason}"),
            _ => write!(
                f,
                "request {} of the batch was refused, those before it were posted: {reason}",
                index + 1
            ),
        }
    }
}

impl std::error::Error for PostError {}

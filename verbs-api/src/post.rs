//! What posting checks before a provider sees a request, and how it refuses.

use std::{fmt, io};

use rustix::io::Errno;
use thiserror::Error;

use crate::capability::{BaselineGaps, Features, feature_names};
use crate::error::{ErrorKind, GapNames, kind_of_errno};
use crate::object_id::{ObjectId, ObjectKind};
use crate::qp_attributes::{QpState, QpVariant};
use crate::service::{Operations, QpType};

/// What a queue pair allows: fixed when it was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpRules {
    /// Service.
    pub qp_type: QpType,
    /// The variant of the service that an extension made of it.
    pub variant: Option<&'static QpVariant>,
    /// Operations of a variant, whose requests take a closer look; `operations` is empty then.
    pub special_operations: Operations,
    /// Its protection domain.
    pub pd: ObjectId,
    /// Operations that it was created for.
    pub operations: Operations,
    /// Features granted to the program.
    pub features: Features,
    /// What the device lacks of the baseline and the program was not granted.
    pub gaps: BaselineGaps,
    /// Entries of a request other than a read.
    pub max_send_sge: u32,
    /// Entries of a read.
    pub max_sge_rd: u32,
    /// Entries of a receive.
    pub max_recv_sge: u32,
    /// Whether receives come from a shared queue.
    pub has_srq: bool,
    /// Inline bytes.
    pub max_inline_data: u32,
    /// Whether a read may fill private buffers: what grants peers nothing.
    pub reads_into_buffers: bool,
    /// Bytes of a message; the path MTU for datagrams is checked by the provider.
    pub max_msg_sz: u64,
    /// Pages, blocks or elements of a fast-register.
    pub max_fast_reg_page_list_len: u32,
    /// Page sizes of a fast-register: bit n stands for 2^n bytes.
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

/// Why a request was refused. Nothing of it was posted, and the queue pair is as it was.
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
    /// The result or source of an atomic operation has eight bytes.
    #[error("an atomic operation needs 8 bytes, the data has {given}")]
    AtomicLength {
        /// Bytes given.
        given: u64,
    },
    /// The device lacks the operation: its gaps say so.
    #[error("{}: this device has the gap {}", operation.names().join(", "), GapNames(*gaps))]
    BaselineGap {
        /// The operation.
        operation: Operations,
        /// The gaps that close it.
        gaps: BaselineGaps,
    },
    /// A datagram destination on a connected queue pair.
    #[error("a destination is for datagrams; this queue pair is connected")]
    DestinationOnConnected,
    /// The device was removed.
    #[error("the device was removed")]
    DeviceRemoved,
    /// A rule of the extension that the request belongs to.
    #[error("{extension}: {reason}")]
    Extension {
        /// The extension.
        extension: &'static str,
        /// The rule.
        reason: &'static str,
    },
    /// The address handle belongs to another protection domain.
    #[error("the address handle belongs to another protection domain")]
    ForeignAh,
    /// The queue pair has a shared receive queue.
    #[error("this queue pair takes its receives from a shared receive queue: post there")]
    HasSrq,
    /// Rights that cannot be granted together.
    #[error("illegal rights: {0}")]
    IllegalAccess(&'static str),
    /// Inline bytes are for sends and writes.
    #[error("inline bytes are for sends and writes")]
    InlineNotAllowed,
    /// More inline bytes than the queue pair was created for.
    #[error("{given} inline bytes, at most {max} (max_inline_data)")]
    InlineTooLong {
        /// Most allowed.
        max: u32,
        /// Bytes given.
        given: usize,
    },
    /// The handle was destroyed.
    #[error("the handle was destroyed")]
    InvalidHandle,
    /// Not in this state.
    #[error("not allowed in state {0}")]
    InvalidState(QpState),
    /// The message is longer than the device or, for datagrams, the path carries.
    #[error("a message of {given} bytes, at most {max}")]
    MessageTooLong {
        /// Most allowed.
        max: u64,
        /// Bytes given.
        given: u64,
    },
    /// A datagram without destination.
    #[error("a datagram needs a destination")]
    NoDestination,
    /// The queue pair has no receive queue.
    #[error("this queue pair has no receive queue")]
    NoReceives,
    /// A fast-register without pages.
    #[error("a fast-register needs a page list")]
    NoPages,
    /// A bind without a window.
    #[error("a bind needs a window")]
    NoWindow,
    /// The operation needs features that the program was not granted.
    #[error(
        "{} needs {}, which the device lacks or the program did not ask for (Requirements::needs)",
        operation.names().join(", "),
        feature_names(*missing).join(", ")
    )]
    OperationNeeds {
        /// The operation.
        operation: Operations,
        /// The features.
        missing: Features,
    },
    /// The queue pair was not created for this operation.
    #[error(
        "the queue pair was not created for {}: QpOptions::operations adds it, where the service has it",
        missing.names().join(", ")
    )]
    OperationNotEnabled {
        /// The operation.
        missing: Operations,
    },
    /// The operating system, or the driver of the device, refused, and gave this error number.
    #[error("the device refused it: {}", io::Error::from_raw_os_error(*errno))]
    Os {
        /// The error number.
        errno: i32,
    },
    /// A read into a buffer of a [`BufferPool`](crate::BufferPool), where the device has
    /// [`BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE`](crate::capability::BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE).
    #[error(
        "this device reads only into memory that grants REMOTE_WRITE, and a private buffer grants peers nothing"
    )]
    PrivateReadSink,
    /// A page list of pages that the device does not have.
    #[error(
        "pages of {given} bytes; the device has those of the bits {supported:#x} (page_size_cap)"
    )]
    PageSize {
        /// Bytes of a page.
        given: u64,
        /// Sizes that the device has: bit n stands for 2^n bytes.
        supported: u64,
    },
    /// The queue holds as many requests as it was created for.
    #[error("the queue is full ({max} requests)")]
    QueueFull {
        /// Requests it holds.
        max: u32,
    },
    /// A fast-register of no bytes or of more than the list maps.
    #[error("{given} bytes are to be registered, the list maps {mapped}")]
    RegionLength {
        /// Bytes mapped.
        mapped: u64,
        /// Bytes given.
        given: u32,
    },
    /// The page list is longer than the device or the key allows.
    #[error("a page list of {given} entries, at most {max} (max_fast_reg_page_list_len)")]
    TooManyPages {
        /// Most allowed.
        max: u32,
        /// Entries given.
        given: u32,
    },
    /// More scatter/gather entries than the queue was created for.
    #[error("{given} scatter/gather entries, at most {max}")]
    TooManySges {
        /// Most allowed.
        max: u32,
        /// Entries given.
        given: usize,
    },
    /// The program was not granted a feature that the request uses.
    #[error("needs {}, which the device lacks or the program did not ask for (Requirements::needs)", feature_names(*missing).join(", "))]
    Unsupported {
        /// The features.
        missing: Features,
    },
    /// A window of type 2 where one of type 1 is bound.
    #[error("a window of type 2 is bound by a posted request, bind_mw is for those of type 1")]
    WindowType,
}

impl PostReason {
    /// The operating system has no memory for it.
    pub const NO_MEMORY: Self = Self::Os {
        errno: Errno::NOMEM.raw_os_error(),
    };

    /// The kind of the refusal.
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

/// A request was not posted. Of a batch, those before it were, and it is now the first of what remains.
///
/// As text it counts from one: the entry at index 2 is "request 3 of the batch".
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
    /// Requests posted before it; 0 for one that was posted by itself.
    pub index: usize,
    /// Why it was refused.
    pub reason: PostReason,
}

impl PostError {
    /// The kind of the refusal.
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

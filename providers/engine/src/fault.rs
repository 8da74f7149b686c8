//! The one internal error of accesses and operations; each transport maps it to its own codes.

use verbs_api::WcStatus;

/// Why an operation on registered memory was refused. If there are several reasons, the first one found is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// There is no such key: its index is unused, its low byte is stale, or it opens no memory at present.
    Key,
    /// The key belongs to a protection domain other than the queue pair's.
    Pd,
    /// The window is bound to another queue pair, or the key cannot be used through this one.
    NotAssociated,
    /// The key lacks a right that the access needs.
    Access,
    /// The access reaches outside the region or window.
    Bounds,
    /// Address plus length passes the end of the address space.
    Wrap,
    /// The operand of an atomic is not aligned to 8 bytes.
    Misaligned,
    /// The key is of a kind that cannot be invalidated, or windows are bound to its region.
    CannotInvalidate,
    /// The operation is not legal on this object in its present state.
    Operation,
    /// The window cannot be bound as the request asks.
    Bind,
    /// The message is longer than the receive posted for it.
    Length,
    /// The access flags of the queue pair do not permit the operation, whatever the key permits.
    NotPermitted,
    /// The device does not know the operation, or the request is malformed.
    UnknownOperation,
}

impl Fault {
    /// Returns the completion status of a request that its own device has refused, because of its local memory or its
    /// operation.
    pub const fn local_status(self) -> WcStatus {
        match self {
            Self::Operation
            | Self::CannotInvalidate
            | Self::Misaligned
            | Self::NotPermitted
            | Self::UnknownOperation => WcStatus::LocQpOpErr,
            Self::Bind => WcStatus::MwBindErr,
            Self::Length => WcStatus::LocLenErr,
            _ => WcStatus::LocProtErr,
        }
    }
}

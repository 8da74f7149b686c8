//! The one internal error of accesses and operations; each transport maps it to its own codes.

use verbs_api::WcStatus;

/// Why an operation on registered memory was refused. The first reason that is found is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// No such key, a stale key byte, or a key in the free state.
    Key,
    /// The key belongs to another protection domain.
    Pd,
    /// The window belongs to another queue pair, or the key cannot be used through this one.
    NotAssociated,
    /// A right is missing.
    Access,
    /// The access reaches outside the region or window.
    Bounds,
    /// Address plus length passes the end of the address space.
    Wrap,
    /// The operand is not aligned to 8 bytes.
    Misaligned,
    /// The key cannot be invalidated.
    CannotInvalidate,
    /// The operation is not legal on this object in this state.
    Operation,
    /// The window cannot be bound this way.
    Bind,
    /// The message is longer than the receive posted for it.
    Length,
    /// The queue pair does not permit the operation, whatever the key permits.
    NotPermitted,
    /// The operation is unknown or malformed.
    UnknownOperation,
}

impl Fault {
    /// The completion status of a request whose own local memory or operation was refused.
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

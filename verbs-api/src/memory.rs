//! Registered memory.
//!
//! *Exposed* memory ([`Memory`]) may be written by a peer at any moment, so no safe code can make a slice over it: it is
//! read and written by copying. *Private* memory ([`BufferPool`]) has local rights only and is cut into [`Buffer`]s that
//! belong to the device while they are posted, and that their completion returns; while the program holds one it is an
//! ordinary `&mut [u8]`.
//!
//! Every access of either kind goes through [`copy`], the one module that touches such memory.

pub use crate::mem::{
    Buffer, BufferPool, Buffers, Loan, Mapped, Memory, MemoryRange, MwType, OutOfMemory,
    OutOfRange, PageList, PageListError, Span, copy, make_resident,
};
pub use crate::mr::MrReregister;

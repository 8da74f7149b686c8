//! Registered memory.
//!
//! *Exposed* memory ([`Memory`]) may be written by a peer at any moment, so no safe code can make a slice over it: it is
//! read and written by copying. *Private* memory ([`BufferPool`]) has local rights only and is cut into [`Buffer`]s
//! that are handed over when posted and come back with their completion; while the program holds one it is an ordinary
//! `&mut [u8]`.
//!
//! Every access of either kind goes through [`copy`], the one module that touches such memory.

mod allocation;
pub mod copy;
mod exposed;
mod loan;
mod page_list;
mod private;
mod span;

pub(crate) use allocation::Allocation;
pub use exposed::{Memory, MemoryRange, OutOfMemory, OutOfRange};
pub use loan::Loan;
pub(crate) use loan::{lend, take_back, take_back_into};
pub use page_list::{Mapped, PageList, PageListError};
pub use private::{Buffer, BufferPool, Buffers};
pub use span::Span;

pub use crate::mr::MrReregister;
pub use crate::provider::MwType;

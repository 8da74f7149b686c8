//! Registered memory, and its keys and entries: see [`memory`](crate::memory), where programs find it.

mod allocation;
pub mod copy;
mod exposed;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod faults;
mod loan;
mod page_list;
mod private;
mod region;
mod resident;
mod sge;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod signals;
mod span;
mod window;

pub(crate) use allocation::Allocation;
pub use exposed::{Memory, MemoryRange, OutOfMemory, OutOfRange};
pub use loan::Loan;
pub(crate) use loan::{lend, take_back, take_back_into};
pub use page_list::{Mapped, PageList, PageListError};
pub use private::{Buffer, BufferPool, Buffers};
pub use region::RegionMemory;
pub use resident::make_resident;
pub use sge::Sge;
pub use span::Span;
pub use window::MwType;

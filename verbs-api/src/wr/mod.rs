//! Typed work requests: one type per operation, and one enum over them.
//!
//! Import the module and name its types with it, `wr::Send`: three of them are called like traits of the prelude or of
//! `std::io`.

mod batch;
pub(crate) mod data;
mod receive;
pub(crate) mod requests;

pub use crate::mem::Sge;
pub use crate::post::PostReason;
pub use crate::service::Operations;
pub use batch::Batch;
pub use data::{Data, RemoteAddress, UdDestination};
pub use receive::{ReceiveBatch, ReceiveRequest};
pub use requests::{
    AtomicWrite, BindWindow, CompareSwap, ExtensionRequest, FastRegister, FetchAdd, Flush,
    LocalInvalidate, Read, ReadWithInvalidate, Send, SendFlags, SendWithImmediate,
    SendWithInvalidate, WindowRegion, WorkRequest, Write, WriteWithImmediate,
};

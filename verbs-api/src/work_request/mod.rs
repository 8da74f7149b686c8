//! Typed work requests: one type per operation, one enum over them, one trait.

mod batch;
mod data;
mod receive;
mod requests;

pub use batch::Batch;
pub use data::{Data, RemoteAddress, Sge, Sges, UdDestination};
pub use receive::{ReceiveBatch, ReceiveRequest};
pub(crate) use requests::Special;
pub use requests::*;

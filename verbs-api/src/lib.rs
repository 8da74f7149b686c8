//! Transport-neutral RDMA verbs: a capability model, typed work requests, safe objects, and the contract of providers.
//!
//! A program states [`Requirements`] and [opens](open) a device that meets them. From the [`Context`] it makes
//! protection domains, queues and queue pairs with *control verbs*, which are started and then waited for or awaited;
//! it posts typed work requests and polls completions with direct calls.
#![deny(unsafe_code)]

mod access;
mod capability;
mod completion;
mod error;
mod event;
mod ids;
pub mod memory;
pub mod objects;
mod post;
pub mod provider;
pub mod qp;
mod work_request;

pub use access::Access;
pub use capability::*;
pub use completion::*;
pub use error::*;
pub use event::*;
pub use ids::*;
pub use memory::{Buffer, BufferPool, Buffers, Mapped, Memory, MemoryRange, OutOfRange, PageList, PageListError};
pub use post::*;
pub use work_request::*;

//! Transport-neutral RDMA verbs: a capability model, typed work requests, safe objects, and the contract of providers.
//!
//! A program states [`Requirements`] and [opens](open) a device that meets them. From the [`Context`] it makes
//! protection domains, queues and queue pairs with *control verbs*, which are started and then waited for or awaited;
//! it posts typed work requests and polls completions with direct calls.
#![deny(unsafe_code)]

mod access;
mod agent;
mod ah;
mod as_any;
pub mod capability;
mod channel;
pub mod completion;
mod context;
mod contract;
mod control;
mod counter;
mod counts;
mod cq;
mod device;
mod error;
pub mod event;
mod event_type;
pub mod extension;
mod fork;
pub mod ids;
mod lifecycle;
mod lock;
mod mad;
mod mem;
pub mod memory;
mod mr;
mod mw;
mod notifier;
mod object_id;
pub mod objects;
mod operation;
mod pd;
pub mod portable;
mod post;
pub mod probe;
pub mod provider;
pub mod qp;
mod qp_attributes;
mod random;
mod receive;
mod registry;
mod service;
mod spin;
mod srq;
mod transport;
mod version;
mod wc;
pub mod wr;

pub use access::Access;
pub use ah::Ah;
pub use capability::{Features, Limit, Requirements};
pub use context::Context;
pub use control::Started;
pub use cq::{Cq, CqOptions};
pub use device::{Device, OpenError};
pub use error::{ArgumentReason, ErrorKind, VerbError};
pub use ids::RKey;
pub use lifecycle::DestroyError::{self, Busy};
pub use mem::{Buffer, BufferPool, Memory, PageList, Sge};
pub use mr::{Mr, MrKey, MrOptions};
pub use mw::Mw;
pub use pd::Pd;
pub use post::PostError;
pub use qp::{PathOptions, Qp, QpOptions, connect_pair};
pub use qp_attributes::QpEndpoint;
pub use registry::{Registry, devices, open, registry};
pub use service::Operations;
pub use srq::{Srq, SrqOptions};
pub use transport::Transport;
pub use wc::{Completion, WcStatus};
pub use wr::{Batch, RemoteAddress};

#[doc(hidden)]
pub use inventory;

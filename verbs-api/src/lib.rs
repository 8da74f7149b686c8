//! Transport-neutral RDMA verbs: a capability model, typed work requests, safe objects, and the contract of providers.
//!
//! A program states [`Requirements`] and [opens](open) a device that meets them. From the [`Context`] it makes
//! protection domains, queues and queue pairs with *control verbs*, which are started and then waited for or awaited;
//! it posts typed work requests and polls completions with direct calls.
#![deny(unsafe_code)]

mod access;
mod ah;

mod capability;
pub mod carrier;
mod channel;
mod completion;
mod context;
mod control;
mod cq;
mod error;
mod event;
mod extension;

mod ids;
pub mod memory;
mod mr;
mod mw;
mod notifier;
pub mod objects;
mod pd;
mod portable;
mod post;
pub mod probe;
pub mod provider;
pub mod qp;
mod receive;
mod registry;
mod srq;
mod work_request;

pub use access::Access;
pub use ah::Ah;

pub use capability::*;
pub use channel::{CompletionChannel, CqEvent, NextCqEvent};
pub use completion::*;
pub use context::{AsyncEvent, Context, DeviceId, NextEvent, Outcome};
pub use control::{Completer, Started, handler_scope, in_handler, run_handler};
pub use cq::{Cq, CqOptions, NextCompletion};
pub use error::*;
pub use event::*;
pub use extension::{
    Extension, ExtensionDescriptor, ExtensionOperation, Extensions, FeatureInfo, Held,
    LinkedExtension, OperationData, Part, QpExtension, QpShape, QpVariant, RequestAttribute,
    RequestAttributeKind, Unsupported, WireOpcodes, extension_id,
};
pub use ids::*;
pub use memory::{
    Buffer, BufferPool, Buffers, Mapped, Memory, MemoryRange, OutOfRange, PageList, PageListError,
};
pub use mr::{Mr, MrKey, MrOptions, MrReregister};
pub use mw::Mw;
pub use objects::DestroyError::{self, Busy};
pub use pd::Pd;
pub use portable::{
    Lowered, Plan, PlanStep, Portable, ReadAndInvalidate, ReadSinkAccess, RegisterForRemoteAccess,
    RemoteAccess, Sink, read_sink_access,
};
pub use post::*;
pub use provider::MwType;
pub use qp::{ConnectOptions, Qp, QpEndpoint, QpOptions, Rejected, connect_pair};
pub use receive::RefusedReceive;
pub use registry::{
    Device, LinkedProvider, OpenError, Registry, RegistryError, devices, open, registry,
};
pub use srq::{Srq, SrqOptions, SrqStatus};
pub use work_request::*;

#[doc(hidden)]
pub use inventory;

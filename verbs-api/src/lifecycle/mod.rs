//! The lifecycle of objects: identities, holders, events, removal of the device, deferred destruction.
//!
//! Each object has one `Node`: its state, its holders, the control requests in flight on it, and the events that the program
//! has not acknowledged yet. Handles share the object; children hold their parents, so that an object whose last handle is
//! dropped while it is in use ends after its holders, and nothing is ever destroyed by cascade.
//!
//! Nothing here depends on the kinds of objects, or on what a provider does for them. Read next: `node`, then `object`.

mod builder;
mod context;
mod destroy;
mod events;
mod identity;
mod node;
mod object;
mod slab;
mod table;

pub(crate) use builder::ObjectBuilder;
pub use context::Outcome;
pub(crate) use context::{ContextCore, ContextShared, ProviderPart};
pub use destroy::DestroyError;
pub(crate) use destroy::{Handle, destroy};
pub use events::AsyncEvent;
pub(crate) use identity::by_identity;
pub(crate) use node::{Ack, AnyObject, Hold};
pub(crate) use object::{Extra, Object, ObjectBase, Ops};
pub(crate) use table::Reserved;

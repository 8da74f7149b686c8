//! The books of the objects: identities, who uses whom, and how an object ends.
//!
//! Each object has one `Node`: its state, its holders, the control requests in flight
//! on it, and the events that the program was given and has not acknowledged. Handles share the
//! object; children hold their parents, so that an object whose last handle is dropped while it is in
//! use ends after its holders, and nothing is ever destroyed by cascade.
//!
//! Read next: `node`, then `object`.

mod destroy;
mod identity;
pub(crate) mod node;
mod object;
mod slab;
mod table;

pub use crate::object_id::{Holder, ObjectId, ObjectKind};
pub use destroy::DestroyError;
pub(crate) use destroy::{Handle, destroy};
pub(crate) use node::{Ack, AnyObject, Birth, Hold, Ticket, User};
pub(crate) use object::{Deferred, Extra, Object, Ops};
pub(crate) use slab::Slab;
pub(crate) use table::{Reserved, Table};

pub use crate::ah::Ah;
pub use crate::context::DeviceId;

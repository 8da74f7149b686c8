//! Identities of objects, and the holders that keep them in use.

pub use crate::ah::Ah;
pub use crate::context::DeviceId;
pub use crate::lifecycle::DestroyError;
pub use crate::object_id::{Holder, ObjectId, ObjectKind};

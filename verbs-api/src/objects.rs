//! What objects are told apart by, and who uses them.

pub use crate::ah::Ah;
pub use crate::context::DeviceId;
pub use crate::lifecycle::DestroyError;
pub use crate::object_id::{Holder, ObjectId, ObjectKind};

//! The contract of extensions: how a crate describes an extension, and the handle by which programs use it.
//!
//! A public `static` [`ExtensionDescriptor`] lists everything that an extension adds. [`Extensions`] takes descriptors
//! in, all of one or nothing; a provider gets them when it is asked for its devices.

mod descriptor;
mod extensions;
mod handle;

pub use crate::capability::{FeatureInfo, Unsupported};
pub use crate::contract::{QpExtension, QpShape, SrqExtension};
pub use crate::operation::{
    ExtensionOperation, Held, OperationData, RequestAttribute, RequestAttributeKind, extension_id,
};
pub use crate::qp_attributes::QpVariant;
#[doc(inline)]
pub use crate::{__feature as feature, __link_extension as link_extension};
pub use descriptor::{ExtensionDescriptor, Part, WireOpcodes};
pub use extensions::{Extensions, LinkedExtension};
pub use handle::Extension;

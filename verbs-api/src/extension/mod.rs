//! The contract of extensions: what a crate tells about itself, and what its programs hold.
//!
//! A public `static` [`ExtensionDescriptor`] lists everything that an extension adds. [`Extensions`] takes descriptors
//! in, all of one or nothing; a provider gets them when it is asked for its devices.

mod attribute;
mod descriptor;
mod extensions;
mod handle;
mod numbers;
mod operation;
mod queue_pair;
mod shared_receive_queue;

#[doc(inline)]
pub use crate::{__feature as feature, __link_extension as link_extension};
pub use attribute::{RequestAttribute, RequestAttributeKind};
pub use descriptor::{ExtensionDescriptor, FeatureInfo, Part, WireOpcodes, extension_id};
pub use extensions::{Extensions, LinkedExtension};
pub use handle::{Extension, Unsupported};
pub(crate) use operation::of_opcode;
pub use operation::{ExtensionOperation, Held, OperationData};
pub use queue_pair::{QpExtension, QpShape, QpVariant};
pub use shared_receive_queue::SrqExtension;

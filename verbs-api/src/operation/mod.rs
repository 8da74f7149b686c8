//! What extensions add to requests, with the numbers that this process assigns: operations, attributes, opcodes of
//! completions.

mod attribute;
mod extension;
mod numbers;
mod opcode;

pub use attribute::{RequestAttribute, RequestAttributeKind};
pub use extension::{ExtensionOperation, Held, OperationData, extension_id};
pub use opcode::WcOpcode;

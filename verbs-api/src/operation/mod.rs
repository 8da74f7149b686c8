//! What extensions add to requests, by the numbers that this process gives it: operations, attributes, opcodes of completions.

mod attribute;
mod extension;
mod numbers;
mod opcode;

pub use attribute::{RequestAttribute, RequestAttributeKind};
pub use extension::{ExtensionOperation, Held, OperationData, extension_id};
pub use opcode::WcOpcode;

//! Work completions, and waiting for them.

pub use crate::counter::CompletionCounter;
pub use crate::counts::{CountedOperations, CountedUnit};
pub use crate::cq::{Completions, NextBatch, NextCompletion};
pub use crate::operation::WcOpcode;
pub use crate::qp::completions::QpCompletions;
pub use crate::qp::submit::{SubmitError, Submitted};
pub use crate::wc::{Completion, CompletionError, Notify, WcFlags, WcStatus};

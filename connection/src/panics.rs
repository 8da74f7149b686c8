//! Panics of a program's handlers.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Keeps the first panic of several handlers that run one after the other, so that all of them run.
#[derive(Default)]
pub(crate) struct FirstPanic(Option<Box<dyn Any + Send>>);

impl FirstPanic {
    /// Runs `f`, and keeps its panic if it is the first.
    pub(crate) fn catch(&mut self, f: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(f)) {
            self.0.get_or_insert(payload);
        }
    }

    /// Resumes the first panic, if there was one. Call it with no lock held.
    pub(crate) fn resume(self) {
        if let Some(payload) = self.0 {
            resume_unwind(payload);
        }
    }
}

//! What a program's handlers do not take along when they panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The first panic of several that ran one after the other.
#[derive(Default)]
pub(crate) struct FirstPanic(Option<Box<dyn Any + Send>>);

impl FirstPanic {
    /// Runs `f`; its panic is kept.
    pub(crate) fn unless(&mut self, f: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(f)) {
            self.0.get_or_insert(payload);
        }
    }

    /// Has the panic go on, where there was one. Call it with no lock held.
    pub(crate) fn go_on(self) {
        if let Some(payload) = self.0 {
            resume_unwind(payload);
        }
    }
}

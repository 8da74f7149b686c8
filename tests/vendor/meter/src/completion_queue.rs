//! Completion queues: polled completions are counted.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use delegate::delegate;
use verbs_api::VerbError;
use verbs_api::completion::{Completion, Notify};
use verbs_api::provider::{CqOps, Reply};

use crate::meter::Meter;

pub(crate) struct CompletionQueue {
    pub(crate) behind: Arc<dyn CqOps>,
    pub(crate) meter: Arc<Meter>,
}

impl CqOps for CompletionQueue {
    fn poll(&self, completions: &mut [Completion]) -> Result<usize, VerbError> {
        let polled = self.behind.poll(completions)?;
        self.meter.completions(polled);
        Ok(polled)
    }

    delegate! {
        to self.behind {
            fn cqe(&self) -> u32;
            fn arm(&self, notify: Notify) -> Result<bool, VerbError>;
            fn fd(&self) -> Option<BorrowedFd<'_>>;
            fn drain(&self);
            fn resize(&self, cqe: u32, reply: Reply<u32>);
            fn destroy(&self, reply: Reply<()>);
        }
    }
}

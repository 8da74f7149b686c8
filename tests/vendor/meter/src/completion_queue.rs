//! Completion queues: polled completions are counted.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use verbs_api::VerbError;
use verbs_api::completion::{Completion, Notify};
use verbs_api::provider::{CqOps, Reply};

use crate::meter::Meter;

pub(crate) struct CompletionQueue {
    pub(crate) behind: Arc<dyn CqOps>,
    pub(crate) meter: Arc<Meter>,
}

impl CqOps for CompletionQueue {
    fn cqe(&self) -> u32 {
        self.behind.cqe()
    }

    fn poll(&self, completions: &mut [Completion]) -> Result<usize, VerbError> {
        let polled = self.behind.poll(completions)?;
        self.meter.completions(polled);
        Ok(polled)
    }

    fn arm(&self, notify: Notify) -> Result<bool, VerbError> {
        self.behind.arm(notify)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.behind.fd()
    }

    fn drain(&self) {
        self.behind.drain();
    }

    fn resize(&self, cqe: u32, reply: Reply<u32>) {
        self.behind.resize(cqe, reply);
    }

    fn destroy(&self, reply: Reply<()>) {
        self.behind.destroy(reply);
    }
}

//! Completion queues: what is polled is counted.

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

    fn arm(&self, notify: Notify) -> bool {
        self.behind.arm(notify)
    }

    fn resize(&self, cqe: u32, reply: Reply<u32>) {
        self.behind.resize(cqe, reply);
    }

    fn destroy(&self, reply: Reply<()>) {
        self.behind.destroy(reply);
    }
}

//! Shared receive queues: posted receives are counted.

use std::sync::Arc;

use delegate::delegate;
use verbs_api::VerbError;
use verbs_api::provider::{Reply, SrqOps};
use verbs_api::wr::ReceiveRequest;

use crate::meter::{Meter, Posted};

pub(crate) struct ReceiveQueue {
    pub(crate) behind: Arc<dyn SrqOps>,
    pub(crate) meter: Arc<Meter>,
}

impl SrqOps for ReceiveQueue {
    fn post(&self, requests: &[ReceiveRequest<'_>]) -> Posted {
        let outcome = self.behind.post(requests);
        self.meter.receives(requests.len(), outcome)
    }

    delegate! {
        to self.behind {
            fn modify(&self, srq_limit: Option<u32>, max_wr: Option<u32>, reply: Reply<()>);
            fn max_sge(&self) -> u32;
            fn srq_num(&self) -> Option<u32>;
            fn query(&self) -> Result<(u32, u32), VerbError>;
            fn posted(&self) -> Option<u32>;
            fn destroy(&self, reply: Reply<()>);
        }
    }
}

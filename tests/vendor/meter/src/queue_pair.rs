//! Queue pairs: posted requests are counted, and destroying a queue pair frees its place in the quota.

use std::sync::Arc;

use delegate::delegate;
use verbs_api::ids::{Gid, Psn, Qpn};
use verbs_api::provider::{AttachedCounts, PostOps, QpOps, Reply};
use verbs_api::qp::{QpAttributes, QpCap, QpCounters, QpStatus};
use verbs_api::wr::{BindWindow, PostReason, ReceiveRequest, WorkRequest};
use verbs_api::{QpEndpoint, RKey, VerbError};

use crate::meter::{Meter, Posted};

pub(crate) struct QueuePair {
    pub(crate) behind: Arc<dyn QpOps>,
    pub(crate) meter: Arc<Meter>,
}

impl PostOps for QueuePair {
    fn post_send(&self, requests: &[WorkRequest<'_>]) -> Posted {
        let outcome = self.behind.poster().post_send(requests);
        self.meter.sends(requests.len(), outcome)
    }

    fn post_send_whole(&self, requests: &[WorkRequest<'_>]) -> Posted {
        self.behind.poster().post_send_whole(requests)?;
        self.meter.sends(requests.len(), Ok(()))
    }

    fn post_recv(&self, requests: &[ReceiveRequest<'_>]) -> Posted {
        let outcome = self.behind.poster().post_recv(requests);
        self.meter.receives(requests.len(), outcome)
    }
}

impl QpOps for QueuePair {
    fn poster(&self) -> &(dyn PostOps + 'static) {
        self
    }

    fn connect(self: Arc<Self>, peer: &QpEndpoint, steps: [QpAttributes; 3], reply: Reply<()>) {
        Arc::clone(&self.behind).connect(peer, steps, reply);
    }

    fn destroy(&self, reply: Reply<()>) {
        let meter = Arc::clone(&self.meter);
        let reply = Reply::new(move |destroyed: Result<(), VerbError>| {
            if destroyed.is_ok() {
                meter.give_qp_back();
            }
            reply.send(destroyed);
        });
        self.behind.destroy(reply);
    }

    delegate! {
        to self.behind {
            fn admit(&self, open: bool);
            fn qp_num(&self) -> Qpn;
            fn starting_psn(&self) -> Psn;
            fn cap(&self) -> QpCap;
            fn modify(&self, attributes: QpAttributes, reply: Reply<()>);
            fn keep_receives(&self);
            fn query(&self) -> Result<QpStatus, VerbError>;
            fn counters(&self) -> QpCounters;
            fn attach_counter(&self, counts: AttachedCounts) -> Result<(), VerbError>;
            fn bind_mw(&self, bind: BindWindow<'_>) -> Result<RKey, PostReason>;
            fn attach_multicast(&self, group: Gid, reply: Reply<()>);
            fn detach_multicast(&self, group: Gid, reply: Reply<()>);
        }
    }
}

//! Queue pairs: posted requests are counted, and destroying a queue pair frees its place in the quota.

use std::sync::Arc;

use verbs_api::ids::{Gid, Qpn};
use verbs_api::provider::{PostOps, QpOps, Reply};
use verbs_api::qp::{QpAttributes, QpCap, QpCounters, QpStatus};
use verbs_api::wr::{BindWindow, PostReason, ReceiveRequest, WorkRequest};
use verbs_api::{RKey, VerbError};

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

    fn post_recv(&self, requests: &[ReceiveRequest<'_>]) -> Posted {
        let outcome = self.behind.poster().post_recv(requests);
        self.meter.receives(requests.len(), outcome)
    }
}

impl QpOps for QueuePair {
    fn poster(&self) -> &(dyn PostOps + 'static) {
        self
    }

    fn admit(&self, open: bool) {
        self.behind.admit(open);
    }

    fn qp_num(&self) -> Qpn {
        self.behind.qp_num()
    }

    fn cap(&self) -> QpCap {
        self.behind.cap()
    }

    fn modify(&self, attributes: QpAttributes, reply: Reply<()>) {
        self.behind.modify(attributes, reply);
    }

    fn keep_receives(&self) {
        self.behind.keep_receives();
    }

    fn query(&self) -> Result<QpStatus, VerbError> {
        self.behind.query()
    }

    fn counters(&self) -> QpCounters {
        self.behind.counters()
    }

    fn bind_mw(&self, bind: BindWindow<'_>) -> Result<RKey, PostReason> {
        self.behind.bind_mw(bind)
    }

    fn attach_multicast(&self, group: Gid, reply: Reply<()>) {
        self.behind.attach_multicast(group, reply);
    }

    fn detach_multicast(&self, group: Gid, reply: Reply<()>) {
        self.behind.detach_multicast(group, reply);
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
}

//! Shared receive queues.

use std::sync::Arc;

use verbs_api::VerbError;
use verbs_api::provider::{Reply, SrqOps};
use verbs_api::wr::ReceiveRequest;

use crate::hooks::{Answer, Arguments, Call, Ended, Post, Request};
use crate::object::Object;
use crate::open_layer::OpenLayer;
use crate::queue_pair::{Posted, one_by_one};
use crate::verb::Verb;

pub(crate) struct ReceiveQueue {
    pub(crate) inner: Arc<dyn SrqOps>,
    pub(crate) open: Arc<OpenLayer>,
    pub(crate) object: Arc<Object>,
}

impl SrqOps for ReceiveQueue {
    fn post(&self, requests: &[ReceiveRequest<'_>]) -> Posted {
        let seen = |request, index| Post {
            verb: Verb::PostSrqRecv,
            open: &self.open,
            on: &self.object,
            request: Request::Receive(request),
            index,
            of: requests.len(),
        };
        one_by_one(&self.open, requests, seen, |one| self.inner.post(one))
    }

    fn modify(&self, mut srq_limit: Option<u32>, mut max_wr: Option<u32>, reply: Reply<()>) {
        let verb = Verb::ModifySrq;
        let before = self.open.before(&mut Call {
            verb,
            open: Some(&self.open),
            on: Some(&self.object),
            arguments: Arguments::SrqChange(&mut srq_limit, &mut max_wr),
        });
        let (open, object) = (Arc::clone(&self.open), Arc::clone(&self.object));
        let inner = Arc::clone(&self.inner);
        let on = Some(&self.object);
        self.open.carry_out(before, verb, on, reply, move |reply| {
            let then = open.telling(verb, Some(&object), reply);
            inner.modify(srq_limit, max_wr, then);
        });
    }

    fn max_sge(&self) -> u32 {
        self.inner.max_sge()
    }

    fn srq_num(&self) -> Option<u32> {
        self.inner.srq_num()
    }

    fn query(&self) -> Result<(u32, u32), VerbError> {
        let verb = Verb::QuerySrq;
        self.open.before_direct(&mut Call {
            verb,
            open: Some(&self.open),
            on: Some(&self.object),
            arguments: Arguments::None,
        })?;
        let mut result = self.inner.query();
        let (error, answer) = match &mut result {
            Ok(sizes) => (None, Answer::Srq(sizes)),
            Err(error) => (Some(&*error), Answer::None),
        };
        self.open.layer.hooks.after(&mut Ended {
            verb,
            object: Some(&self.object),
            error,
            answer,
        });
        result
    }

    fn posted(&self) -> Option<u32> {
        self.inner.posted()
    }

    fn destroy(&self, reply: Reply<()>) {
        let inner = Arc::clone(&self.inner);
        let verb = Verb::DestroySrq;
        self.open
            .destroy(verb, &self.object, reply, move |reply| inner.destroy(reply));
    }
}

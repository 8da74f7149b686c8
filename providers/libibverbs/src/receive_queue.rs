//! Shared receive queues.

use std::sync::{Arc, Mutex};

use polyverbs_abi::{IbvPd, IbvSrq, IbvSrqAttr};
use verbs_api::VerbError;
use verbs_api::extension::Unsupported;
use verbs_api::provider::{Reply, SrqInit, SrqOps};
use verbs_api::wr::{PostReason, ReceiveRequest};

use crate::context::{Context, lock};
use crate::outstanding::{Received, Receives};
use crate::request;
use crate::verbs::Live;

pub(crate) struct ReceiveQueue {
    pub(crate) srq: Arc<Live<IbvSrq>>,
    pub(crate) receives: Arc<Mutex<Receives>>,
    max_sge: u32,
    context: Arc<Context>,
}

// `enum ibv_srq_attr_mask`.
const MAX_WR: i32 = 1;
const LIMIT: i32 = 1 << 1;

impl ReceiveQueue {
    pub(crate) fn create(
        context: Arc<Context>,
        pd: &Live<IbvPd>,
        init: SrqInit,
    ) -> Result<Self, VerbError> {
        if let Some((extension, _)) = init.extension {
            return Err(VerbError::Extension(Unsupported {
                extension: extension.extension(),
                missing: vec![extension.feature().name],
            }));
        }
        let wanted = IbvSrqAttr {
            max_wr: init.max_wr,
            max_sge: init.max_sge,
            srq_limit: 0,
        };
        let (srq, made) = pd.create_srq(init.id, wanted)?;
        // The library ignores the limit when it makes a queue.
        if init.srq_limit > 0 {
            let limit = IbvSrqAttr {
                srq_limit: init.srq_limit,
                ..made
            };
            srq.modify(limit, LIMIT)
                .or_else(|error| srq.destroy().and(Err(error)))?;
        }
        Ok(Self {
            srq: Arc::new(srq),
            receives: Arc::new(Mutex::new(Receives::new(made.max_wr))),
            max_sge: made.max_sge,
            context,
        })
    }
}

/// Posts receives in order.
///
/// # Errors
/// How many were posted, and why the next was not.
pub(crate) fn post_all(
    receives: &Mutex<Receives>,
    requests: &[ReceiveRequest<'_>],
    post: impl Fn(&ReceiveRequest<'_>, u64) -> Result<i32, PostReason>,
    refusal: impl Fn(i32) -> PostReason,
) -> Result<(), (usize, PostReason)> {
    let mut receives = lock(receives);
    if !receives.is_open {
        return Err((0, PostReason::InvalidHandle));
    }
    for (index, request) in requests.iter().enumerate() {
        let received = Received {
            wr_id: request.wr_id,
            loan: request.data.sges().loan,
        };
        let posted = receives.push(received).and_then(|number| {
            let answer = post(request, number);
            if answer != Ok(0) {
                receives.retire(number);
            }
            answer
        });
        match posted {
            Ok(0) => {}
            Ok(errno) => return Err((index, refusal(errno))),
            Err(reason) => return Err((index, reason)),
        }
    }
    Ok(())
}

impl SrqOps for ReceiveQueue {
    fn post(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)> {
        let post = |request: &ReceiveRequest<'_>, number| {
            request::post_srq_recv(&self.srq, request, number)
        };
        // A queue that is neither full nor gone takes every receive that the safe objects hand on.
        let max = self.srq.query().map_or(0, |attr| attr.max_wr);
        post_all(&self.receives, requests, post, |_| PostReason::QueueFull {
            max,
        })
    }

    fn modify(&self, srq_limit: Option<u32>, max_wr: Option<u32>, reply: Reply<()>) {
        let (srq, receives) = (Arc::clone(&self.srq), Arc::clone(&self.receives));
        self.context.start(reply, move || {
            let mut attr = srq.query()?;
            if let Some(max_wr) = max_wr {
                attr.max_wr = max_wr;
                srq.modify(attr, MAX_WR)?;
                lock(&receives).grow(srq.query()?.max_wr);
            }
            if let Some(srq_limit) = srq_limit {
                attr.srq_limit = srq_limit;
                srq.modify(attr, LIMIT)?;
            }
            Ok(())
        });
    }

    fn max_sge(&self) -> u32 {
        self.max_sge
    }

    fn query(&self) -> Result<(u32, u32), VerbError> {
        let attr = self.srq.query()?;
        Ok((attr.max_wr, attr.srq_limit))
    }

    fn destroy(&self, reply: Reply<()>) {
        let (srq, receives) = (Arc::clone(&self.srq), Arc::clone(&self.receives));
        self.context.start(reply, move || {
            srq.destroy()?;
            lock(&receives).clear();
            Ok(())
        });
    }
}

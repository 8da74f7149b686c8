//! Shared receive queues.

use std::sync::Arc;

use polyverbs_abi::{IbvPd, IbvRecvWr, IbvSrq, IbvSrqAttr};
use verbs_api::VerbError;
use verbs_api::extension::{SrqExtension, Unsupported};
use verbs_api::objects::ObjectKind;
use verbs_api::provider::{Mutex, Reply, SpinLock, SrqInit, SrqOps, own};
use verbs_api::wr::{PostReason, ReceiveRequest};

use crate::completion_queue::CompletionQueue;
use crate::context::Context;
use crate::outstanding::{Received, Receives};
use crate::request::{LONGEST, ReceiveChain};
use crate::verbs::{Live, Poster};
use crate::xrc::{Member, Xrcd};

pub(crate) struct ReceiveQueue {
    pub(crate) srq: Arc<Live<IbvSrq>>,
    pub(crate) receives: Arc<SpinLock<Receives>>,
    named: Option<Arc<Named>>,
    poster: Poster<IbvSrq, IbvRecvWr>,
    max_sge: u32,
    context: Arc<Context>,
}

/// What an XRC shared receive queue has in addition to an ordinary one.
struct Named {
    srq_num: u32,
    /// The number of the queue in this process, by which its completion queue knows it.
    queue: u32,
    cq: Arc<CompletionQueue>,
    member: Mutex<Option<Member>>,
}

// These bits are those of `enum ibv_srq_attr_mask`.
const MAX_WR: i32 = 1;
const LIMIT: i32 = 1 << 1;

impl ReceiveQueue {
    pub(crate) fn create(
        context: Arc<Context>,
        pd: &Live<IbvPd>,
        init: SrqInit,
    ) -> Result<Self, VerbError> {
        let wanted = IbvSrqAttr {
            max_wr: init.max_wr,
            max_sge: init.max_sge,
            srq_limit: 0,
        };
        let ((srq, made), of) = match &init.extension {
            None => (pd.create_srq(init.id, wanted)?, None),
            Some((extension, cq)) => {
                let xrcd: &Arc<Xrcd> = extension.held().get().ok_or_else(|| refusal(extension))?;
                xrcd.check_of(&context.live)?;
                let cq: Arc<CompletionQueue> = own(cq, "cq")?;
                let made = xrcd.srq(init.id, (pd, &cq.cq), wanted)?;
                (made, Some((Arc::clone(xrcd), cq)))
            }
        };
        // The library ignores the limit when it creates a queue, so the limit is set afterwards.
        if init.srq_limit > 0 {
            let limit = IbvSrqAttr {
                srq_limit: init.srq_limit,
                ..made
            };
            srq.modify(limit, LIMIT)
                .or_else(|error| srq.destroy().and(Err(error)))?;
        }
        let (receives, named) = match of {
            None => (Arc::new(SpinLock::new(Receives::new(made.max_wr))), None),
            Some((xrcd, cq)) => {
                let (receives, queue) = Receives::of_named_queue(made.max_wr);
                let receives = Arc::new(SpinLock::new(receives));
                let srq_num = srq
                    .srq_num()
                    .or_else(|error| srq.destroy().and(Err(error)))?;
                cq.add_named(queue, &receives);
                let named = Named {
                    srq_num,
                    queue,
                    cq,
                    member: Mutex::new(Some(xrcd.add(ObjectKind::Srq, init.id))),
                };
                (receives, Some(Arc::new(named)))
            }
        };
        Ok(Self {
            poster: srq.poster()?,
            srq: Arc::new(srq),
            receives,
            named,
            max_sge: made.max_sge,
            context,
        })
    }
}

/// Returns the error for an extension's shared receive queue that is not in an XRC domain, because this provider has no
/// others.
fn refusal(extension: &SrqExtension) -> VerbError {
    VerbError::Extension(Unsupported {
        extension: extension.extension(),
        missing: vec![extension.feature().name],
    })
}

/// Posts receives in order, until one is refused.
///
/// # Errors
/// How many were posted, and why the next was not.
///
/// # Safety
/// The queue is alive as long as its requests are open.
#[allow(unsafe_code)]
pub(crate) unsafe fn post_all<Q>(
    poster: &Poster<Q, IbvRecvWr>,
    receives: &SpinLock<Receives>,
    requests: &[ReceiveRequest<'_>],
    refusal: impl Fn(i32) -> PostReason,
) -> Result<(), (usize, PostReason)> {
    let mut receives = receives.lock();
    if !receives.is_open {
        return Err((0, PostReason::InvalidHandle));
    }
    let mut posted = 0;
    for some in requests.chunks(LONGEST) {
        let mut chain = ReceiveChain::new();
        for request in some {
            let number = receives.push(Received {
                wr_id: request.wr_id,
                loan: request.data.sges().loan,
            });
            chain.push(request, number);
        }
        // SAFETY: the queue is alive: it is closed, under this lock, before it is destroyed.
        if let Err((errno, before)) = unsafe { chain.post(poster) } {
            for number in chain.numbers_from(before) {
                receives.retire(number);
            }
            drop(receives);
            return Err((posted + before, refusal(errno)));
        }
        posted += some.len();
    }
    Ok(())
}

impl SrqOps for ReceiveQueue {
    #[allow(unsafe_code)]
    fn post(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)> {
        let refusal = |errno| match errno {
            libc::ENOMEM => PostReason::QueueFull {
                max: self.srq.query().map_or(0, |attr| attr.max_wr),
            },
            errno => PostReason::Os { errno },
        };
        // SAFETY: the requests are closed before the queue is destroyed.
        unsafe { post_all(&self.poster, &self.receives, requests, refusal) }
    }

    fn modify(&self, srq_limit: Option<u32>, max_wr: Option<u32>, reply: Reply<()>) {
        let srq = Arc::clone(&self.srq);
        self.context.start(reply, move || {
            let mut attr = IbvSrqAttr {
                max_wr: 0,
                max_sge: 0,
                srq_limit: 0,
            };
            // The two changes are made separately, because not every library makes both at once.
            if let Some(max_wr) = max_wr {
                attr.max_wr = max_wr;
                srq.modify(attr, MAX_WR)?;
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

    fn srq_num(&self) -> Option<u32> {
        self.named.as_ref().map(|named| named.srq_num)
    }

    fn query(&self) -> Result<(u32, u32), VerbError> {
        let attr = self.srq.query()?;
        Ok((attr.max_wr, attr.srq_limit))
    }

    fn destroy(&self, reply: Reply<()>) {
        let (srq, receives) = (Arc::clone(&self.srq), Arc::clone(&self.receives));
        let named = self.named.clone();
        self.context.destroy(reply, move || {
            receives.lock().is_open = false;
            if let Some(named) = &named {
                named.cq.keep_all();
            }
            if let Err(error) = srq.destroy() {
                receives.lock().is_open = true;
                return Err(error);
            }
            if let Some(named) = named {
                named.cq.remove_named(named.queue);
                drop(named.member.lock().take());
            }
            receives.lock().clear();
            Ok(())
        });
    }
}

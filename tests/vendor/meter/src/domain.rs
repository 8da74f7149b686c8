//! Protection domains and the objects that are made in them.

use std::sync::Arc;

use delegate::delegate;
use verbs_api::VerbError;
use verbs_api::ids::{LKey, RKey};
use verbs_api::memory::MwType;
use verbs_api::objects::ObjectId;
use verbs_api::provider::{
    AhOps, MrChange, MrInit, MrOps, MwOps, PdOps, QpInit, QpOps, Reply, SrqInit, SrqOps, own,
};
use verbs_api::qp::AddressVector;

use crate::completion_queue::CompletionQueue;
use crate::device::wrapping;
use crate::meter::Meter;
use crate::queue_pair::QueuePair;
use crate::receive_queue::ReceiveQueue;

pub(crate) struct Domain {
    pub(crate) behind: Arc<dyn PdOps>,
    pub(crate) meter: Arc<Meter>,
}

impl PdOps for Domain {
    fn reg_mr(&self, init: MrInit, reply: Reply<Arc<dyn MrOps>>) {
        self.behind.reg_mr(
            init,
            wrapping(reply, |behind| Arc::new(MemoryRegion { behind })),
        );
    }

    fn create_srq(&self, mut init: SrqInit, reply: Reply<Arc<dyn SrqOps>>) {
        if let Some((_, cq)) = &mut init.extension {
            match own::<CompletionQueue, _>(cq, "cq") {
                Ok(queue) => *cq = Arc::clone(&queue.behind),
                Err(error) => return reply.send(Err(error)),
            }
        }
        let meter = Arc::clone(&self.meter);
        self.behind.create_srq(
            init,
            wrapping(reply, move |behind| {
                Arc::new(ReceiveQueue { behind, meter })
            }),
        );
    }

    fn create_qp(&self, init: QpInit, reply: Reply<Arc<dyn QpOps>>) {
        let init = match with_queues_behind(init) {
            Ok(init) => init,
            Err(error) => return reply.send(Err(error)),
        };
        if let Err(error) = self.meter.take_qp() {
            return reply.send(Err(error));
        }
        let meter = Arc::clone(&self.meter);
        let reply = Reply::new(move |made: Result<Arc<dyn QpOps>, VerbError>| {
            if made.is_err() {
                meter.give_qp_back();
            }
            reply.send(made.map(|behind| Arc::new(QueuePair { behind, meter }) as _));
        });
        self.behind.create_qp(init, reply);
    }

    delegate! {
        to self.behind {
            fn alloc_mr(&self, id: ObjectId, max_num_sg: u32, reply: Reply<Arc<dyn MrOps>>);
            fn alloc_mw(&self, id: ObjectId, mw_type: MwType, reply: Reply<Arc<dyn MwOps>>);
            fn create_ah(&self, path: AddressVector, reply: Reply<Arc<dyn AhOps>>);
            fn dealloc(&self, reply: Reply<()>);
        }
    }
}

/// The attributes for the inner device, which knows only its own queues.
fn with_queues_behind(mut init: QpInit) -> Result<QpInit, VerbError> {
    let send_cq: Arc<CompletionQueue> = own(&init.send_cq, "send_cq")?;
    let recv_cq: Arc<CompletionQueue> = own(&init.recv_cq, "recv_cq")?;
    init.send_cq = Arc::clone(&send_cq.behind);
    init.recv_cq = Arc::clone(&recv_cq.behind);
    if let Some(srq) = &init.srq {
        let srq: Arc<ReceiveQueue> = own(srq, "srq")?;
        init.srq = Some(Arc::clone(&srq.behind));
    }
    Ok(init)
}

struct MemoryRegion {
    behind: Arc<dyn MrOps>,
}

impl MrOps for MemoryRegion {
    fn rereg(&self, mut change: MrChange, reply: Reply<()>) {
        if let Some(pd) = &change.pd {
            match own::<Domain, _>(pd, "pd") {
                Ok(domain) => change.pd = Some(Arc::clone(&domain.behind)),
                Err(error) => return reply.send(Err(error)),
            }
        }
        self.behind.rereg(change, reply);
    }

    fn inner(&self) -> Option<&Arc<dyn MrOps>> {
        Some(&self.behind)
    }

    delegate! {
        to self.behind {
            fn lkey(&self) -> LKey;
            fn rkey(&self) -> RKey;
            fn dereg(&self, reply: Reply<()>);
        }
    }
}

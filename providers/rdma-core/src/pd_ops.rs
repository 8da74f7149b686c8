//! The verbs of a protection domain: those that create objects in it, and its deallocation.

use std::sync::Arc;

use verbs_api::objects::ObjectId;
use verbs_api::provider::{
    AhOps, MrInit, MrOps, MwOps, MwType, PdOps, QpInit, QpOps, Reply, SrqInit, SrqOps,
};
use verbs_api::qp::AddressVector;

use crate::address_handle::AddressHandle;
use crate::domain::Domain;
use crate::queue_pair::QueuePair;
use crate::receive_queue::ReceiveQueue;
use crate::region::Region;
use crate::window::Window;

impl PdOps for Domain {
    fn reg_mr(&self, init: MrInit, reply: Reply<Arc<dyn MrOps>>) {
        let (context, pd) = self.parts();
        self.context.start(reply, move || {
            Ok(Arc::new(Region::register(context, &pd, &init)?) as _)
        });
    }

    fn alloc_mw(&self, id: ObjectId, mw_type: MwType, reply: Reply<Arc<dyn MwOps>>) {
        let (context, pd) = self.parts();
        let null_region = Arc::clone(&self.null_region);
        self.context.start(reply, move || {
            let null_region = null_region.get(&pd)?;
            Ok(Arc::new(Window::alloc(context, &pd, id, mw_type, null_region)?) as _)
        });
    }

    fn create_srq(&self, init: SrqInit, reply: Reply<Arc<dyn SrqOps>>) {
        let (context, pd) = self.parts();
        self.context.start(reply, move || {
            Ok(Arc::new(ReceiveQueue::create(context, &pd, init)?) as _)
        });
    }

    fn create_qp(&self, init: QpInit, reply: Reply<Arc<dyn QpOps>>) {
        let (context, pd) = self.parts();
        self.context.start(reply, move || {
            Ok(Arc::new(QueuePair::create(context, &pd, init)?) as _)
        });
    }

    fn create_ah(&self, path: AddressVector, reply: Reply<Arc<dyn AhOps>>) {
        let (context, pd) = self.parts();
        self.context.start(reply, move || {
            Ok(Arc::new(AddressHandle::create(context, &pd, path)?) as _)
        });
    }

    fn dealloc(&self, reply: Reply<()>) {
        let (pd, null_region) = (Arc::clone(&self.pd), Arc::clone(&self.null_region));
        self.context.destroy(reply, move || {
            null_region.deregister();
            pd.dealloc()
        });
    }
}

//! Protection domains, and the regions, windows and address handles that are made in them.

use std::sync::Arc;

use verbs_api::ids::{LKey, RKey};
use verbs_api::memory::MwType;
use verbs_api::objects::{ObjectId, ObjectKind};
use verbs_api::provider::{
    AhOps, MrChange, MrInit, MrOps, MwOps, PdOps, QpInit, QpOps, Reply, SrqInit, SrqOps, own,
};
use verbs_api::qp::AddressVector;

use crate::completion_queue::CompletionQueue;
use crate::hooks::{Arguments, Call};
use crate::object::Object;
use crate::open_layer::OpenLayer;
use crate::queue_pair::{self, QueuePair};
use crate::receive_queue::ReceiveQueue;
use crate::verb::Verb;

pub(crate) struct Domain {
    pub(crate) inner: Arc<dyn PdOps>,
    pub(crate) open: Arc<OpenLayer>,
    pub(crate) object: Arc<Object>,
}

impl Domain {
    /// Asks the hooks before an object is made in this domain, and makes it with `go`.
    fn make<T: ?Sized + Send + Sync + 'static>(
        &self,
        verb: Verb,
        arguments: Arguments<'_>,
        reply: Reply<Arc<T>>,
    ) -> Making<T> {
        let before = self.open.before(&mut Call {
            verb,
            open: Some(&self.open),
            on: Some(&self.object),
            arguments,
        });
        Making {
            before,
            verb,
            reply,
        }
    }
}

/// A verb that makes an object, which the hooks were asked about.
struct Making<T: ?Sized + 'static> {
    before: crate::hooks::Before,
    verb: Verb,
    reply: Reply<Arc<T>>,
}

impl<T: ?Sized + Send + Sync + 'static> Making<T> {
    /// Makes the object with `create`, and wraps what the device has made with `wrap`.
    fn with<W>(
        self,
        domain: &Domain,
        kind: ObjectKind,
        create: impl FnOnce(&dyn PdOps, Reply<Arc<T>>) + Send + 'static,
        wrap: W,
    ) where
        W: FnOnce(Arc<T>, Arc<OpenLayer>, u32) -> (Arc<T>, Arc<Object>) + Send + 'static,
    {
        let (open, inner) = (Arc::clone(&domain.open), Arc::clone(&domain.inner));
        let Self {
            before,
            verb,
            reply,
        } = self;
        domain
            .open
            .carry_out(before, verb, None, reply, move |reply| {
                create(&*inner, open.wrapping((verb, kind), reply, wrap));
            });
    }
}

fn plain(kind: ObjectKind, number: u32, id: Option<ObjectId>) -> Arc<Object> {
    Arc::new(Object::new(kind, number, id))
}

impl PdOps for Domain {
    fn reg_mr(&self, mut init: MrInit, reply: Reply<Arc<dyn MrOps>>) {
        let making = self.make(Verb::RegMr, Arguments::Mr(&mut init), reply);
        let id = Some(init.id);
        making.with(
            self,
            ObjectKind::Mr,
            move |pd, reply| pd.reg_mr(init, reply),
            move |inner, open, number| {
                let object = plain(ObjectKind::Mr, number, id);
                let region = Region {
                    inner,
                    open,
                    object: Arc::clone(&object),
                };
                (Arc::new(region) as _, object)
            },
        );
    }

    fn alloc_mr(&self, id: ObjectId, max_num_sg: u32, reply: Reply<Arc<dyn MrOps>>) {
        let making = self.make(Verb::AllocMr, Arguments::Pages(max_num_sg), reply);
        making.with(
            self,
            ObjectKind::Mr,
            move |pd, reply| pd.alloc_mr(id, max_num_sg, reply),
            move |inner, open, number| {
                let object = plain(ObjectKind::Mr, number, Some(id));
                let region = Region {
                    inner,
                    open,
                    object: Arc::clone(&object),
                };
                (Arc::new(region) as _, object)
            },
        );
    }

    fn alloc_mw(&self, id: ObjectId, mw_type: MwType, reply: Reply<Arc<dyn MwOps>>) {
        let making = self.make(Verb::AllocMw, Arguments::Mw(mw_type), reply);
        making.with(
            self,
            ObjectKind::Mw,
            move |pd, reply| pd.alloc_mw(id, mw_type, reply),
            move |inner, open, number| {
                let object = plain(ObjectKind::Mw, number, Some(id));
                let window = Window {
                    inner,
                    open,
                    object: Arc::clone(&object),
                };
                (Arc::new(window) as _, object)
            },
        );
    }

    fn create_srq(&self, mut init: SrqInit, reply: Reply<Arc<dyn SrqOps>>) {
        let making = self.make(Verb::CreateSrq, Arguments::Srq(&mut init), reply);
        if let Some((_, cq)) = &mut init.extension {
            match own::<CompletionQueue, _>(cq, "cq") {
                Ok(queue) => *cq = Arc::clone(&queue.inner),
                Err(error) => return making.reply.send(Err(error)),
            }
        }
        let id = Some(init.id);
        making.with(
            self,
            ObjectKind::Srq,
            move |pd, reply| pd.create_srq(init, reply),
            move |inner, open, number| {
                let object = plain(ObjectKind::Srq, number, id);
                open.add(&object);
                let queue = ReceiveQueue {
                    inner,
                    open,
                    object: Arc::clone(&object),
                };
                (Arc::new(queue) as _, object)
            },
        );
    }

    fn create_qp(&self, mut init: QpInit, reply: Reply<Arc<dyn QpOps>>) {
        let making = self.make(Verb::CreateQp, Arguments::Qp(&mut init), reply);
        let (init, queues) = match queue_pair::with_inner_queues(init) {
            Ok(mapped) => mapped,
            Err(error) => return making.reply.send(Err(error)),
        };
        let (id, qp_type) = (init.id, init.qp_type);
        let Making {
            before,
            verb,
            reply,
        } = making;
        let (open, inner) = (Arc::clone(&self.open), Arc::clone(&self.inner));
        self.open
            .carry_out(before, verb, None, reply, move |reply| {
                let then = QueuePair::reply(open, (id, qp_type, queues), reply);
                inner.create_qp(init, then);
            });
    }

    fn create_ah(&self, mut path: AddressVector, reply: Reply<Arc<dyn AhOps>>) {
        let making = self.make(Verb::CreateAh, Arguments::Ah(&mut path), reply);
        making.with(
            self,
            ObjectKind::Ah,
            move |pd, reply| pd.create_ah(path, reply),
            move |inner, open, number| {
                let object = plain(ObjectKind::Ah, number, None);
                let handle = AddressHandle {
                    inner,
                    open,
                    object: Arc::clone(&object),
                };
                (Arc::new(handle) as _, object)
            },
        );
    }

    fn dealloc(&self, reply: Reply<()>) {
        let inner = Arc::clone(&self.inner);
        let verb = Verb::DeallocPd;
        self.open
            .destroy(verb, &self.object, reply, move |reply| inner.dealloc(reply));
    }
}

struct Region {
    inner: Arc<dyn MrOps>,
    open: Arc<OpenLayer>,
    object: Arc<Object>,
}

impl MrOps for Region {
    fn lkey(&self) -> LKey {
        self.inner.lkey()
    }

    fn rkey(&self) -> RKey {
        self.inner.rkey()
    }

    fn rereg(&self, mut change: MrChange, reply: Reply<()>) {
        let verb = Verb::ReregMr;
        let before = self.open.before(&mut Call {
            verb,
            open: Some(&self.open),
            on: Some(&self.object),
            arguments: Arguments::MrChange(&mut change),
        });
        if let Some(pd) = &mut change.pd {
            match own::<Domain, _>(pd, "pd") {
                Ok(domain) => *pd = Arc::clone(&domain.inner),
                Err(error) => return reply.send(Err(error)),
            }
        }
        let (open, object) = (Arc::clone(&self.open), Arc::clone(&self.object));
        let inner = Arc::clone(&self.inner);
        let on = Some(&self.object);
        self.open.carry_out(before, verb, on, reply, move |reply| {
            inner.rereg(change, open.telling(verb, Some(&object), reply));
        });
    }

    fn inner(&self) -> Option<&Arc<dyn MrOps>> {
        Some(&self.inner)
    }

    fn dereg(&self, reply: Reply<()>) {
        let inner = Arc::clone(&self.inner);
        let verb = Verb::DeregMr;
        self.open
            .destroy(verb, &self.object, reply, move |reply| inner.dereg(reply));
    }
}

struct Window {
    inner: Arc<dyn MwOps>,
    open: Arc<OpenLayer>,
    object: Arc<Object>,
}

impl MwOps for Window {
    fn rkey(&self) -> RKey {
        self.inner.rkey()
    }

    fn inner(&self) -> Option<&Arc<dyn MwOps>> {
        Some(&self.inner)
    }

    fn dealloc(&self, reply: Reply<()>) {
        let inner = Arc::clone(&self.inner);
        let verb = Verb::DeallocMw;
        self.open
            .destroy(verb, &self.object, reply, move |reply| inner.dealloc(reply));
    }
}

struct AddressHandle {
    inner: Arc<dyn AhOps>,
    open: Arc<OpenLayer>,
    object: Arc<Object>,
}

impl AhOps for AddressHandle {
    fn path(&self) -> AddressVector {
        self.inner.path()
    }

    fn inner(&self) -> Option<&Arc<dyn AhOps>> {
        Some(&self.inner)
    }

    fn destroy(&self, reply: Reply<()>) {
        let inner = Arc::clone(&self.inner);
        let verb = Verb::DestroyAh;
        self.open
            .destroy(verb, &self.object, reply, move |reply| inner.destroy(reply));
    }
}

//! An object: its node, the provider's part, and what its kind adds.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::context::{ContextCore, Deferred};
use super::node::{AnyObject, Holdings, Node, PendingRequest};
use crate::control::Reply;
use crate::error::VerbError;
use crate::object_id::{ObjectId, ObjectKind};
use crate::post::PostReason;

/// The provider's part of an object, as far as its lifecycle is concerned.
pub(crate) trait Ops: Send + Sync + 'static {
    fn destroy(&self, reply: Reply<()>);

    /// Opens or closes the object for the program, for provider's parts that check this themselves.
    fn admit(&self, _open: bool) {}

    /// Returns the number by which the program knows the object, such as a queue pair number; `None` if it has none.
    fn number(&self) -> Option<u32> {
        None
    }
}

/// The fields and hooks that a kind of object adds to those that all kinds have.
pub(crate) trait Extra: Send + Sync + 'static {
    fn on_removed(&self) {}

    /// Called after the object was destroyed, by the program's request or when its last handle was dropped.
    fn on_destroyed(&self, _id: ObjectId) {}
}

impl Extra for () {}

/// An object with its provider's part. Dropping it while it is alive destroys the provider's part.
pub(crate) struct Object<O: Ops + ?Sized, X: Extra = ()> {
    base: ObjectBase<O>,
    pub(crate) extra: X,
}

/// The fields that every object has: the provider's part, its node, and its context.
pub(crate) struct ObjectBase<O: ?Sized> {
    pub(crate) ops: Arc<O>,
    pub(crate) node: Node,
    pub(crate) context: Arc<ContextCore>,
}

impl<O: Ops + ?Sized, X: Extra> Deref for Object<O, X> {
    type Target = ObjectBase<O>;

    #[inline]
    fn deref(&self) -> &ObjectBase<O> {
        &self.base
    }
}

impl<O: ?Sized> ObjectBase<O> {
    /// Checks that a request on this context may name the object: it belongs to the context and is alive.
    pub(crate) fn check_in(&self, context: &Arc<ContextCore>) -> Result<(), PostReason> {
        if !Arc::ptr_eq(&self.context, context) {
            return Err(PostReason::AnotherDevice(self.node.kind()));
        }
        if !self.node.is_live() {
            return Err(self.node.dead_reason());
        }
        Ok(())
    }
}

impl<O: ?Sized> fmt::Debug for ObjectBase<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.node.holder())
    }
}

impl<O: Ops + ?Sized, X: Extra> AnyObject for Object<O, X> {
    fn node(&self) -> &Node {
        &self.node
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn remove(&self) {
        self.node.remove();
        self.ops.admit(false);
    }

    fn on_removed(&self) {
        self.extra.on_removed();
    }

    fn number(&self) -> Option<u32> {
        self.ops.number()
    }
}

impl<O: Ops + ?Sized, X: Extra> Object<O, X> {
    pub(super) fn new(ops: Arc<O>, node: Node, context: Arc<ContextCore>, extra: X) -> Self {
        let base = ObjectBase { ops, node, context };
        Self { base, extra }
    }

    /// Begins a control request on the object, and lists the request among the object's holders.
    pub(crate) fn begin_request(self: &Arc<Self>) -> Result<PendingRequest, VerbError> {
        PendingRequest::new(Arc::clone(self) as Arc<dyn AnyObject>, self.context.table())
    }

    /// Makes the object usable again, because the provider refused to destroy it.
    pub(super) fn revive(&self) {
        self.node.revive(|| self.context.is_removed());
        self.ops.admit(true);
        // The device was removed meanwhile.
        if !self.node.is_live() {
            self.ops.admit(false);
        }
    }
}

impl<O: Ops + ?Sized, X: Extra> Drop for Object<O, X> {
    fn drop(&mut self) {
        let Some(holdings) = self.base.node.begin_drop() else {
            return;
        };
        let context = Arc::clone(&self.context);
        context.discard_events(self.node.id());
        self.extra.on_destroyed(self.node.id());
        let kind = self.node.kind();
        PendingDestroy {
            ops: Arc::clone(&self.ops),
            kind,
            context,
            holdings,
        }
        .start();
    }
}

/// A destruction in progress of an object that has neither handles nor holders.
struct PendingDestroy<O: Ops + ?Sized> {
    ops: Arc<O>,
    kind: ObjectKind,
    context: Arc<ContextCore>,
    holdings: Holdings,
}

impl<O: Ops + ?Sized> PendingDestroy<O> {
    fn start(self) {
        let ops = Arc::clone(&self.ops);
        ops.destroy(Reply::new(move |result| match result {
            // A region to which a window is still bound.
            Err(VerbError::Busy(_)) if !self.context.is_removed() => {
                let context = Arc::clone(&self.context);
                context.defer(Box::new(self));
            }
            _ => {
                let Self {
                    kind,
                    context,
                    holdings,
                    ..
                } = self;
                drop(holdings);
                context.destroyed(kind);
            }
        }));
    }
}

impl<O: Ops + ?Sized> Deferred for PendingDestroy<O> {
    fn retry(self: Box<Self>) {
        self.start();
    }
}

//! An object: its books, the provider's part, and what its kind adds.

use std::any::Any;
use std::sync::Arc;

use super::node::{Node, Own};
use super::{AnyObject, ObjectId, ObjectKind};
use crate::context::ContextInner;
use crate::contract::{AhOps, CqOps, MrOps, MwOps, PdOps, QpOps, SrqOps};
use crate::control::Reply;
use crate::error::VerbError;

/// The provider's part of an object: how it is given back.
pub(crate) trait Ops: Send + Sync + 'static {
    fn destroy(&self, reply: Reply<()>);

    /// Whether the program may use it: told where that is checked by the provider.
    fn admit(&self, _open: bool) {}

    /// The number by which the program knows it, if it has one.
    fn number(&self) -> Option<u32> {
        None
    }
}

macro_rules! ops {
    ($($ops:ident.$destroy:ident $(, $number:ident)?;)*) => {
        $(impl Ops for dyn $ops {
            fn destroy(&self, reply: Reply<()>) {
                $ops::$destroy(self, reply);
            }
            $(
                fn number(&self) -> Option<u32> {
                    Some(self.$number().value())
                }
            )?
        })*
    };
}

ops! {
    AhOps.destroy;
    CqOps.destroy;
    MrOps.dereg, lkey;
    MwOps.dealloc, rkey;
    PdOps.dealloc;
    SrqOps.destroy;
}

impl Ops for dyn QpOps {
    fn destroy(&self, reply: Reply<()>) {
        QpOps::destroy(self, reply);
    }

    fn admit(&self, open: bool) {
        QpOps::admit(self, open);
    }

    fn number(&self) -> Option<u32> {
        Some(self.qp_num().value())
    }
}

/// What a kind of object adds.
pub(crate) trait Extra: Send + Sync + 'static {
    fn on_removed(&self) {}

    /// The object was destroyed, on demand or with its last handle: the provider has it no more, or is about to.
    fn on_destroyed(&self, _id: ObjectId) {}
}

impl Extra for () {}

/// An object. Dropped while it lives, it is given back to the provider.
pub(crate) struct Object<O: Ops + ?Sized, X: Extra = ()> {
    pub(crate) ops: Arc<O>,
    pub(crate) node: Node,
    pub(crate) extra: X,
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
    /// The provider refused to destroy it.
    pub(crate) fn revive(&self) {
        self.node.revive();
        self.ops.admit(true);
        // A removal that told the provider before.
        if !self.node.is_live() {
            self.ops.admit(false);
        }
    }
}

impl<O: Ops + ?Sized, X: Extra> Drop for Object<O, X> {
    fn drop(&mut self) {
        let Some(own) = self.node.begin_implicit() else {
            return;
        };
        let context = Arc::clone(self.node.context());
        context.discard_events(self.node.id());
        self.extra.on_destroyed(self.node.id());
        let kind = self.node.kind();
        Remains {
            ops: Arc::clone(&self.ops),
            kind,
            context,
            own,
        }
        .bury();
    }
}

/// What is left of an object without handle or holder until the provider has taken its part back.
pub(crate) struct Remains<O: Ops + ?Sized> {
    ops: Arc<O>,
    kind: ObjectKind,
    context: Arc<ContextInner>,
    own: Own,
}

/// An object that the provider would not take back yet.
pub(crate) trait Deferred: Send {
    fn retry(self: Box<Self>);
}

impl<O: Ops + ?Sized> Remains<O> {
    pub(crate) fn bury(self) {
        let ops = Arc::clone(&self.ops);
        ops.destroy(Reply::new(move |result| match result {
            // A region to which a window is still bound.
            Err(VerbError::Busy(_)) if !self.context.is_removed() => {
                let context = Arc::clone(&self.context);
                context.defer(Box::new(self));
            }
            _ => {
                let Self {
                    kind, context, own, ..
                } = self;
                drop(own);
                context.destroyed(kind);
            }
        }));
    }
}

impl<O: Ops + ?Sized> Deferred for Remains<O> {
    fn retry(self: Box<Self>) {
        self.bury();
    }
}

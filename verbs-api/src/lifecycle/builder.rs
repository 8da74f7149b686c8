//! Objects under construction.

use std::sync::{Arc, Weak};

use super::context::ContextCore;
use super::node::{AnyObject, Holdings, Node};
use super::object::{Extra, Object, Ops};
use crate::error::VerbError;
use crate::object_id::{ObjectId, ObjectKind};

/// An object under construction: its identity is reserved and its parents are held. Dropping it releases both.
pub(crate) struct ObjectBuilder {
    context: Arc<ContextCore>,
    kind: ObjectKind,
    holdings: Holdings,
}

impl ObjectBuilder {
    pub(crate) fn new(
        context: &Arc<ContextCore>,
        kind: ObjectKind,
        parents: impl IntoIterator<Item = Arc<dyn AnyObject>>,
    ) -> Result<Self, VerbError> {
        let reserved = context.table().reserve(kind)?;
        Ok(Self {
            context: Arc::clone(context),
            kind,
            holdings: Holdings::new(reserved, parents)?,
        })
    }

    pub(crate) fn id(&self) -> ObjectId {
        self.holdings.id()
    }

    pub(crate) fn context(&self) -> &ContextCore {
        &self.context
    }

    /// Returns the finished object, after the provider has made its part.
    pub(crate) fn finish<O: Ops + ?Sized, X: Extra>(
        self,
        ops: Arc<O>,
        extra: X,
    ) -> Arc<Object<O, X>> {
        let id = self.id();
        let node = Node::new(self.kind, id, self.holdings, self.context.is_removed());
        let object = Arc::new(Object::new(ops, node, self.context, extra));
        let weak: Weak<Object<O, X>> = Arc::downgrade(&object);
        object.node.publish(weak);
        // A removal may have walked the table before the object was in it.
        if object.context.is_removed() {
            object.remove();
        }
        object
    }
}

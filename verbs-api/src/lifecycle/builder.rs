//! Objects that are being made.

use std::sync::{Arc, Weak};

use super::context::ContextCore;
use super::node::{AnyObject, Node, Own};
use super::object::{Extra, Object, Ops};
use crate::error::VerbError;
use crate::object_id::{ObjectId, ObjectKind};

/// An object that is being made: its identity is taken and its parents are held. Dropped, it gives all back.
pub(crate) struct ObjectBuilder {
    context: Arc<ContextCore>,
    kind: ObjectKind,
    own: Own,
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
            own: Own::new(reserved, parents)?,
        })
    }

    pub(crate) fn id(&self) -> ObjectId {
        self.own.id()
    }

    pub(crate) fn context(&self) -> &ContextCore {
        &self.context
    }

    /// The object, which the provider has made as `ops`.
    pub(crate) fn finish<O: Ops + ?Sized, X: Extra>(
        self,
        ops: Arc<O>,
        extra: X,
    ) -> Arc<Object<O, X>> {
        let id = self.id();
        let node = Node::new(self.kind, id, self.own, self.context.is_removed());
        let object = Arc::new(Object::new(ops, node, self.context, extra));
        let weak: Weak<Object<O, X>> = Arc::downgrade(&object);
        object.node.publish(weak);
        // A removal that walked the table before the object was in it.
        if object.context.is_removed() {
            object.remove();
        }
        object
    }
}

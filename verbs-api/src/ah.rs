//! Address handles.

use std::fmt;
use std::sync::Arc;

use crate::control::Started;
use crate::error::VerbError;
use crate::objects::{Birth, DestroyError, Extra, Handle, Object, ObjectId, destroy};
use crate::provider::AhOps;
use crate::qp::AddressVector;

pub(crate) struct AhExtra;

impl Extra for AhExtra {}

pub(crate) type AhObject = Object<dyn AhOps, AhExtra>;

/// An address handle: a route that datagrams take. Cloning shares it.
#[derive(Clone)]
#[doc(alias = "ibv_ah")]
pub struct Ah {
    object: Arc<AhObject>,
    pd: ObjectId,
}

impl Ah {
    pub(crate) fn new(birth: Birth, ops: Arc<dyn AhOps>, pd: ObjectId) -> Self {
        Self {
            object: birth.finish(|node| Object {
                ops,
                node,
                extra: AhExtra,
            }),
            pd,
        }
    }

    /// Its identity.
    pub fn id(&self) -> ObjectId {
        self.object.node.id()
    }

    /// The route.
    pub fn path(&self) -> AddressVector {
        self.object.ops.path()
    }

    /// Whether it was made in this protection domain.
    pub fn is_of_pd(&self, pd: ObjectId) -> bool {
        self.pd == pd
    }

    /// Whether it can be used: not destroyed, and its device is there.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.object.node.is_live()
    }

    /// The provider's part.
    pub fn ops(&self) -> &Arc<dyn AhOps> {
        &self.object.ops
    }

    /// Gives the handle back. Datagrams posted already keep their route.
    #[doc(alias = "ibv_destroy_ah")]
    pub fn destroy(self) -> Started<(), DestroyError<Self>> {
        destroy(self)
    }

    /// The route, unless the handle was destroyed.
    ///
    /// # Errors
    /// The handle was destroyed, or the device removed.
    #[doc(alias = "ibv_query_ah")]
    pub fn query(&self) -> Result<AddressVector, VerbError> {
        self.object.node.check_live()?;
        Ok(self.path())
    }
}

impl Handle for Ah {
    type Ops = dyn AhOps;
    type Extra = AhExtra;

    fn object(&self) -> &Arc<AhObject> {
        &self.object
    }
}

impl fmt::Debug for Ah {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ah")
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}

//! Memory windows.

use std::fmt;
use std::sync::Arc;

use crate::contract::MwOps;
use crate::control::Started;
use crate::ids::RKey;
use crate::mem::MwType;
use crate::mr::{Mr, MrKey};
use crate::object_id::ObjectId;
use crate::objects::{Birth, DestroyError, Extra, Handle, Object, destroy};

pub(crate) struct MwExtra {
    mw_type: MwType,
}

impl Extra for MwExtra {}

pub(crate) type MwObject = Object<dyn MwOps, MwExtra>;

/// A memory window: opens a part of a region to peers. Cloning shares it.
///
/// Type 1 is bound with [`Qp::bind_mw`](crate::Qp::bind_mw), type 2 with a posted
/// [`BindWindow`](crate::wr::BindWindow).
///
/// ```no_run
/// # fn example(pd: &verbs_api::Pd, qp: &verbs_api::Qp, region: &verbs_api::Mr)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::{Access, memory::MwType, wr::BindWindow};
/// let window = pd.alloc_mw(MwType::Type2).wait()?;
/// let bind = BindWindow::new(&window, region, region.iova(), 64).access(Access::REMOTE_READ);
/// println!("peers read these 64 bytes, and no others, with {}", bind.key());
/// qp.post_one(bind.signaled(1))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_mw")]
pub struct Mw {
    object: Arc<MwObject>,
}

impl Mw {
    pub(crate) fn new(birth: Birth, ops: Arc<dyn MwOps>, mw_type: MwType) -> Self {
        Self {
            object: birth.finish(|node| Object {
                ops,
                node,
                extra: MwExtra { mw_type },
            }),
        }
    }

    /// Its identity.
    pub fn id(&self) -> ObjectId {
        self.object.node.id()
    }

    /// Its kind.
    pub fn mw_type(&self) -> MwType {
        self.object.extra.mw_type
    }

    /// Its key now. A window of type 1 gets another at each bind; for one of type 2 the program
    /// chooses the low byte when it binds.
    pub fn rkey(&self) -> RKey {
        self.object.ops.rkey()
    }

    /// Gives the window back, unbinding it where it is bound: its key opens nothing any more.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn destroy(self) -> Started<(), DestroyError<Self>> {
        destroy(self)
    }
}

impl Handle for Mw {
    type Ops = dyn MwOps;
    type Extra = MwExtra;

    fn object(&self) -> &Arc<MwObject> {
        &self.object
    }
}

impl fmt::Debug for Mw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.object.node.holder(), self.mw_type())
    }
}

/// The region of a [bind](crate::wr::BindWindow), with the key that it has now: an [`Mr`] or an [`MrKey`].
#[derive(Clone, Copy, Debug)]
pub struct WindowRegion<'a> {
    pub(crate) mr: &'a Mr,
    pub(crate) key_byte: u8,
}

impl<'a> From<&'a Mr> for WindowRegion<'a> {
    #[inline]
    fn from(mr: &'a Mr) -> Self {
        let key_byte = mr.lkey().key_byte();
        Self { mr, key_byte }
    }
}

impl<'a> From<&'a MrKey> for WindowRegion<'a> {
    #[inline]
    fn from(key: &'a MrKey) -> Self {
        Self {
            mr: key.mr(),
            key_byte: key.lkey().key_byte(),
        }
    }
}

//! Memory windows.

use std::fmt;
use std::sync::Arc;

use crate::contract::MwOps;
use crate::control::{Reply, Started};
use crate::error::VerbError;
use crate::ids::RKey;
use crate::lifecycle::{
    DestroyError, Extra, Handle, Object, ObjectBuilder, Ops, by_identity, destroy,
};
use crate::mem::MwType;
use crate::object_id::{ObjectId, ObjectKind};
use crate::pd::Pd;
use crate::wr::{BindWindow, WindowRegion};

pub(crate) struct MwExtra {
    mw_type: MwType,
}

impl Extra for MwExtra {}

impl Ops for dyn MwOps {
    fn destroy(&self, reply: Reply<()>) {
        MwOps::dealloc(self, reply);
    }

    fn number(&self) -> Option<u32> {
        Some(self.rkey().value())
    }
}

pub(crate) type MwObject = Object<dyn MwOps, MwExtra>;

/// A memory window, which gives peers access to a part of a region. A clone is another handle of the same window.
///
/// Type 1 is bound with [`Qp::bind_mw`](crate::Qp::bind_mw), type 2 with a posted
/// [`BindWindow`].
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

impl Pd {
    /// Makes a memory window. Type 1 needs [`WINDOW_1`](crate::Features::WINDOW_1), type 2 one of
    /// [`WINDOW_2A`](crate::Features::WINDOW_2A) and [`WINDOW_2B`](crate::Features::WINDOW_2B).
    ///
    /// # Errors
    /// The feature is missing.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, mw_type: MwType) -> Started<Mw> {
        let checks = || {
            self.context().require_window(mw_type)?;
            self.builder(ObjectKind::Mw)
        };
        self.make(checks, move |pd, builder, outcome| {
            let id = builder.id();
            let reply = Reply::new(move |result: Result<_, VerbError>| {
                outcome.complete(result.map(|ops| Mw::new(builder, ops, mw_type)));
            });
            pd.ops.alloc_mw(id, mw_type, reply);
        })
    }
}

impl Mw {
    pub(crate) fn new(builder: ObjectBuilder, ops: Arc<dyn MwOps>, mw_type: MwType) -> Self {
        Self {
            object: builder.finish(ops, MwExtra { mw_type }),
        }
    }

    /// Returns the identity of the window.
    pub fn id(&self) -> ObjectId {
        self.object.node.id()
    }

    /// Returns the type of the window.
    pub fn mw_type(&self) -> MwType {
        self.object.extra.mw_type
    }

    /// Returns the present key of the window. A window of type 1 gets another one at each bind; for one of type 2 the
    /// program chooses the low byte when it binds.
    pub fn rkey(&self) -> RKey {
        self.object.ops.rkey()
    }

    /// Destroys the window, unbinding it if it is bound: its key then grants no access.
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

by_identity!(Mw: Handle::object);

impl fmt::Debug for Mw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.object.node.holder(), self.mw_type())
    }
}

impl<'a> BindWindow<'a> {
    /// Binds `window` to `length` bytes from `addr` of `region`: an [`Mr`](crate::Mr), or an [`MrKey`](crate::MrKey) that
    /// is fast-registered before this request is executed.
    ///
    /// The bind gives the window's key its next low byte; [`key_byte`](Self::key_byte) sets another one.
    #[inline]
    pub fn new(
        window: &'a Mw,
        region: impl Into<WindowRegion<'a>>,
        addr: u64,
        length: u64,
    ) -> Self {
        Self::unbind(window).bound_to(region.into(), addr, length)
    }

    /// Unbinds a window of type 1, and gives it another key. A window of type 2 is unbound by a
    /// [`LocalInvalidate`](crate::wr::LocalInvalidate).
    #[inline]
    pub fn unbind(window: &'a Mw) -> Self {
        let key_byte = window.rkey().next().key_byte();
        Self::of_window(&window.object, window.mw_type(), key_byte)
    }
}

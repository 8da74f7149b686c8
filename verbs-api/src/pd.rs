//! Protection domains, in which regions, windows, queues and queue pairs are made.

use std::fmt;
use std::sync::Arc;

use crate::ah::Ah;
use crate::capability::Limit;
use crate::context::{Context, Opened};
use crate::contract::PdOps;
use crate::control::{Reply, Started};
use crate::error::{ArgumentReason, VerbError};
use crate::ids::Port;
use crate::lifecycle::{
    AnyObject, ContextCore, DestroyError, Extra, Handle, Object, ObjectBuilder, Ops, Outcome,
    by_identity, destroy,
};
use crate::object_id::{ObjectId, ObjectKind};
use crate::qp_attributes::AddressVector;
use crate::wc::Completion;

pub(crate) struct PdExtra {
    pub(crate) opened: Arc<Opened>,
}

impl Extra for PdExtra {}

impl Ops for dyn PdOps {
    fn destroy(&self, reply: Reply<()>) {
        PdOps::dealloc(self, reply);
    }
}

pub(crate) type PdObject = Object<dyn PdOps, PdExtra>;

/// A protection domain. A clone is another handle of the same domain.
///
/// ```no_run
/// use verbs_api::{Access, Memory, Requirements, open};
/// let device = open(Requirements::new())?;
/// let pd = device.alloc_pd().wait()?;
/// let memory = Memory::zeroed(4096).unwrap();
/// let region = pd.register(&memory, Access::LOCAL_WRITE | Access::REMOTE_READ).wait()?;
/// let advert = region.remote(0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_pd")]
pub struct Pd {
    pub(crate) object: Arc<PdObject>,
}

impl Context {
    /// Makes a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Started<Pd> {
        let builder = match self.builder(ObjectKind::Pd) {
            Ok(builder) => builder,
            Err(error) => return Started::ready(Err(error)),
        };
        let (started, outcome) = self.core.begin();
        let opened = Arc::clone(&self.opened);
        self.ops().alloc_pd(Reply::new(move |result| {
            outcome.complete(result.map(|ops| Pd {
                object: builder.finish(ops, PdExtra { opened }),
            }));
        }));
        started
    }

    /// Returns the protection domain with this identity; `None` if it was destroyed.
    #[doc(hidden)] // Tests look up by it whether a destroyed object is gone.
    pub fn find_pd(&self, id: ObjectId) -> Option<Pd> {
        Some(Pd {
            object: self.find(id)?,
        })
    }
}

impl Pd {
    /// Returns the identity of the protection domain.
    pub fn id(&self) -> ObjectId {
        self.object.node.id()
    }

    /// Returns the open device that the protection domain belongs to.
    pub fn open_device(&self) -> Context {
        Context {
            core: Arc::clone(self.context()),
            opened: Arc::clone(&self.object.extra.opened),
        }
    }

    /// Makes an address handle: a route for datagrams.
    ///
    /// # Errors
    /// There is no such port, or it has no GID at the path's `sgid_index`.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, path: AddressVector) -> Started<Ah> {
        let checks = || {
            let ports = &self.context().attributes().ports;
            if path.port_num == 0 || usize::from(path.port_num) > ports.len() {
                let reason = ArgumentReason::OutOfRange {
                    given: path.port_num.into(),
                    least: 1,
                    most: ports.len() as u64,
                };
                return Err(VerbError::argument("port_num", reason));
            }
            self.builder(ObjectKind::Ah)
        };
        self.make(checks, move |pd, builder, outcome| {
            let id = pd.node.id();
            let reply = Reply::new(move |result: Result<_, VerbError>| {
                outcome.complete(result.map(|ops| Ah::new(builder, ops, id)));
            });
            pd.ops.create_ah(path, reply);
        })
    }

    /// Makes an address handle for the path back to the sender of a datagram: see [`AddressVector::answering`].
    ///
    /// ```no_run
    /// # fn example(
    /// #     pd: &verbs_api::Pd, datagrams: &verbs_api::Qp, memory: &verbs_api::Memory, done: &verbs_api::Completion,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs_api::wr::{self, UdDestination};
    /// let mut grh = [0; 40];
    /// memory.read(0, &mut grh)?; // it was received in front of the message
    /// let ah = pd.create_ah_from(done, &grh, 1).wait()?;
    /// let sender = UdDestination { ah, remote_qpn: done.src_qp, remote_qkey: 0x1111_1111 };
    /// datagrams.post_one(wr::Send::new(b"answer").to(&sender))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// There is no such port, the datagram has no routing header, or the sender is on no network of the device.
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn create_ah_from(
        &self,
        completion: &Completion,
        grh: &[u8; 40],
        port_num: Port,
    ) -> Started<Ah> {
        let port = self.open_device().query_port(port_num);
        match port.and_then(|port| AddressVector::answering(&port, completion, grh)) {
            Ok(path) => self.create_ah(path),
            Err(error) => Started::ready(Err(error)),
        }
    }

    /// Destroys the protection domain. Fails with Busy while regions, windows, queues or address handles are in it.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn destroy(self) -> Started<(), DestroyError<Self>> {
        destroy(self)
    }

    pub(crate) fn context(&self) -> &Arc<ContextCore> {
        &self.object.context
    }

    pub(crate) fn check_limit(&self, limit: Limit, wanted: u64) -> Result<(), VerbError> {
        self.context()
            .attributes()
            .limits
            .check(limit, wanted)
            .map_err(VerbError::Limit)
    }

    /// Starts to build an object of this kind whose parent is the protection domain.
    pub(crate) fn builder(&self, kind: ObjectKind) -> Result<ObjectBuilder, VerbError> {
        ObjectBuilder::new(
            self.context(),
            kind,
            [Arc::clone(&self.object) as Arc<dyn AnyObject>],
        )
    }

    // Checks, then starts: nothing of the provider is called where a check fails.
    pub(crate) fn make<T: Send + 'static, B>(
        &self,
        checks: impl FnOnce() -> Result<B, VerbError>,
        start: impl FnOnce(Arc<PdObject>, B, Outcome<T>),
    ) -> Started<T> {
        match checks() {
            Err(error) => Started::ready(Err(error)),
            Ok(builder) => {
                let (started, outcome) = self.context().begin();
                start(Arc::clone(&self.object), builder, outcome);
                started
            }
        }
    }
}

impl Handle for Pd {
    type Ops = dyn PdOps;
    type Extra = PdExtra;

    fn object(&self) -> &Arc<PdObject> {
        &self.object
    }
}

by_identity!(Pd: Handle::object);

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.object.node.holder())
    }
}

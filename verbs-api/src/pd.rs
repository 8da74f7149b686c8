//! Protection domains: what regions, windows, queues and queue pairs are made in.

use std::fmt;
use std::sync::Arc;

use crate::access::Access;
use crate::ah::Ah;
use crate::capability::{Features, Limit};
use crate::context::{Context, ContextInner};
use crate::contract::{MrInit, PdOps, SrqExtension, SrqInit};
use crate::control::{Reply, Started};
use crate::cq::Cq;
use crate::error::{ArgumentReason, VerbError};
use crate::ids::Port;
use crate::mem::{BufferPool, MemoryRange, MwType, RegionMemory};
use crate::mr::{Mr, MrKey, MrOptions, RegionKind};
use crate::mw::Mw;
use crate::object_id::{ObjectId, ObjectKind};
use crate::objects::{AnyObject, Birth, DestroyError, Handle, Object, destroy};
use crate::qp::{Qp, QpOptions};
use crate::qp_attributes::AddressVector;
use crate::srq::{Srq, SrqOptions};
use crate::wc::Completion;

pub(crate) type PdObject = Object<dyn PdOps>;

/// A protection domain. Cloning shares it.
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

impl Pd {
    /// Its identity.
    pub fn id(&self) -> ObjectId {
        self.object.node.id()
    }

    /// The open device that it belongs to.
    pub fn open_device(&self) -> Context {
        Context {
            inner: Arc::clone(self.context()),
        }
    }

    /// Registers exposed memory with these rights. The memory stays while it is registered or used.
    ///
    /// # Errors
    /// Rights that do not go together, a length beyond `max_mr_size`, or a feature that is missing.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(&self, memory: impl Into<MemoryRange>, access: Access) -> Started<Mr> {
        self.register_with(memory, MrOptions::new(access))
    }

    /// Registers exposed memory with these options.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    #[doc(alias = "ibv_reg_mr_iova2")]
    pub fn register_with(&self, memory: impl Into<MemoryRange>, options: MrOptions) -> Started<Mr> {
        let range = memory.into();
        self.reg_mr(RegionMemory::from(&range), options, Some(range), false)
    }

    /// Registers memory of the program.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    ///
    /// # Safety
    /// `length` octets from `address` stay mapped, and readable and writable, until the
    /// deregistration or a change to other memory was answered, or the last handle of the region and everything
    /// posted with it is gone. In that time the program accesses them only as
    /// [`memory::copy`](crate::memory::copy) does.
    #[allow(unsafe_code)]
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_borrowed(
        &self,
        address: *mut u8,
        length: usize,
        options: MrOptions,
    ) -> Started<Mr> {
        // SAFETY: the caller's.
        let memory = unsafe { RegionMemory::borrowed(address, length) };
        self.reg_mr(memory, options, None, false)
    }

    /// Registers `count` private buffers of `size` octets each: local rights only, handed over when
    /// posted, and an ordinary `&mut [u8]` while the program holds one.
    ///
    /// # Errors
    /// Out of memory, or a total beyond `max_mr_size`.
    pub fn register_buffers(&self, count: u32, size: usize) -> Started<BufferPool> {
        let Some(pool) = BufferPool::new(count, size).filter(|_| u32::try_from(size).is_ok())
        else {
            return Started::ready(Err(VerbError::Resources("memory")));
        };
        let length = pool.allocation().len();
        let memory = RegionMemory::owned(Arc::clone(pool.allocation()), 0, length);
        let (started, outcome) = self.context().begin();
        self.reg_mr(memory, MrOptions::new(Access::LOCAL_WRITE), None, true)
            .on_done(move |result| {
                outcome.complete(result.map(|mr| {
                    pool.registered(mr.lkey(), Box::new(mr));
                    pool
                }));
            });
        started
    }

    /// Allocates a key without memory, for fast-registers of at most `max_num_sg` pages, blocks or
    /// elements. Needs [`Features::BMME`].
    ///
    /// # Errors
    /// The feature is missing, or `max_num_sg` is 0 or beyond `max_fast_reg_page_list_len`.
    #[doc(alias = "ib_alloc_mr")]
    pub fn alloc_key(&self, max_num_sg: u32) -> Started<MrKey> {
        let checks = || {
            self.context().require(Features::BMME)?;
            if max_num_sg == 0 {
                return Err(VerbError::argument(
                    "max_num_sg",
                    "is 0: a key is for at least one page",
                ));
            }
            self.check_limit(Limit::MaxFastRegPageListLen, u64::from(max_num_sg))?;
            self.birth(ObjectKind::Mr)
        };
        self.make(checks, move |pd, birth, outcome| {
            let id = birth.id();
            let reply = Reply::new(move |result: Result<_, VerbError>| {
                outcome.complete(result.map(|ops| MrKey::new(birth, ops, max_num_sg)));
            });
            pd.ops.alloc_mr(id, max_num_sg, reply);
        })
    }

    /// Makes a memory window. Type 1 needs [`Features::WINDOW_1`], type 2 one of
    /// [`Features::WINDOW_2A`] and [`Features::WINDOW_2B`].
    ///
    /// # Errors
    /// The feature is missing.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, mw_type: MwType) -> Started<Mw> {
        let checks = || {
            self.context().require_window(mw_type)?;
            self.birth(ObjectKind::Mw)
        };
        self.make(checks, move |pd, birth, outcome| {
            let id = birth.id();
            let reply = Reply::new(move |result: Result<_, VerbError>| {
                outcome.complete(result.map(|ops| Mw::new(birth, ops, mw_type)));
            });
            pd.ops.alloc_mw(id, mw_type, reply);
        })
    }

    /// Makes a shared receive queue. Needs [`Features::SRQ`].
    ///
    /// # Errors
    /// The feature is missing, or a number is beyond its limit.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, options: SrqOptions) -> Started<Srq> {
        self.make_srq(options, None)
    }

    /// The same for an extension whose shared receive queues have a completion queue of their own, which is busy as long
    /// as this lives. What completes there is the extension's to say.
    ///
    /// # Errors
    /// As [`create_srq`](Self::create_srq); the extension's feature was not granted.
    pub fn create_srq_of(
        &self,
        extension: SrqExtension,
        options: SrqOptions,
        cq: &Cq,
    ) -> Started<Srq> {
        self.make_srq(options, Some((extension, cq)))
    }

    fn make_srq(&self, options: SrqOptions, of: Option<(SrqExtension, &Cq)>) -> Started<Srq> {
        let checks = || {
            self.context().require(Features::SRQ)?;
            self.check_limit(Limit::MaxSrqWr, u64::from(options.max_wr))?;
            self.check_limit(Limit::MaxSrqSge, u64::from(options.max_sge))?;
            options.check()?;
            let Some((extension, cq)) = &of else {
                return self.birth(ObjectKind::Srq);
            };
            let grant = &self.context().grant;
            grant.require(extension.extension(), extension.feature())?;
            if !Arc::ptr_eq(cq.object().node.context(), self.context()) {
                return Err(VerbError::argument("cq", ArgumentReason::AnotherDevice));
            }
            let parents = vec![Arc::clone(&self.object) as _, Arc::clone(cq.object()) as _];
            Birth::new(self.context(), ObjectKind::Srq, parents)
        };
        let extension = of
            .as_ref()
            .map(|(extension, cq)| (extension.clone(), Arc::clone(cq.ops())));
        self.make(checks, move |pd, birth, outcome| {
            let SrqOptions {
                max_wr,
                max_sge,
                srq_limit,
            } = options;
            let init = SrqInit {
                id: birth.id(),
                max_wr,
                max_sge,
                srq_limit,
                extension,
            };
            let reply = Reply::new(move |result: Result<_, VerbError>| {
                outcome.complete(result.map(|ops| Srq::new(birth, ops)));
            });
            pd.ops.create_srq(init, reply);
        })
    }

    /// Makes a queue pair for the operations that it will do: the whole set is granted, or creation fails.
    ///
    /// # Errors
    /// The features or baseline abilities that are missing, an operation that the service does not
    /// have, a number beyond its limit, or a queue of another device.
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_qp(&self, options: QpOptions) -> Started<Qp> {
        Qp::create(self, options)
    }

    /// Makes an address handle: a route for datagrams.
    ///
    /// # Errors
    /// There is no such port or no such identifier on it.
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
            self.birth(ObjectKind::Ah)
        };
        self.make(checks, move |pd, birth, outcome| {
            let id = pd.node.id();
            let reply = Reply::new(move |result: Result<_, VerbError>| {
                outcome.complete(result.map(|ops| Ah::new(birth, ops, id)));
            });
            pd.ops.create_ah(path, reply);
        })
    }

    /// Makes an address handle that leads back to the sender of a datagram: see [`AddressVector::answering`].
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
        let port = self.context().query_port(port_num);
        match port.and_then(|port| AddressVector::answering(&port, completion, grh)) {
            Ok(path) => self.create_ah(path),
            Err(error) => Started::ready(Err(error)),
        }
    }

    /// Gives the domain back: Busy while regions, windows, queues or address handles are in it.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn destroy(self) -> Started<(), DestroyError<Self>> {
        destroy(self)
    }

    pub(crate) fn context(&self) -> &Arc<ContextInner> {
        self.object.node.context()
    }

    pub(crate) fn check_limit(&self, limit: Limit, wanted: u64) -> Result<(), VerbError> {
        self.context()
            .attributes()
            .limits
            .check(limit, wanted)
            .map_err(VerbError::Limit)
    }

    fn birth(&self, kind: ObjectKind) -> Result<Birth, VerbError> {
        Birth::new(
            self.context(),
            kind,
            [Arc::clone(&self.object) as Arc<dyn AnyObject>],
        )
    }

    // Checks, then starts: nothing of the provider is called where a check fails.
    fn make<T: Send + 'static, B>(
        &self,
        checks: impl FnOnce() -> Result<B, VerbError>,
        start: impl FnOnce(Arc<PdObject>, B, crate::context::Outcome<T>),
    ) -> Started<T> {
        match checks() {
            Err(error) => Started::ready(Err(error)),
            Ok(birth) => {
                let (started, outcome) = self.context().begin();
                start(Arc::clone(&self.object), birth, outcome);
                started
            }
        }
    }

    fn reg_mr(
        &self,
        memory: RegionMemory,
        options: MrOptions,
        range: Option<MemoryRange>,
        private: bool,
    ) -> Started<Mr> {
        let length = memory.len() as u64;
        let checks = || {
            options.check(self.context())?;
            self.check_limit(Limit::MaxMrSize, length)?;
            self.birth(ObjectKind::Mr)
        };
        let kind = if private {
            RegionKind::Private
        } else {
            RegionKind::Ordinary
        };
        let shape = options.shape(&memory);
        self.make(checks, |pd, birth, outcome| {
            let init = MrInit {
                id: birth.id(),
                memory,
                iova: shape.iova,
                access: options.access,
                private,
            };
            let reply = Reply::new(move |result: Result<_, VerbError>| {
                outcome.complete(result.map(|ops| Mr::new(birth, ops, shape, range, kind)));
            });
            pd.ops.reg_mr(init, reply);
        })
    }
}

impl Handle for Pd {
    type Ops = dyn PdOps;
    type Extra = ();

    fn object(&self) -> &Arc<PdObject> {
        &self.object
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.object.node.holder())
    }
}

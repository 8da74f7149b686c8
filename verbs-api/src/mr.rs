//! Memory regions, and allocated keys, to which a fast-register gives memory.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use crate::access::Access;
use crate::capability::{BaselineGaps, Features, Limit};
use crate::context::Context;
use crate::contract::{MrChange, MrInit, MrOps};
use crate::control::{Reply, Started};
use crate::error::{ArgumentReason, VerbError};
use crate::ids::{LKey, RKey};
use crate::lifecycle::{
    AnyObject, ContextCore, DestroyError, Extra, Handle, Hold, Object, ObjectBuilder, Ops,
    by_identity, destroy,
};
use crate::lock::Mutex;
use crate::mem::{BufferPool, MemoryRange, OutOfRange, RegionMemory, Sge};
use crate::object_id::{ObjectId, ObjectKind};
use crate::pd::Pd;
use crate::wr::{RemoteAddress, WindowRegion};

/// The options with which memory is registered.
///
/// ```no_run
/// # fn example(pd: &verbs_api::Pd, memory: &verbs_api::Memory) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::{Access, MrOptions};
/// // Peers count from an address of the program's choice, wherever the memory lies.
/// let options = MrOptions::new(Access::LOCAL_WRITE | Access::REMOTE_READ).iova(0x10_0000);
/// let region = pd.register_with(memory, options).wait()?;
/// assert_eq!(region.remote(16).addr, 0x10_0010);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrOptions {
    pub(crate) access: Access,
    pub(crate) on_demand: bool,
    iova: Option<u64>,
}

impl MrOptions {
    /// Options with these access rights. Requests address the first byte by its own address in the process.
    pub const fn new(access: Access) -> Self {
        Self {
            access,
            on_demand: false,
            iova: None,
        }
    }

    /// Lets the pages of the memory come and go while it is registered, as with memory that is not resident when it is
    /// registered. Needs [`Features::ON_DEMAND`]. [`Memory::prefetch`](crate::Memory::prefetch) makes pages present beforehand.
    #[doc(alias = "IBV_ACCESS_ON_DEMAND")]
    #[must_use]
    pub const fn on_demand(mut self) -> Self {
        self.on_demand = true;
        self
    }

    /// Sets the address by which requests and peers name the first byte.
    #[must_use]
    pub const fn iova(mut self, iova: u64) -> Self {
        self.iova = Some(iova);
        self
    }

    /// Makes addresses count from the first byte of the region. Needs [`Features::ZBVA`].
    #[must_use]
    pub const fn zero_based(mut self) -> Self {
        self.access = self.access.union(Access::ZERO_BASED);
        self
    }

    pub(crate) fn check(&self, context: &ContextCore) -> Result<(), VerbError> {
        check_access(self.access, context)?;
        if self.on_demand {
            context.require(Features::ON_DEMAND)?;
        }
        if self.access.contains(Access::ZERO_BASED) && self.iova.is_some_and(|iova| iova != 0) {
            return Err(VerbError::argument(
                "iova",
                "must be 0 or absent with ZERO_BASED",
            ));
        }
        Ok(())
    }

    pub(crate) fn shape(&self, memory: &RegionMemory) -> Shape {
        let zero_based = self.access.contains(Access::ZERO_BASED);
        let address = if zero_based {
            0
        } else {
            memory.address() as u64
        };
        Shape {
            iova: self.iova.unwrap_or(address),
            length: memory.len() as u64,
        }
    }
}

fn check_access(access: Access, context: &ContextCore) -> Result<(), VerbError> {
    if let Some(reason) = access.illegal() {
        return Err(VerbError::argument("access", reason));
    }
    let mut needed = Features::empty();
    needed.set(Features::ZBVA, access.contains(Access::ZERO_BASED));
    needed.set(
        Features::FLUSH,
        access.intersects(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT),
    );
    context.require(needed)
}

/// The address range of a region, as requests name it.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) iova: u64,
    length: u64,
}

/// What kind of region a key belongs to. `find_mr` returns only ordinary ones.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegionKind {
    Key,
    Ordinary,
    Private,
}

pub(crate) struct MrExtra {
    kind: RegionKind,
    shape: CurrentShape,
    // Locked while the shape is changed.
    range: Mutex<Option<MemoryRange>>,
    // The low byte that a key was last given.
    key_byte: AtomicU8,
}

/// A seqlock over the [`Shape`] of a region, which every request reads and which hardly ever changes: readers take no lock,
/// and retry if it changed while they read it.
struct CurrentShape {
    // Odd while a change is in progress.
    version: AtomicU32,
    iova: AtomicU64,
    length: AtomicU64,
}

impl CurrentShape {
    fn new(shape: Shape) -> Self {
        Self {
            version: AtomicU32::new(0),
            iova: AtomicU64::new(shape.iova),
            length: AtomicU64::new(shape.length),
        }
    }

    #[inline]
    fn get(&self) -> Shape {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let shape = Shape {
                iova: self.iova.load(Ordering::Relaxed),
                length: self.length.load(Ordering::Relaxed),
            };
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                return shape;
            }
            std::hint::spin_loop();
        }
    }

    // One at a time.
    fn set(&self, shape: Shape) {
        let before = self.version.load(Ordering::Relaxed);
        self.version
            .store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.iova.store(shape.iova, Ordering::Relaxed);
        self.length.store(shape.length, Ordering::Relaxed);
        self.version
            .store(before.wrapping_add(2), Ordering::Release);
    }
}

impl Extra for MrExtra {}

impl Ops for dyn MrOps {
    fn destroy(&self, reply: Reply<()>) {
        MrOps::dereg(self, reply);
    }

    fn number(&self) -> Option<u32> {
        Some(self.lkey().value())
    }
}

pub(crate) type MrObject = Object<dyn MrOps, MrExtra>;

/// A memory region. A clone is another handle of the same region.
///
/// ```no_run
/// # fn example(pd: &verbs_api::Pd, qp: &verbs_api::Qp) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::{Access, Memory, wr};
/// let memory = Memory::zeroed(4096)?;
/// let region = pd.register(&memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE).wait()?;
/// memory.write(0, &region.remote(1024).to_bytes())?; // where the peer may write
/// qp.post_one(wr::Send::new(region.sge(0, 12)?))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_mr")]
pub struct Mr {
    pub(crate) object: Arc<MrObject>,
}

/// The changes that [`Mr::rereg`] makes to a region; a property that is not set is kept.
///
/// ```no_run
/// # fn example(pd: &verbs_api::Pd, region: &verbs_api::Mr) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::{Access, Memory, memory::MrReregister};
/// // Other memory behind the same handle, with other rights; the domain stays.
/// let larger = Memory::zeroed(1 << 20)?;
/// let change = MrReregister::new().memory(&larger).access(Access::LOCAL_WRITE);
/// region.rereg(change).wait()?;
/// assert_eq!(region.len(), 1 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct MrReregister {
    translation: Option<(RegionMemory, Option<MemoryRange>)>,
    keeps_keys: bool,
    iova: Option<u64>,
    pd: Option<Pd>,
    access: Option<Access>,
}

impl MrReregister {
    /// Creates a change that changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets other memory, whose first byte is addressed by its own address in the process.
    #[must_use]
    pub fn memory(mut self, memory: impl Into<MemoryRange>) -> Self {
        let range = memory.into();
        self.translation = Some((RegionMemory::from(&range), Some(range)));
        self
    }

    /// Sets other memory that the program itself keeps valid.
    ///
    /// # Safety
    /// As for [`Pd::register_borrowed`], for every region that this or a clone is applied to.
    #[allow(unsafe_code)]
    #[must_use]
    pub unsafe fn borrowed(mut self, address: *mut u8, length: usize) -> Self {
        // SAFETY: the caller's.
        let memory = unsafe { RegionMemory::borrowed(address, length) };
        self.translation = Some((memory, None));
        self
    }

    /// Keeps the keys of the region although its memory changes, so that peers reach the new memory by the keys that they
    /// have. Emulated devices do this; on other devices the keys may change.
    #[must_use]
    pub fn keep_keys(mut self) -> Self {
        self.keeps_keys = true;
        self
    }

    /// Sets the address by which requests and peers name the first byte of the new memory.
    #[must_use]
    pub fn iova(mut self, iova: u64) -> Self {
        self.iova = Some(iova);
        self
    }

    /// Sets another protection domain of the same device.
    #[must_use]
    pub fn pd(mut self, pd: &Pd) -> Self {
        self.pd = Some(pd.clone());
        self
    }

    /// Sets the new access rights of the region.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }
}

impl Context {
    /// Returns the memory region with this identity; `None` if it was deregistered. Regions of buffer pools and allocated
    /// keys are not found.
    #[doc(hidden)] // Tests look up by it whether a destroyed object is gone.
    pub fn find_mr(&self, id: ObjectId) -> Option<Mr> {
        Mr::found(self.find(id)?)
    }
}

impl Pd {
    /// Registers memory with these rights. The memory is kept alive while it is registered or used by a request.
    ///
    /// # Errors
    /// The rights cannot be combined, the length exceeds `max_mr_size`, or a feature is missing.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(&self, memory: impl Into<MemoryRange>, access: Access) -> Started<Mr> {
        self.register_with(memory, MrOptions::new(access))
    }

    /// Registers memory with these options.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    #[doc(alias = "ibv_reg_mr_iova2")]
    pub fn register_with(&self, memory: impl Into<MemoryRange>, options: MrOptions) -> Started<Mr> {
        let range = memory.into();
        self.reg_mr(RegionMemory::from(&range), options, Some(range), false)
    }

    /// Registers memory that the program itself keeps valid.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    ///
    /// # Safety
    /// `length` bytes from `address` stay mapped, and readable and writable, until the
    /// deregistration or a change to other memory has completed, or the last handle of the region and everything
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

    /// Registers `count` buffers of `size` bytes each, with local rights only. A buffer belongs to the device while it is
    /// posted, and is an ordinary `&mut [u8]` while the program holds it.
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
            self.builder(ObjectKind::Mr)
        };
        self.make(checks, move |pd, builder, outcome| {
            let id = builder.id();
            let reply = Reply::new(move |result: Result<_, VerbError>| {
                outcome.complete(result.map(|ops| MrKey::new(builder, ops, max_num_sg)));
            });
            pd.ops.alloc_mr(id, max_num_sg, reply);
        })
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
            self.builder(ObjectKind::Mr)
        };
        let kind = if private {
            RegionKind::Private
        } else {
            RegionKind::Ordinary
        };
        let shape = options.shape(&memory);
        self.make(checks, |pd, builder, outcome| {
            let init = MrInit {
                id: builder.id(),
                memory,
                iova: shape.iova,
                access: options.access,
                on_demand: options.on_demand,
                private,
            };
            let reply = Reply::new(move |result: Result<_, VerbError>| {
                outcome.complete(result.map(|ops| Mr::new(builder, ops, shape, range, kind)));
            });
            pd.ops.reg_mr(init, reply);
        })
    }
}

impl Mr {
    pub(crate) fn new(
        builder: ObjectBuilder,
        ops: Arc<dyn MrOps>,
        shape: Shape,
        range: Option<MemoryRange>,
        kind: RegionKind,
    ) -> Self {
        let extra = MrExtra {
            kind,
            shape: CurrentShape::new(shape),
            range: Mutex::new(range),
            key_byte: AtomicU8::new(ops.lkey().key_byte()),
        };
        Self {
            object: builder.finish(ops, extra),
        }
    }

    // Buffers of private memory are exclusive slices: their region must not be reachable by `find_mr`.
    pub(crate) fn found(object: Arc<MrObject>) -> Option<Self> {
        (object.extra.kind == RegionKind::Ordinary).then_some(Self { object })
    }

    /// Returns the identity of the region.
    pub fn id(&self) -> ObjectId {
        self.object.node.id()
    }

    /// Returns the key for local requests.
    pub fn lkey(&self) -> LKey {
        self.object.ops.lkey()
    }

    /// Returns the key for peers; 0 where no remote access was granted.
    pub fn rkey(&self) -> RKey {
        self.object.ops.rkey()
    }

    /// Returns the length of the region in bytes.
    pub fn len(&self) -> usize {
        self.shape().length as usize
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address by which requests and peers name the first byte; 0 if the region is zero-based.
    pub fn iova(&self) -> u64 {
        self.shape().iova
    }

    /// Returns the memory of the region; `None` if the program keeps it itself, or if it is that of a buffer pool.
    pub fn memory(&self) -> Option<MemoryRange> {
        self.object.extra.range.lock().clone()
    }

    /// Returns a range of the region, for the scatter/gather list of a request.
    ///
    /// # Errors
    /// The range is out of bounds.
    pub fn sge(&self, offset: usize, length: u32) -> Result<Sge, OutOfRange> {
        let Shape { iova, length: size } = self.shape();
        let end = (offset as u64).checked_add(u64::from(length));
        if end.is_none_or(|end| end > size) {
            return Err(OutOfRange {
                offset,
                length: length as usize,
                size: size as usize,
            });
        }
        Ok(Sge::new(
            iova.wrapping_add(offset as u64),
            length,
            self.lkey(),
        ))
    }

    /// Returns the whole region as one entry, but at most 2^32 - 1 bytes, which is all that an entry can name.
    pub fn sge_all(&self) -> Sge {
        let Shape { iova, length } = self.shape();
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Sge::new(iova, length, self.lkey())
    }

    /// Returns the address and key by which a peer reaches the byte at `offset`.
    pub fn remote(&self, offset: u64) -> RemoteAddress {
        RemoteAddress::new(self.iova().wrapping_add(offset), self.rkey())
    }

    /// Changes memory, protection domain or rights of the region; the keys may change too.
    ///
    /// # Errors
    /// As a registration; Busy while windows are bound to it, as for [`deregister`](Self::deregister). After these the
    /// region is as it was; after any other error it can only be deregistered.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn rereg(&self, change: MrReregister) -> Started<()> {
        match self.start_rereg(change) {
            Ok(started) => started,
            Err(error) => Started::ready(Err(error)),
        }
    }

    fn start_rereg(&self, change: MrReregister) -> Result<Started<()>, VerbError> {
        let context = &self.object.context;
        context.check_gap(BaselineGaps::NO_REREG_MR)?;
        let ticket = self.object.begin_request()?;
        let MrReregister {
            translation,
            keeps_keys,
            iova,
            pd,
            access,
        } = change;
        check_access(access.unwrap_or_default(), context)?;
        if iova.is_some() && translation.is_none() {
            return Err(VerbError::argument(
                "iova",
                "can be changed only together with the memory",
            ));
        }
        if pd
            .as_ref()
            .is_some_and(|pd| !Arc::ptr_eq(pd.context(), context))
        {
            return Err(VerbError::argument("pd", ArgumentReason::AnotherDevice));
        }
        let user = self.object.node.user();
        let hold = pd
            .as_ref()
            .map(|pd| Hold::new(Arc::clone(&pd.object) as Arc<dyn AnyObject>, user))
            .transpose()?;
        let translation = translation.map(|(memory, range)| {
            let iova = iova.unwrap_or_else(|| memory.address() as u64);
            let shape = Shape {
                iova,
                length: memory.len() as u64,
            };
            (memory, shape, range)
        });
        if let Some((memory, ..)) = &translation {
            let limits = &context.attributes().limits;
            limits
                .check(Limit::MaxMrSize, memory.len() as u64)
                .map_err(VerbError::Limit)?;
        }
        let change = MrChange {
            translation: translation
                .as_ref()
                .map(|(memory, shape, _)| (memory.clone(), shape.iova)),
            keeps_keys,
            pd: pd.map(|pd| Arc::clone(&pd.object.ops)),
            access,
        };
        let (started, outcome) = context.begin();
        let object = Arc::clone(&self.object);
        let ops = Arc::clone(&object.ops);
        ops.rereg(
            change,
            Reply::new(move |result| {
                if result.is_ok() {
                    if let Some((_, shape, range)) = translation {
                        object.extra.changed(shape, range);
                    }
                    drop(hold.map(|hold| object.node.swap_parent(hold)));
                }
                drop(ticket);
                let table = Arc::clone(object.context.table());
                drop(object);
                outcome.complete(result.map_err(|error| table.name_holders(error)));
            }),
        );
        Ok(started)
    }

    /// Deregisters the region: revokes the keys at once, and completes when no access to the memory is in progress. Fails
    /// with Busy while windows are bound to the region, on a device that knows of them; on others such windows grant no
    /// access afterwards. A posted request that uses the region later completes with a protection error.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Started<(), DestroyError<Self>> {
        destroy(self)
    }

    #[inline]
    fn shape(&self) -> Shape {
        self.object.extra.shape.get()
    }
}

impl MrExtra {
    fn changed(&self, shape: Shape, range: Option<MemoryRange>) {
        let mut current = self.range.lock();
        self.shape.set(shape);
        let before = std::mem::replace(&mut *current, range);
        drop(current);
        drop(before);
    }
}

impl Handle for Mr {
    type Ops = dyn MrOps;
    type Extra = MrExtra;

    fn object(&self) -> &Arc<MrObject> {
        &self.object
    }
}

by_identity!(Mr: Handle::object);

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.object.node.holder())
    }
}

/// An allocated key: a fast-register gives it memory, and an invalidate takes the memory away. Its clones are handles of
/// one key.
///
/// The device owns the index, the program the low byte. Give it a fresh one for each use, with
/// [`next_consumer_key`](Self::next_consumer_key): a peer that kept an earlier key is then refused.
///
/// ```no_run
/// # fn example(pd: &verbs_api::Pd) -> Result<(), verbs_api::VerbError> {
/// let mut key = pd.alloc_key(256).wait()?;
/// key = key.next_consumer_key(); // before each fast-register
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MrKey {
    mr: Mr,
    max_num_sg: u32,
}

impl MrKey {
    pub(crate) fn new(builder: ObjectBuilder, ops: Arc<dyn MrOps>, max_num_sg: u32) -> Self {
        let shape = Shape { iova: 0, length: 0 };
        Self {
            mr: Mr::new(builder, ops, shape, None, RegionKind::Key),
            max_num_sg,
        }
    }

    /// Returns the identity of the key.
    pub fn id(&self) -> ObjectId {
        self.mr.id()
    }

    /// Returns the largest number of pages, blocks or elements that a fast-register may register with the key.
    pub fn max_num_sg(&self) -> u32 {
        self.max_num_sg
    }

    /// Advances the key to the next consumer byte, for the next fast-register, and returns it. All clones share the byte.
    #[must_use = "this is the key to register with"]
    #[doc(alias = "ib_update_fast_reg_key")]
    #[doc(alias = "ibv_inc_rkey")]
    pub fn next_consumer_key(self) -> Self {
        self.advance();
        self
    }

    /// Advances the key to the next consumer byte, for the next fast-register, and returns the key for peers.
    pub fn advance(&self) -> RKey {
        self.mr
            .object
            .extra
            .key_byte
            .fetch_add(1, Ordering::Relaxed);
        self.rkey()
    }

    /// Returns the key for peers, with the current consumer byte.
    pub fn rkey(&self) -> RKey {
        let rkey = self.mr.rkey();
        // A device that reports no remote key before memory is registered has one key for both.
        let rkey = if rkey.value() == 0 {
            RKey::new(self.mr.lkey().value())
        } else {
            rkey
        };
        rkey.with_key_byte(self.key_byte())
    }

    /// Returns the key for local requests, with the current consumer byte.
    pub fn lkey(&self) -> LKey {
        self.mr.lkey().with_key_byte(self.key_byte())
    }

    /// Returns an entry for a range of the memory that the key was registered with.
    pub fn sge(&self, addr: u64, length: u32) -> Sge {
        Sge::new(addr, length, self.lkey())
    }

    /// Returns the address and key by which a peer reaches `addr`.
    pub fn remote(&self, addr: u64) -> RemoteAddress {
        RemoteAddress::new(addr, self.rkey())
    }

    /// Frees the key; memory that is registered with it is deregistered. Fails with Busy as [`Mr::deregister`] does.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Started<(), DestroyError<Self>> {
        destroy(self)
    }

    fn key_byte(&self) -> u8 {
        self.mr.object.extra.key_byte.load(Ordering::Relaxed)
    }
}

impl From<&MrKey> for RKey {
    fn from(key: &MrKey) -> Self {
        key.rkey()
    }
}

impl Handle for MrKey {
    type Ops = dyn MrOps;
    type Extra = MrExtra;

    fn object(&self) -> &Arc<MrObject> {
        &self.mr.object
    }
}

by_identity!(MrKey: Handle::object);

impl fmt::Debug for MrKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (key {})", self.mr.object.node.holder(), self.rkey())
    }
}

impl<'a> From<&'a Mr> for WindowRegion<'a> {
    #[inline]
    fn from(mr: &'a Mr) -> Self {
        Self {
            region: &mr.object,
            key_byte: mr.lkey().key_byte(),
        }
    }
}

impl<'a> From<&'a MrKey> for WindowRegion<'a> {
    #[inline]
    fn from(key: &'a MrKey) -> Self {
        Self {
            region: &key.mr.object,
            key_byte: key.lkey().key_byte(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_read_whole_while_it_changes() {
        const CHANGES: u64 = if cfg!(miri) { 100 } else { 100_000 };
        let shape = |number| Shape {
            iova: number,
            length: !number,
        };
        let current = CurrentShape::new(shape(0));
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=CHANGES).for_each(|number| current.set(shape(number))));
            let mut last = 0;
            while last < CHANGES {
                let Shape { iova, length } = current.get();
                assert_eq!(length, !iova, "of two changes");
                assert!(iova >= last, "{iova} behind {last}");
                last = iova;
            }
        });
    }
}

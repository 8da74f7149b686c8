//! A pool of keys that are mapped and unmapped repeatedly by fast-register, like FMRs.
//!
//! It uses only verbs, so it works on every device with fast-register.
//!
//! Mapping and unmapping are work requests. The pool posts them on two queue pairs of its own that are connected to each other,
//! not on the program's: the program's send queue and completion queues are not used. They are two and not one that is its own
//! peer, because a stream transport needs two sides; nothing is ever sent between them.

use std::collections::HashMap;
use std::sync::Arc;

use thiserror::Error;

use verbs_api::provider::Mutex;
use verbs_api::{
    Access, Batch, Completion, Cq, Features, MrKey, Operations, PageList, Pd, Qp, QpOptions, RKey,
    RemoteAddress, Sge, Started, VerbError, WcStatus,
    completion::Notify,
    connect_pair,
    provider::{Completer, Operation},
    wr::{self, PostReason, SendFlags, WorkRequest},
};

/// The largest number of outstanding requests of one slot: a mapping invalidates the previous key and registers the next,
/// and an unmap may be posted before these two have completed.
const REQUESTS_PER_SLOT: u32 = 3;

/// The options with which an FMR pool is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct FmrPoolOptions {
    pool_size: u32,
    max_pages: u32,
    max_maps: u8,
    dirty_watermark: Option<u32>,
    access: Access,
}

impl FmrPoolOptions {
    /// Options of a pool with `pool_size` slots, each for at most `max_pages` pages, blocks or elements. By default a slot
    /// can be mapped 32 times before it is unmapped, and peers may read and write the memory.
    pub const fn new(pool_size: u32, max_pages: u32) -> Self {
        let access = Access::LOCAL_WRITE
            .union(Access::REMOTE_WRITE)
            .union(Access::REMOTE_READ);
        Self {
            pool_size,
            max_pages,
            max_maps: 32,
            dirty_watermark: None,
            access,
        }
    }

    /// Sets how often a slot can be mapped before it has to be unmapped, 1 to 255, because a key has 255 successors.
    pub const fn max_maps(mut self, max_maps: u8) -> Self {
        self.max_maps = max_maps;
        self
    }

    /// Sets how many dropped slots are collected before they are unmapped in one batch. By default a quarter of the pool.
    pub const fn dirty_watermark(mut self, slots: u32) -> Self {
        self.dirty_watermark = Some(slots);
        self
    }

    /// Sets the access rights of every mapping.
    pub const fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    fn check(&self) -> Result<(), VerbError> {
        if self.pool_size == 0 || self.max_pages == 0 || self.max_maps == 0 {
            let reason = "none of them is 0";
            return Err(VerbError::argument(
                "pool_size, max_pages, max_maps",
                reason,
            ));
        }
        // A bound window would prevent its slot from being unmapped.
        if self.access.contains(Access::MW_BIND) {
            let reason = "windows cannot be bound to what a pool maps";
            return Err(VerbError::argument("access", reason));
        }
        match self.access.illegal() {
            Some(reason) => Err(VerbError::argument("access", reason)),
            None => Ok(()),
        }
    }

    fn watermark(&self) -> usize {
        let quarter = (self.pool_size / 4).max(1);
        self.dirty_watermark.map_or(quarter, |slots| slots.max(1)) as usize
    }
}

/// Why a call of an FMR pool failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FmrError {
    /// Every slot is in use, or has been dropped and is not unmapped yet.
    #[error("every one of the {pool_size} slots is in use")]
    Exhausted {
        /// How many slots the pool has.
        pool_size: u32,
    },
    /// The slot has been mapped as often as is allowed; it must be unmapped first.
    #[error("mapped {max_maps} times since it was unmapped (max_maps): unmap it first")]
    MaxMapsExceeded {
        /// How often a slot can be mapped before it is unmapped.
        max_maps: u8,
    },
    /// The page list has more entries than a slot can map.
    #[error("{given} pages, at most {max_pages} (max_pages)")]
    TooManyPages {
        /// How many entries a slot can map.
        max_pages: u32,
        /// How many entries the page list has.
        given: u32,
    },
    /// A request of the pool could not be posted.
    #[error("not posted: {0}")]
    Post(PostReason),
    /// A request of the pool completed with this error: the pool is unusable.
    #[error("failed with {0:?}: the pool can only be dropped")]
    Failed(WcStatus),
    /// A control verb of the device failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

/// Memory that is mapped by a slot at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FmrMapping {
    /// The key by which peers reach the memory.
    pub rkey: RKey,
    /// The address of the first byte, as requests and peers name it.
    pub iova: u64,
    /// The length of the memory in bytes.
    pub length: u64,
    sge: Sge,
}

impl FmrMapping {
    /// Returns the address and key by which a peer reaches the byte at `offset`.
    pub const fn remote(&self, offset: u64) -> RemoteAddress {
        RemoteAddress::new(self.iova.wrapping_add(offset), self.rkey)
    }

    /// Returns a scatter/gather entry for a part of the memory.
    pub const fn sge(&self, offset: u64, length: u32) -> Sge {
        self.sge.at(self.iova.wrapping_add(offset), length)
    }
}

/// A pool of slots, each an allocated key that is mapped and unmapped repeatedly. A clone refers to the same pool, which
/// exists as long as one of its slots.
///
/// ```no_run
/// # fn example(pd: &verbs_api::Pd) -> Result<(), Box<dyn std::error::Error>> {
/// use bmme::{FmrPool, FmrPoolOptions};
/// use verbs_api::{Memory, PageList};
/// let pool = FmrPool::create(pd, FmrPoolOptions::new(8, 16)).wait()?;
/// let memory = Memory::zeroed(65_536)?;
/// let pages = PageList::map(&[(&memory).into()], 4096, 16)?.list;
/// let mut fmr = pool.take()?;
/// let mapping = fmr.map(&pages, pages.address()).wait()?;
/// // … the peer uses mapping.remote(0) …
/// pool.unmap([&mut fmr]).wait()?; // its key is dead
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "ib_create_fmr_pool")]
pub struct FmrPool {
    inner: Arc<Inner>,
}

struct Inner {
    options: FmrPoolOptions,
    state: Mutex<State>,
    qp: Qp,
    // The other side of a connection that carries no traffic.
    _peer: Qp,
    cq: Cq,
}

#[derive(Default)]
struct State {
    clean: Vec<Slot>,
    dirty: Vec<Slot>,
    waiting: HashMap<u64, Waiting>,
    next: u64,
}

type Waiting = Box<dyn FnOnce(WcStatus) + Send>;

struct Slot {
    key: MrKey,
    maps: u8,
    // The key as it was last registered, until it is invalidated.
    registered: Option<RKey>,
}

impl FmrPool {
    /// Makes a pool in a protection domain. Needs [`Features::BMME`].
    ///
    /// # Errors
    /// The feature is missing, or a number is 0 or exceeds the device's limits.
    pub fn create(pd: &Pd, options: FmrPoolOptions) -> Started<Self> {
        let context = pd.open_device();
        let missing = Features::BMME - context.features();
        let check = match missing.is_empty() {
            true => options.check(),
            false => Err(VerbError::Unsupported { missing }),
        };
        if let Err(error) = check {
            return Started::ready(Err(error));
        }
        let (started, outcome) = context.begin();
        let pd = pd.clone();
        let requests = options.pool_size.saturating_mul(REQUESTS_PER_SLOT);
        context.create_cq(requests).on_done(move |cq| match cq {
            Ok(cq) => Self::make_pair(&pd, cq, options, move |made| outcome.complete(made)),
            Err(error) => outcome.complete(Err(error)),
        });
        started
    }

    fn make_pair(
        pd: &Pd,
        cq: Cq,
        options: FmrPoolOptions,
        done: impl FnOnce(Result<Self, VerbError>) + Send + 'static,
    ) {
        let local = Operations::FAST_REGISTER | Operations::LOCAL_INV;
        let requests = options.pool_size.saturating_mul(REQUESTS_PER_SLOT);
        let sized = QpOptions::rc(&cq).max_recv_wr(0).only(local);
        let first = pd.create_qp(sized.clone().max_send_wr(requests));
        let second = pd.create_qp(sized.max_send_wr(1));
        let pd = pd.clone();
        first.on_done(move |first| {
            second.on_done(move |second| {
                let (qp, peer) = match (first, second) {
                    (Ok(qp), Ok(peer)) => (qp, peer),
                    (Err(error), _) | (_, Err(error)) => return done(Err(error)),
                };
                connect_pair(&qp, &peer, Access::empty()).on_done(
                    move |connected| match connected {
                        Ok(()) => fill(pd, options, Vec::new(), move |slots| {
                            done(slots.map(|clean| Self::of(options, clean, (qp, peer), cq)));
                        }),
                        Err(error) => done(Err(error)),
                    },
                );
            });
        });
    }

    fn of(options: FmrPoolOptions, clean: Vec<Slot>, (qp, peer): (Qp, Qp), cq: Cq) -> Self {
        let state = State {
            clean,
            ..State::default()
        };
        let inner = Arc::new(Inner {
            options,
            state: Mutex::new(state),
            qp,
            _peer: peer,
            cq,
        });
        let pool = Arc::downgrade(&inner);
        inner.cq.on_completion(move |_| {
            if let Some(pool) = pool.upgrade() {
                pool.reap();
            }
        });
        Self { inner }
    }

    /// Returns the options of the pool.
    pub fn options(&self) -> FmrPoolOptions {
        self.inner.options
    }

    /// Returns how many slots can be taken without unmapping dropped ones first.
    pub fn available(&self) -> usize {
        self.inner.state.lock().clean.len()
    }

    /// Takes a slot. If only dropped slots are left, they are unmapped first.
    ///
    /// # Errors
    /// All slots are in use, or dropped ones are still being unmapped.
    #[doc(alias = "ib_alloc_fmr")]
    pub fn take(&self) -> Result<Fmr, FmrError> {
        let mut state = self.inner.state.lock();
        if state.clean.is_empty() {
            drop(state);
            drop(self.flush());
            state = self.inner.state.lock();
        }
        let pool_size = self.inner.options.pool_size;
        let slot = state.clean.pop().ok_or(FmrError::Exhausted { pool_size })?;
        let pool = Arc::clone(&self.inner);
        drop(state);
        Ok(Fmr {
            pool,
            slot: Some(slot),
        })
    }

    /// Unmaps slots in one batch. When it has completed, every key that they had is invalid, and each can be mapped as
    /// often as at first.
    ///
    /// # Errors
    /// A slot belongs to another pool, or the batch was not posted.
    #[doc(alias = "ib_unmap_fmr")]
    pub fn unmap<'f>(&self, slots: impl IntoIterator<Item = &'f mut Fmr>) -> Started<(), FmrError> {
        let mut slots: Vec<_> = slots.into_iter().collect();
        if slots.iter().any(|fmr| !Arc::ptr_eq(&fmr.pool, &self.inner)) {
            let reason = "a slot of another pool is among them";
            return Started::ready(Err(VerbError::argument("slots", reason).into()));
        }
        let slots = slots.iter_mut().filter_map(|fmr| fmr.slot.as_mut());
        self.inner.unmap(slots)
    }

    /// Unmaps all dropped slots in one batch; they can be taken again afterwards.
    ///
    /// # Errors
    /// The batch was not posted.
    #[doc(alias = "ib_flush_fmr_pool")]
    pub fn flush(&self) -> Started<(), FmrError> {
        self.inner.flush()
    }
}

// Allocates the keys, one after the other.
fn fill(
    pd: Pd,
    options: FmrPoolOptions,
    mut slots: Vec<Slot>,
    done: impl FnOnce(Result<Vec<Slot>, VerbError>) + Send + 'static,
) {
    if slots.len() == options.pool_size as usize {
        return done(Ok(slots));
    }
    pd.alloc_key(options.max_pages).on_done(move |key| {
        let key = match key {
            Ok(key) => key,
            Err(error) => return done(Err(error)),
        };
        slots.push(Slot {
            key,
            maps: 0,
            registered: None,
        });
        fill(pd, options, slots, done);
    });
}

/// A slot of a pool that is in use. Dropping it returns it to the pool, but its key stays valid until the pool unmaps
/// dropped slots in a batch.
pub struct Fmr {
    pool: Arc<Inner>,
    // `None` once it is dropped.
    slot: Option<Slot>,
}

impl Fmr {
    /// Maps `pages` under a new key, with the address `iova` for the first byte. The previous mapping of the slot ends.
    ///
    /// # Errors
    /// The slot has been mapped too often since it was last unmapped, or the list is too long.
    #[doc(alias = "ib_map_phys_fmr")]
    pub fn map(&mut self, pages: &PageList, iova: u64) -> Started<FmrMapping, FmrError> {
        match &mut self.slot {
            Some(slot) => self.pool.map(slot, pages, iova),
            None => Started::ready(Err(VerbError::Internal("a slot that was dropped").into())),
        }
    }

    /// Returns how often the slot can still be mapped before it has to be unmapped.
    pub fn maps_left(&self) -> u8 {
        let maps = self.slot.as_ref().map_or(0, |slot| slot.maps);
        self.pool.options.max_maps - maps
    }

    /// Unmaps the slot at once, instead of in a batch, and returns it to the pool.
    ///
    /// # Errors
    /// As [`FmrPool::unmap`].
    #[doc(alias = "ib_dealloc_fmr")]
    pub fn dealloc(mut self) -> Started<(), FmrError> {
        let Some(mut slot) = self.slot.take() else {
            return Started::ready(Ok(()));
        };
        let pool = Arc::clone(&self.pool);
        let started = pool.unmap([&mut slot]);
        pool.give_back(vec![slot], started)
    }
}

impl Drop for Fmr {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        let mut state = self.pool.state.lock();
        if slot.maps == 0 {
            return state.clean.push(slot);
        }
        state.dirty.push(slot);
        let is_due = state.dirty.len() >= self.pool.options.watermark();
        drop(state);
        if is_due {
            drop(self.pool.flush());
        }
    }
}

impl Inner {
    fn map(
        self: &Arc<Self>,
        slot: &mut Slot,
        pages: &PageList,
        iova: u64,
    ) -> Started<FmrMapping, FmrError> {
        let FmrPoolOptions {
            max_maps,
            max_pages,
            access,
            ..
        } = self.options;
        let given = pages.entries();
        if given > max_pages {
            return Started::ready(Err(FmrError::TooManyPages { max_pages, given }));
        }
        if slot.maps >= max_maps {
            return Started::ready(Err(FmrError::MaxMapsExceeded { max_maps }));
        }
        slot.maps += 1;
        let before = slot.registered;
        let rkey = slot.key.advance();
        let mapping = FmrMapping {
            rkey,
            sge: slot.key.sge(iova, 0),
            iova,
            length: pages.len(),
        };
        let mut requests: Vec<WorkRequest<'_>> = Vec::with_capacity(2);
        requests.extend(before.map(|key| wr::LocalInvalidate::new(key).into()));
        requests.push(
            wr::FastRegister::new(rkey, pages)
                .access(access)
                .iova(iova)
                .into(),
        );
        let (refused, started) = self.post(requests, mapping);
        slot.registered = match refused {
            0 => Some(rkey),
            // The invalidate in front of it was posted.
            1 => None,
            _ => before,
        };
        started
    }

    fn unmap<'s>(&self, slots: impl IntoIterator<Item = &'s mut Slot>) -> Started<(), FmrError> {
        let mut slots: Vec<_> = slots.into_iter().collect();
        for slot in &mut slots {
            if slot.registered.is_none() {
                slot.maps = 0;
            }
        }
        slots.retain(|slot| slot.registered.is_some());
        if slots.is_empty() {
            return Started::ready(Ok(()));
        }
        let keys = slots.iter().filter_map(|slot| slot.registered);
        let requests = keys
            .map(|key| wr::LocalInvalidate::new(key).into())
            .collect();
        let (refused, started) = self.post(requests, ());
        let posted = slots.len() - refused;
        for slot in &mut slots[..posted] {
            (slot.maps, slot.registered) = (0, None);
        }
        started
    }

    fn flush(self: &Arc<Self>) -> Started<(), FmrError> {
        let mut slots = std::mem::take(&mut self.state.lock().dirty);
        let started = self.unmap(&mut slots);
        self.give_back(slots, started)
    }

    // Returns slots whose unmap has completed; where it failed, they wait for another.
    fn give_back(
        self: &Arc<Self>,
        slots: Vec<Slot>,
        unmapped: Started<(), FmrError>,
    ) -> Started<(), FmrError> {
        let pool = Arc::downgrade(self);
        let (started, completer) = Started::pending();
        unmapped.on_done(move |result| {
            if let Some(pool) = pool.upgrade() {
                let mut state = pool.state.lock();
                for slot in slots {
                    match slot.registered {
                        None if result.is_ok() => state.clean.push(slot),
                        _ => state.dirty.push(slot),
                    }
                }
            }
            completer.complete(result);
        });
        started
    }

    // Posts requests with one doorbell. Returns how many were refused, and the `outcome` once the last has completed.
    fn post<T: Send + 'static>(
        &self,
        requests: Vec<WorkRequest<'_>>,
        outcome: T,
    ) -> (usize, Started<T, FmrError>) {
        let (started, completer) = Started::pending();
        let id = self.expect(completer, outcome);
        let mut batch = Batch::with_capacity(requests.len());
        let last = requests.len() - 1;
        for (index, mut request) in requests.into_iter().enumerate() {
            let mut flags = request.common().flags;
            flags.set(SendFlags::SIGNALED, index == last);
            request.set_common(id, flags);
            batch.push(request);
        }
        let posted = self.qp.post(&mut batch);
        if let Err(error) = posted {
            self.state.lock().waiting.remove(&id);
            return (
                batch.len(),
                Started::ready(Err(FmrError::Post(error.reason))),
            );
        }
        self.reap();
        (0, started)
    }

    fn expect<T: Send + 'static>(&self, completer: Completer<T, FmrError>, outcome: T) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let id = state.next;
        let waiting = move |status: WcStatus| {
            completer.complete(match status.is_success() {
                true => Ok(outcome),
                false => Err(FmrError::Failed(status)),
            });
        };
        state.waiting.insert(id, Box::new(waiting));
        id
    }

    // Handles completions. The requests of a batch share one id: the first completion counts.
    fn reap(&self) {
        let mut slots: [Completion; 16] = Default::default();
        while let Ok(done) = self.cq.poll(&mut slots) {
            for done in done.iter() {
                let waiting = self.state.lock().waiting.remove(&done.wr_id);
                if let Some(end) = waiting {
                    end(done.status);
                }
            }
            let is_quiet = done.is_empty();
            if is_quiet && (self.state.lock().waiting.is_empty() || !self.has_missed()) {
                return;
            }
        }
    }

    // Arms the queue for later completions; returns whether there are any already.
    fn has_missed(&self) -> bool {
        self.cq.arm(Notify::Next).unwrap_or(false)
    }
}

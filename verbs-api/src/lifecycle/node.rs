//! The state of one object: whether it lives, who uses it, and what it holds.

use std::any::Any;
use std::mem;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, MutexGuard, Weak};

use super::slab::Slab;
use super::table::{Reserved, Table};
use crate::error::VerbError;
use crate::lock::Mutex;
use crate::object_id::{Holder, ObjectId, ObjectKind};
use crate::post::PostReason;

const LIVE: u8 = 0;
const DESTROYING: u8 = 1;
const DESTROYED: u8 = 2;
const REMOVED: u8 = 3;

/// An object of any kind, such as a queue pair, as the lifecycle sees it.
pub(crate) trait AnyObject: Send + Sync + 'static {
    fn node(&self) -> &Node;
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
    /// Marks the object because the device was removed: from now on every use except destroying it is an error.
    fn remove(&self) {
        self.node().remove();
    }
    /// Wakes the tasks that wait for the object, because the device was removed.
    fn on_removed(&self);
    /// Returns the number by which the program knows the object, such as a queue pair number; `None` if it has none.
    fn number(&self) -> Option<u32>;
}

/// The lifecycle state of one object: whether it is alive, which objects use it, and which ones it uses.
pub(crate) struct Node {
    state: AtomicU8,
    kind: ObjectKind,
    id: ObjectId,
    uses: Mutex<Uses>,
}

/// An object or control request that uses another object. Kept small, because a domain has one for each of its queue pairs.
#[derive(Clone, Copy)]
pub(crate) struct User {
    pub(crate) kind: ObjectKind,
    pub(crate) id: ObjectId,
}

impl From<User> for Holder {
    fn from(user: User) -> Self {
        Self::new(user.kind, user.id)
    }
}

struct Uses {
    // Made for the first, and given back with the last: few of many queue pairs are in use at a time.
    users: Option<Box<Users>>,
    holdings: Holdings,
}

#[derive(Default)]
struct Users {
    // Holders, and control requests in flight.
    listed: Slab<User>,
    unacked: u32,
    when_acked: Option<Box<dyn FnOnce() + Send>>,
}

impl Uses {
    fn users(&mut self) -> &mut Users {
        self.users.get_or_insert_default()
    }

    fn remove(&mut self, slot: u32) {
        self.users().listed.remove(slot);
        self.give_back();
    }

    fn give_back(&mut self) {
        self.users
            .take_if(|users| users.unacked == 0 && users.listed.is_empty());
    }
}

/// What an object keeps until it is destroyed: its reserved identity, and its holds on its parents.
pub(crate) struct Holdings {
    reserved: Option<Reserved>,
    holds: Box<[Hold]>,
}

/// Why a destroy was not accepted.
pub(crate) enum Refusal {
    Dead(VerbError),
    Busy(Vec<Holder>),
}

impl Node {
    /// Creates the node of a new object.
    pub(super) fn new(
        kind: ObjectKind,
        id: ObjectId,
        holdings: Holdings,
        is_removed: bool,
    ) -> Self {
        let uses = Uses {
            users: None,
            holdings,
        };
        Self {
            state: AtomicU8::new(first_state(is_removed)),
            kind,
            id,
            uses: Mutex::new(uses),
        }
    }

    /// Makes the object findable by its identity.
    pub(super) fn publish(&self, object: Weak<dyn AnyObject>) {
        if let Some(reserved) = &self.lock().holdings.reserved {
            reserved.publish(object);
        }
    }

    /// Whether the object is alive. Costs one relaxed load.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.state.load(Ordering::Relaxed) == LIVE
    }

    #[cold]
    pub(crate) fn dead(&self) -> VerbError {
        match self.state.load(Ordering::Relaxed) {
            REMOVED => VerbError::DeviceRemoved,
            _ => VerbError::InvalidHandle(self.kind),
        }
    }

    #[cold]
    pub(crate) fn dead_reason(&self) -> PostReason {
        match self.state.load(Ordering::Relaxed) {
            REMOVED => PostReason::DeviceRemoved,
            _ => PostReason::InvalidHandle,
        }
    }

    #[inline]
    pub(crate) fn check_live(&self) -> Result<(), VerbError> {
        if self.is_live() {
            Ok(())
        } else {
            Err(self.dead())
        }
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.state.load(Ordering::Relaxed) == REMOVED
    }

    pub(crate) fn id(&self) -> ObjectId {
        self.id
    }

    pub(crate) fn kind(&self) -> ObjectKind {
        self.kind
    }

    pub(crate) fn holder(&self) -> Holder {
        self.user().into()
    }

    pub(crate) fn user(&self) -> User {
        User {
            kind: self.kind,
            id: self.id,
        }
    }

    /// Marks the object because the device was removed: from now on every use except destroying it is an error.
    pub(crate) fn remove(&self) {
        let _ = self
            .state
            .compare_exchange(LIVE, REMOVED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Accepts a destroy, after which the object can no longer be used, or returns why it is refused.
    pub(crate) fn begin_destroy(&self) -> Result<(), Refusal> {
        let uses = self.lock();
        let removed = match self.state.load(Ordering::Relaxed) {
            LIVE => false,
            REMOVED => true,
            _ => return Err(Refusal::Dead(VerbError::InvalidHandle(self.kind))),
        };
        // After a removal every request has ended, whether the provider answered it or not.
        let is_over = |user: &&User| removed && user.kind == ObjectKind::Request;
        let users = uses.users.iter().flat_map(|users| users.listed.iter());
        let users = users.filter(|user| !is_over(user));
        let holders: Vec<Holder> = users.map(|user| (*user).into()).collect();
        if !holders.is_empty() {
            return Err(Refusal::Busy(holders));
        }
        self.state.store(DESTROYING, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the object alive again, because the provider refused to destroy it.
    pub(super) fn revive(&self, is_removed: impl FnOnce() -> bool) {
        let _uses = self.lock();
        if self.state.load(Ordering::Relaxed) == DESTROYING {
            self.state
                .store(first_state(is_removed()), Ordering::Relaxed);
        }
    }

    /// Releases the object's holds on its parents without waiting for the provider: the device was removed while the object
    /// was being destroyed.
    pub(crate) fn abandon(&self) {
        let mut uses = self.lock();
        self.state.store(DESTROYED, Ordering::Relaxed);
        let holdings = uses.holdings.take();
        drop(uses);
        drop(holdings);
    }

    /// Notes that the provider has destroyed the object. Runs `done` when the program has acknowledged every event about
    /// it.
    pub(crate) fn finish_destroy(&self, done: impl FnOnce() + Send + 'static) {
        let mut uses = self.lock();
        self.state.store(DESTROYED, Ordering::Relaxed);
        let holdings = uses.holdings.take();
        let unacked = uses.users.as_mut().filter(|users| users.unacked > 0);
        let mut done = Some(done);
        if let Some(users) = unacked {
            users.when_acked = done.take().map(|done| Box::new(done) as _);
        }
        drop(uses);
        drop(holdings);
        if let Some(done) = done {
            done();
        }
    }

    /// Adds a user to the holders of the object; returns the number by which [`remove_holder`](Self::remove_holder) removes
    /// it.
    pub(crate) fn add_holder(&self, user: User) -> u32 {
        self.lock().users().listed.insert(user)
    }

    pub(crate) fn remove_holder(&self, slot: u32) {
        self.lock().remove(slot);
    }

    /// Replaces the hold on the first parent; returns the old one, which the caller drops when it holds no lock.
    pub(crate) fn swap_parent(&self, hold: Hold) -> Hold {
        match self.lock().holdings.holds.first_mut() {
            Some(first) => mem::replace(first, hold),
            None => hold,
        }
    }

    /// Returns what the object keeps, because its last handle and its last holder are gone; `None` if it was destroyed
    /// before.
    pub(super) fn begin_drop(&mut self) -> Option<Holdings> {
        let state = mem::replace(self.state.get_mut(), DESTROYED);
        let uses = self.uses.get_mut();
        (state != DESTROYED).then(|| uses.holdings.take())
    }

    fn lock(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock()
    }
}

const fn first_state(is_removed: bool) -> u8 {
    if is_removed { REMOVED } else { LIVE }
}

impl Holdings {
    /// Takes this identity, and a hold on each of the parents.
    pub(super) fn new(
        reserved: Reserved,
        parents: impl IntoIterator<Item = Arc<dyn AnyObject>>,
    ) -> Result<Self, VerbError> {
        let user = reserved.user();
        let parents = parents.into_iter();
        let holds = parents.map(|parent| Hold::new(parent, user));
        Ok(Self {
            holds: holds.collect::<Result<_, _>>()?,
            reserved: Some(reserved),
        })
    }

    pub(super) fn id(&self) -> ObjectId {
        let id = self.reserved.as_ref().map(Reserved::id);
        id.unwrap_or(ObjectId::new(0, 0))
    }

    fn take(&mut self) -> Self {
        Self {
            reserved: self.reserved.take(),
            holds: mem::take(&mut self.holds),
        }
    }
}

/// An object's reference to a parent: it keeps the parent alive, and lists the object among the parent's holders.
pub(crate) struct Hold {
    parent: Arc<dyn AnyObject>,
    slot: u32,
}

impl Hold {
    pub(crate) fn new(parent: Arc<dyn AnyObject>, user: User) -> Result<Self, VerbError> {
        let node = parent.node();
        let mut uses = node.lock();
        node.check_live()?;
        let slot = uses.users().listed.insert(user);
        drop(uses);
        Ok(Self { parent, slot })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.parent.node().remove_holder(self.slot);
    }
}

/// A control request in flight on an object, listed among its holders until it is dropped.
pub(crate) struct PendingRequest {
    object: Arc<dyn AnyObject>,
    slot: u32,
    _reserved: Reserved,
}

impl PendingRequest {
    pub(super) fn new(object: Arc<dyn AnyObject>, table: &Arc<Table>) -> Result<Self, VerbError> {
        let node = object.node();
        let reserved = table.reserve(ObjectKind::Request)?;
        let mut uses = node.lock();
        node.check_live()?;
        let slot = uses.users().listed.insert(reserved.user());
        drop(uses);
        Ok(Self {
            object,
            slot,
            _reserved: reserved,
        })
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        self.object.node().lock().remove(self.slot);
    }
}

/// The acknowledgement that the program owes for an event about an object; dropping it acknowledges the event.
pub(crate) struct Ack {
    object: Arc<dyn AnyObject>,
}

impl Ack {
    /// Creates the acknowledgement of a new event; `None` if the object is being destroyed, and the event is to be
    /// discarded.
    pub(crate) fn new(object: Arc<dyn AnyObject>) -> Option<Self> {
        let node = object.node();
        let mut uses = node.lock();
        if !(node.is_live() || node.is_removed()) {
            return None;
        }
        uses.users().unacked += 1;
        drop(uses);
        Some(Self { object })
    }

    pub(crate) fn object(&self) -> &Arc<dyn AnyObject> {
        &self.object
    }
}

impl Drop for Ack {
    fn drop(&mut self) {
        let mut uses = self.object.node().lock();
        let users = uses.users();
        users.unacked -= 1;
        let is_last = users.unacked == 0;
        let done = users.when_acked.take_if(|_| is_last);
        uses.give_back();
        drop(uses);
        if let Some(done) = done {
            done();
        }
    }
}

//! What the books say about one object.

use std::any::Any;
use std::mem;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::slab::Slab;
use super::table::{Reserved, Table};
use crate::error::VerbError;
use crate::object_id::{Holder, ObjectId, ObjectKind};
use crate::post::PostReason;

const LIVE: u8 = 0;
const DESTROYING: u8 = 1;
const DESTROYED: u8 = 2;
const REMOVED: u8 = 3;

/// An object of any kind.
pub(crate) trait AnyObject: Send + Sync + 'static {
    fn node(&self) -> &Node;
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
    /// The device was removed: every use but destroying is an error from now on.
    fn remove(&self) {
        self.node().remove();
    }
    /// The device was removed: whoever waits for the object is to look again.
    fn on_removed(&self);
    /// The number by which the program knows it, if it has one.
    fn number(&self) -> Option<u32>;
}

/// What the books say about one object.
pub(crate) struct Node {
    state: AtomicU8,
    kind: ObjectKind,
    id: ObjectId,
    book: Mutex<Book>,
}

/// Who uses an object. A domain has one for each of its queue pairs: it is kept small.
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

struct Book {
    holders: Slab<User>,
    requests: Slab<User>,
    unacked: u32,
    when_acked: Option<Box<dyn FnOnce() + Send>>,
    own: Own,
}

/// What an object holds: its identity, and its parents.
pub(crate) struct Own {
    reserved: Option<Reserved>,
    holds: Vec<Hold>,
}

/// Why a destroy was not accepted.
pub(crate) enum Refusal {
    Dead(VerbError),
    Busy(Vec<Holder>),
}

impl Node {
    /// The node of an object that was made, with what it holds.
    pub(super) fn new(kind: ObjectKind, id: ObjectId, own: Own, is_removed: bool) -> Self {
        let book = Book {
            holders: Slab::new(),
            requests: Slab::new(),
            unacked: 0,
            when_acked: None,
            own,
        };
        Self {
            state: AtomicU8::new(first_state(is_removed)),
            kind,
            id,
            book: Mutex::new(book),
        }
    }

    /// Has the object found by its identity.
    pub(super) fn publish(&self, object: Weak<dyn AnyObject>) {
        if let Some(reserved) = &self.lock().own.reserved {
            reserved.publish(object);
        }
    }

    /// One relaxed load.
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

    /// The device was removed: every use but destroying is an error from now on.
    pub(crate) fn remove(&self) {
        let _ = self
            .state
            .compare_exchange(LIVE, REMOVED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Accepts a destroy, or says why not.
    pub(crate) fn begin_destroy(&self) -> Result<(), Refusal> {
        let book = self.lock();
        let removed = match self.state.load(Ordering::Relaxed) {
            LIVE => false,
            REMOVED => true,
            _ => return Err(Refusal::Dead(VerbError::InvalidHandle(self.kind))),
        };
        // After a removal every request has ended, whether the provider answered it or not.
        let requests = book.requests.iter().filter(|_| !removed);
        let users = book.holders.iter().chain(requests);
        let holders: Vec<Holder> = users.map(|user| (*user).into()).collect();
        if !holders.is_empty() {
            return Err(Refusal::Busy(holders));
        }
        self.state.store(DESTROYING, Ordering::Relaxed);
        Ok(())
    }

    /// The provider refused to destroy the object.
    pub(super) fn revive(&self, is_removed: impl FnOnce() -> bool) {
        let _book = self.lock();
        if self.state.load(Ordering::Relaxed) == DESTROYING {
            self.state
                .store(first_state(is_removed()), Ordering::Relaxed);
        }
    }

    /// The object went with its device: it holds nothing any more, whatever the provider still does.
    pub(crate) fn abandon(&self) {
        let mut book = self.lock();
        self.state.store(DESTROYED, Ordering::Relaxed);
        let own = book.own.take();
        drop(book);
        drop(own);
    }

    /// The object is gone. Runs `done` when every event that the program was given is acknowledged.
    pub(crate) fn finish_destroy(&self, done: impl FnOnce() + Send + 'static) {
        let mut book = self.lock();
        self.state.store(DESTROYED, Ordering::Relaxed);
        let own = book.own.take();
        let waits = book.unacked > 0;
        let mut done = Some(done);
        if waits {
            book.when_acked = done.take().map(|done| Box::new(done) as _);
        }
        drop(book);
        drop(own);
        if let Some(done) = done {
            done();
        }
    }

    /// Shows `user` as one that uses the object.
    pub(crate) fn add_holder(&self, user: User) -> u32 {
        self.lock().holders.insert(user)
    }

    pub(crate) fn remove_holder(&self, slot: u32) {
        self.lock().holders.remove(slot);
    }

    /// Puts another parent in the place of the first; answers the hold to drop, with no lock held.
    pub(crate) fn swap_parent(&self, hold: Hold) -> Hold {
        match self.lock().own.holds.first_mut() {
            Some(first) => mem::replace(first, hold),
            None => hold,
        }
    }

    /// The last handle and the last holder are gone: what the object holds, unless it was destroyed.
    pub(super) fn begin_implicit(&mut self) -> Option<Own> {
        let state = mem::replace(self.state.get_mut(), DESTROYED);
        let book = self.book.get_mut().unwrap_or_else(PoisonError::into_inner);
        (state != DESTROYED).then(|| book.own.take())
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const fn first_state(is_removed: bool) -> u8 {
    if is_removed { REMOVED } else { LIVE }
}

impl Own {
    /// An identity, and a hold on each of the parents.
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

/// One use of an object by another: keeps it alive and shows in its list of holders.
pub(crate) struct Hold {
    parent: Arc<dyn AnyObject>,
    slot: u32,
}

impl Hold {
    pub(crate) fn new(parent: Arc<dyn AnyObject>, user: User) -> Result<Self, VerbError> {
        let node = parent.node();
        let mut book = node.lock();
        node.check_live()?;
        let slot = book.holders.insert(user);
        drop(book);
        Ok(Self { parent, slot })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.parent.node().remove_holder(self.slot);
    }
}

/// A control request in flight on an object.
pub(crate) struct Ticket {
    object: Arc<dyn AnyObject>,
    slot: u32,
    _reserved: Reserved,
}

impl Ticket {
    pub(super) fn new(object: Arc<dyn AnyObject>, table: &Arc<Table>) -> Result<Self, VerbError> {
        let node = object.node();
        let reserved = table.reserve(ObjectKind::Request)?;
        let mut book = node.lock();
        node.check_live()?;
        let slot = book.requests.insert(reserved.user());
        drop(book);
        Ok(Self {
            object,
            slot,
            _reserved: reserved,
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.object.node().lock().requests.remove(self.slot);
    }
}

/// An event about an object that the program was given; acknowledged when dropped.
pub(crate) struct Ack {
    object: Arc<dyn AnyObject>,
}

impl Ack {
    /// `None` where the object is on its way out: the event is discarded.
    pub(crate) fn new(object: Arc<dyn AnyObject>) -> Option<Self> {
        let node = object.node();
        let mut book = node.lock();
        if !(node.is_live() || node.is_removed()) {
            return None;
        }
        book.unacked += 1;
        drop(book);
        Some(Self { object })
    }

    pub(crate) fn object(&self) -> &Arc<dyn AnyObject> {
        &self.object
    }
}

impl Drop for Ack {
    fn drop(&mut self) {
        let mut book = self.object.node().lock();
        book.unacked -= 1;
        let done = if book.unacked == 0 {
            book.when_acked.take()
        } else {
            None
        };
        drop(book);
        if let Some(done) = done {
            done();
        }
    }
}

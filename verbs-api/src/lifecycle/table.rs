//! The objects of one context by identity.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard, Weak};

use super::node::{AnyObject, User};
use crate::error::VerbError;
use crate::lock::Mutex;
use crate::object_id::{Holder, ObjectId, ObjectKind};

// One sequence for the whole process, so that identities of different contexts differ.
static GENERATION: AtomicU32 = AtomicU32::new(1);

#[derive(Default)]
pub(crate) struct Table {
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    closed: bool,
}

struct Slot {
    generation: u32,
    entry: Option<(ObjectKind, Option<Weak<dyn AnyObject>>)>,
}

impl Table {
    /// Reserves an identity for an object, unless the context is closed.
    pub(crate) fn reserve(self: &Arc<Self>, kind: ObjectKind) -> Result<Reserved, VerbError> {
        let mut slots = self.lock();
        if slots.closed {
            return Err(VerbError::InvalidHandle(ObjectKind::Context));
        }
        let slot = Slot {
            generation: GENERATION.fetch_add(1, Ordering::Relaxed),
            entry: Some((kind, None)),
        };
        let generation = slot.generation;
        let index = match slots.free.pop() {
            Some(index) => {
                slots.slots[index as usize] = slot;
                index
            }
            None => {
                slots.slots.push(slot);
                slots.slots.len() as u32 - 1
            }
        };
        Ok(Reserved {
            table: Arc::clone(self),
            id: ObjectId::new(index, generation),
            kind,
        })
    }

    /// Returns the object with this identity; `None` if it was destroyed. Identities are never reused.
    pub(crate) fn find(&self, id: ObjectId) -> Option<Arc<dyn AnyObject>> {
        let slots = self.lock();
        let slot = slots
            .slots
            .get(id.index as usize)
            .filter(|slot| slot.generation == id.generation)?;
        slot.entry.as_ref()?.1.as_ref()?.upgrade()
    }

    /// Closes the table to new objects. Returns whether this was the first time; or, as the error, every identity in use,
    /// including those of objects under construction.
    pub(crate) fn close(&self) -> Result<bool, Vec<Holder>> {
        let mut slots = self.lock();
        let taken = slots.slots.iter().enumerate().filter_map(|(index, slot)| {
            let (kind, _) = slot.entry.as_ref()?;
            let id = ObjectId::new(index as u32, slot.generation);
            Some(Holder::new(*kind, id))
        });
        let holders: Vec<_> = taken.collect();
        if holders.is_empty() {
            Ok(!std::mem::replace(&mut slots.closed, true))
        } else {
            Err(holders)
        }
    }

    /// Returns these holders without duplicates, each with its number. Called with no lock held, because this may drop the
    /// last reference to an object.
    pub(crate) fn named(&self, holders: Vec<Holder>) -> Vec<Holder> {
        let mut seen = HashSet::new();
        let once = holders.into_iter().filter(|holder| seen.insert(holder.id));
        once.map(|holder| {
            let object = self.find(holder.id);
            let number = object.and_then(|object| object.number());
            Holder {
                number: number.or(holder.number),
                ..holder
            }
        })
        .collect()
    }

    /// Returns the error with its holders, if it has any, treated as by [`named`](Self::named).
    pub(crate) fn name_holders(&self, error: VerbError) -> VerbError {
        match error {
            VerbError::Busy(holders) => VerbError::Busy(self.named(holders)),
            other => other,
        }
    }

    /// Returns all objects of the table.
    pub(crate) fn objects(&self) -> Vec<Arc<dyn AnyObject>> {
        let slots = self.lock();
        let entries = slots.slots.iter().filter_map(|slot| slot.entry.as_ref());
        entries
            .filter_map(|(_, object)| object.as_ref()?.upgrade())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock()
    }
}

/// A reserved identity. Dropping it frees the identity, which then resolves to no object.
pub(crate) struct Reserved {
    table: Arc<Table>,
    id: ObjectId,
    kind: ObjectKind,
}

impl Reserved {
    pub(crate) fn id(&self) -> ObjectId {
        self.id
    }

    pub(crate) fn user(&self) -> User {
        User {
            kind: self.kind,
            id: self.id,
        }
    }

    pub(crate) fn publish(&self, object: Weak<dyn AnyObject>) {
        let mut slots = self.table.lock();
        slots.slots[self.id.index as usize].entry = Some((self.kind, Some(object)));
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut slots = self.table.lock();
        let entry = slots.slots[self.id.index as usize].entry.take();
        slots.free.push(self.id.index);
        drop(slots);
        drop(entry);
    }
}

//! The state that a context and its objects share, except the provider's part.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use super::events::{AsyncEvent, EventQueue, fits};
use super::slab::Slab;
use super::table::Table;
use crate::capability::{Baseline, BaselineGaps, DeviceAttributes, Features, Grant};
use crate::control::{Completer, Started};
use crate::error::VerbError;
use crate::event_type::{EventSubject, EventType};
use crate::lock::Mutex;
use crate::mem::MwType;
use crate::object_id::{ObjectId, ObjectKind};
use crate::post::QpRules;

type Abort = Box<dyn FnOnce() + Send>;

/// The safe layer's part of a context that the provider refers to as its event sink. It refers to nothing of the
/// provider's, so that there is no cycle of references.
#[derive(Default)]
pub(crate) struct ContextShared {
    table: Arc<Table>,
    events: EventQueue,
    removed: AtomicBool,
    // How each verb in flight ends where the device is removed.
    pending: Mutex<Slab<Abort>>,
}

impl ContextShared {
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::SeqCst)
    }

    pub(crate) fn poll_event(&self) -> Option<AsyncEvent> {
        self.events.pop(&self.table)
    }

    /// Takes the next event; if there is none, `waker` is woken when one arrives.
    pub(crate) fn next_event(&self, waker: &Waker) -> Poll<Result<AsyncEvent, VerbError>> {
        // The waker is registered first, because an event between the check and the registration would wake no task.
        self.events.add_waiter(waker);
        // Looked at first, or the last event between the two looks would be missed.
        let is_over = self.events.is_over();
        match self.poll_event() {
            Some(event) => Poll::Ready(Ok(event)),
            None if is_over => Poll::Ready(Err(VerbError::DeviceRemoved)),
            None => Poll::Pending,
        }
    }

    pub(crate) fn events(&self) -> &EventQueue {
        &self.events
    }

    /// Passes all queued events to the program's handler, if there is one.
    pub(crate) fn deliver(&self) {
        self.events.deliver(&self.table);
    }

    // Ends every verb in flight; later ones are refused.
    fn remove(&self) {
        let aborted = {
            let mut pending = self.pending.lock();
            self.removed.store(true, Ordering::SeqCst);
            pending.take_all()
        };
        let objects = self.table.objects();
        objects.iter().for_each(|object| object.remove());
        aborted.into_iter().for_each(|abort| abort());
        objects.iter().for_each(|object| object.on_removed());
    }

    /// Handles an event that the provider reports: queues it, or passes it to the program's handler.
    pub(crate) fn on_event(&self, event: EventType, subject: EventSubject) {
        if event == EventType::DeviceRemoved {
            if self.is_removed() {
                return;
            }
            self.remove();
        }
        if let EventSubject::Object(id) = subject {
            match self.table.find(id) {
                Some(object) if fits(event, object.node().kind()) => {}
                _ => return,
            }
        } else if event.is_affiliated() {
            return;
        }
        self.events.push(event, subject);
        self.deliver();
    }
}

/// How many of the most recent sets of queue pair rules are kept for new queue pairs to share.
const RECENT_RULES: usize = 8;

/// The provider's part of a context, of which only closing is needed here.
pub(crate) trait ProviderPart: Send + Sync + 'static {
    /// Closes the context at the provider.
    fn close(&self);
}

/// An object without handles that the provider refused to destroy for now, because something still uses it.
pub(crate) trait Deferred: Send {
    fn retry(self: Box<Self>);
}

/// The state that a context and its objects share. The context is closed when the last of them is dropped, if not before.
pub(crate) struct ContextCore {
    shared: Arc<ContextShared>,
    provider: Arc<dyn ProviderPart>,
    attributes: DeviceAttributes,
    pub(crate) grant: Grant,
    features: Features,
    closed: AtomicBool,
    deferred: Mutex<Vec<Box<dyn Deferred>>>,
    rules: Mutex<Vec<Arc<QpRules>>>,
}

impl ContextCore {
    pub(crate) fn new(
        shared: Arc<ContextShared>,
        provider: Arc<dyn ProviderPart>,
        attributes: DeviceAttributes,
        grant: Grant,
    ) -> Self {
        Self {
            shared,
            provider,
            attributes,
            features: grant.features(),
            grant,
            closed: AtomicBool::new(false),
            deferred: Mutex::default(),
            rules: Mutex::default(),
        }
    }

    pub(crate) fn shared(&self) -> &ContextShared {
        &self.shared
    }

    /// Closes the provider's part of the context: nothing can be made from the context afterwards.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.provider.close();
    }

    /// Returns the rules for a new queue pair. Queue pairs that are created alike in succession share one copy, so that
    /// many of them read the same cache line.
    pub(crate) fn share_rules(&self, rules: QpRules) -> Arc<QpRules> {
        let mut recent = self.rules.lock();
        if let Some(known) = recent.iter().find(|known| ***known == rules) {
            return Arc::clone(known);
        }
        if recent.len() == RECENT_RULES {
            recent.remove(0);
        }
        let rules = Arc::new(rules);
        recent.push(Arc::clone(&rules));
        rules
    }

    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.shared.table
    }

    /// Returns the baseline gaps whose operations are refused here. A gap that a program was granted nevertheless is left
    /// to the device to refuse.
    pub(crate) fn gaps(&self) -> BaselineGaps {
        self.attributes().gaps - self.grant.set::<Baseline>().gaps()
    }

    /// Refuses a verb if the device has this gap.
    pub(crate) fn check_gap(&self, gap: BaselineGaps) -> Result<(), VerbError> {
        match self.gaps().contains(gap) {
            true => Err(VerbError::BaselineGap(gap)),
            false => Ok(()),
        }
    }

    pub(crate) fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    pub(crate) fn features(&self) -> Features {
        self.features
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.shared.is_removed()
    }

    pub(crate) fn require(&self, features: Features) -> Result<(), VerbError> {
        let missing = features - self.features;
        if missing.is_empty() {
            Ok(())
        } else {
            Err(VerbError::Unsupported { missing })
        }
    }

    pub(crate) fn require_window(&self, mw_type: MwType) -> Result<(), VerbError> {
        match mw_type {
            MwType::Type1 => self.require(Features::WINDOW_1),
            MwType::Type2 if self.features.intersects(Features::WINDOW_2) => Ok(()),
            MwType::Type2 => self.require(Features::WINDOW_2B),
        }
    }

    pub(crate) fn check_open(&self) -> Result<(), VerbError> {
        if self.is_removed() {
            return Err(VerbError::DeviceRemoved);
        }
        if self.closed.load(Ordering::Relaxed) {
            return Err(VerbError::InvalidHandle(ObjectKind::Context));
        }
        Ok(())
    }

    /// Starts a verb that ends with `DeviceRemoved` if the device is removed meanwhile.
    pub(crate) fn begin<T: Send + 'static>(&self) -> (Started<T>, Outcome<T>) {
        self.begin_or(|| Err(VerbError::DeviceRemoved))
    }

    /// Starts a verb that ends with `removed` if the device is removed meanwhile.
    pub(crate) fn begin_or<T, E>(
        &self,
        removed: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> (Started<T, E>, Outcome<T, E>)
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let (started, completer) = Started::pending();
        let mut pending = self.shared.pending.lock();
        let slot = if self.shared.is_removed() {
            drop(pending);
            completer.complete(removed());
            None
        } else {
            let completer = completer.clone();
            Some(pending.insert(Box::new(move || {
                completer.complete(removed());
            })))
        };
        (
            started,
            Outcome {
                completer,
                slot,
                shared: Arc::clone(&self.shared),
            },
        )
    }

    /// Starts a verb that ends only when the provider completes it, even if the device is removed.
    pub(crate) fn begin_kept<T, E>(&self) -> (Started<T, E>, Outcome<T, E>) {
        let (started, completer) = Started::pending();
        let shared = Arc::clone(&self.shared);
        let outcome = Outcome {
            completer,
            slot: None,
            shared,
        };
        (started, outcome)
    }

    pub(crate) fn discard_events(&self, id: ObjectId) {
        self.shared.events.discard(id);
    }

    /// Keeps an object that the provider refused to destroy, until the destruction is retried.
    pub(crate) fn defer(&self, object: Box<dyn Deferred>) {
        self.deferred.lock().push(object);
    }

    /// Notes that an object of this kind was destroyed, and retries the destructions that may have waited for it.
    pub(crate) fn destroyed(&self, kind: ObjectKind) {
        if matches!(kind, ObjectKind::Mw | ObjectKind::Qp) {
            self.retry_deferred();
        }
    }

    pub(crate) fn retry_deferred(&self) {
        let deferred = std::mem::take(&mut *self.deferred.lock());
        deferred.into_iter().for_each(|object| object.retry());
    }
}

impl Drop for ContextCore {
    fn drop(&mut self) {
        if !*self.closed.get_mut() {
            self.provider.close();
        }
    }
}

/// Completes a verb that was started with [`Context::begin`](crate::Context::begin).
pub struct Outcome<T, E = VerbError> {
    completer: Completer<T, E>,
    slot: Option<u32>,
    shared: Arc<ContextShared>,
}

impl<T: 'static, E: 'static> Outcome<T, E> {
    /// Ends the verb with this result. Call it with no lock held.
    pub fn complete(self, result: Result<T, E>) {
        if let Some(slot) = self.slot {
            let mut pending = self.shared.pending.lock();
            // After a removal the slots are gone, and no new ones are taken.
            let abort = pending.remove(slot);
            drop(pending);
            drop(abort);
        }
        self.completer.complete(result);
    }
}

//! The queue of a context's asynchronous events.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, MutexGuard};
use std::task::Waker;

use super::node::Ack;
use super::table::Table;
use crate::control::{Waiters, run_handler};
use crate::error::VerbError;
use crate::event_type::{EventSubject, EventType};
use crate::lock::Mutex;
use crate::notifier::Notifier;
use crate::object_id::{Holder, ObjectId, ObjectKind};

/// The largest number of queued events; when the queue is full, a new event is dropped and counted, unless it is fatal.
pub(crate) const EVENT_QUEUE_CAPACITY: usize = 256;

type EventHandler = Arc<dyn Fn(AsyncEvent) + Send + Sync>;

/// An asynchronous event. Dropping it acknowledges it.
///
/// Until it is acknowledged, a destroy of the object that it concerns does not complete.
///
/// ```no_run
/// # fn example(device: &verbs_api::Context) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::event::EventType;
/// let event = device.next_event().wait()?;
/// if event.event_type() == EventType::QpFatal {
///     eprintln!("{:?} is of no use any more", event.object());
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_async_event")]
#[doc(alias = "ibv_ack_async_event")]
pub struct AsyncEvent {
    event_type: EventType,
    subject: EventSubject,
    ack: Option<Ack>,
}

impl AsyncEvent {
    /// Returns the type of the event.
    pub const fn event_type(&self) -> EventType {
        self.event_type
    }

    /// Returns what the event concerns.
    pub const fn subject(&self) -> EventSubject {
        self.subject
    }

    /// Returns the object that the event concerns; `None` if it concerns a port or the device.
    pub fn object(&self) -> Option<Holder> {
        self.ack.as_ref().map(|ack| ack.object().node().holder())
    }
}

impl fmt::Debug for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("AsyncEvent");
        debug
            .field("event_type", &self.event_type)
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
pub(crate) struct EventQueue {
    queue: Mutex<Queue>,
    waiters: Waiters,
    notifier: Notifier,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<(EventType, EventSubject)>,
    handler: Option<EventHandler>,
    lost: u64,
    /// Whether the device's removal has been queued, after which no event is queued.
    is_over: bool,
}

impl EventQueue {
    /// Queues an event; if the queue is full, a fatal event replaces one that is not fatal, and another event is dropped.
    pub(super) fn push(&self, event: EventType, subject: EventSubject) {
        let mut queue = self.lock();
        queue.is_over |= event == EventType::DeviceRemoved;
        if queue.events.len() >= EVENT_QUEUE_CAPACITY {
            queue.lost += 1;
            let place = queue.events.iter().position(|(event, _)| !is_fatal(*event));
            match place.filter(|_| is_fatal(event)) {
                Some(place) => queue.events.remove(place),
                None => return,
            };
        }
        queue.events.push_back((event, subject));
        self.notifier.raise();
        drop(queue);
        self.waiters.wake();
    }

    /// Takes the next event whose object is alive.
    pub(super) fn pop(&self, table: &Table) -> Option<AsyncEvent> {
        loop {
            let mut queue = self.lock();
            let (event_type, subject) = queue.events.pop_front()?;
            if queue.events.is_empty() {
                self.notifier.clear();
            }
            drop(queue);
            let EventSubject::Object(id) = subject else {
                return Some(AsyncEvent {
                    event_type,
                    subject,
                    ack: None,
                });
            };
            if let Some(ack) = table.find(id).and_then(Ack::new) {
                return Some(AsyncEvent {
                    event_type,
                    subject,
                    ack: Some(ack),
                });
            }
        }
    }

    pub(super) fn add_waiter(&self, waker: &Waker) {
        self.waiters.add(waker);
    }

    /// Drops the queued events that concern an object.
    pub(super) fn discard(&self, id: ObjectId) {
        let mut queue = self.lock();
        if queue.events.is_empty() {
            return;
        }
        queue
            .events
            .retain(|(_, subject)| *subject != EventSubject::Object(id));
        if queue.events.is_empty() {
            self.notifier.clear();
        }
    }

    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, VerbError> {
        let queue = self.lock();
        let fd = self.notifier.fd()?;
        if !queue.events.is_empty() {
            self.notifier.raise();
        }
        Ok(fd)
    }

    pub(super) fn is_over(&self) -> bool {
        self.lock().is_over
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lock().lost
    }

    pub(crate) fn set_handler(&self, handler: EventHandler) {
        let before = self.lock().handler.replace(handler);
        // Dropped with the lock released: it may own the last handle of an object, whose drop calls `discard`.
        drop(before);
    }

    /// Passes all queued events to the program's handler, if there is one.
    pub(super) fn deliver(&self, table: &Table) {
        loop {
            let Some(handler) = self.lock().handler.clone() else {
                return;
            };
            let Some(event) = self.pop(table) else { return };
            run_handler(move || handler(event));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

const fn is_fatal(event: EventType) -> bool {
    matches!(event, EventType::DeviceFatal | EventType::DeviceRemoved)
}

/// Whether this type of event can concern an object of this kind.
pub(super) fn fits(event: EventType, kind: ObjectKind) -> bool {
    match event {
        EventType::CqErr => kind == ObjectKind::Cq,
        EventType::SrqErr | EventType::SrqLimitReached => kind == ObjectKind::Srq,
        _ => event.is_affiliated() && kind == ObjectKind::Qp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Stands for a handler that owns the last handle of an object: its end discards events.
    struct Last(Arc<EventQueue>);

    impl Drop for Last {
        fn drop(&mut self) {
            self.0.lost();
        }
    }

    #[test]
    fn a_handler_that_is_replaced_may_use_the_queue_when_it_goes() {
        let queue = Arc::new(EventQueue::default());
        let last = Last(Arc::clone(&queue));
        queue.set_handler(Arc::new(move |_| assert_eq!(last.0.lost(), 0)));
        queue.set_handler(Arc::new(|_| {}));
    }
}

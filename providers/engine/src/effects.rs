//! Actions that a call into the engine postpones until it holds no lock: wake a waiting thread, report an event, flush a
//! queue pair, resume it.

use std::sync::Arc;

use verbs_api::event::{EventSubject, EventType};
use verbs_api::provider::EventSink;

use crate::cq::Cq;
use crate::log_event;

/// A queue pair as effects act on it, whatever its driver.
pub trait QpActions: Send + Sync {
    /// Completes the remaining requests of a queue pair in error with the flush status: those of both queues, or in SQE
    /// only those of the send queue.
    fn flush(self: Arc<Self>, effects: &mut Effects);

    /// Processes the queue pair's send queue again, because the event for which a request waits may have occurred, such
    /// as a receive that the peer has posted.
    fn resume(self: Arc<Self>, effects: &mut Effects);

    /// Puts the queue pair into the error state and reports that by an event, because a queue that it uses has failed.
    fn fatal(self: Arc<Self>, effects: &mut Effects);
}

/// An action that a call into the engine has postponed.
enum Effect {
    Wake(Arc<Cq>),
    Event(Arc<dyn EventSink>, EventType, EventSubject),
    Flush(Arc<dyn QpActions>),
    Resume(Arc<dyn QpActions>),
    Call(Box<dyn FnOnce(&mut Effects) + Send>),
}

/// The actions that a call into the engine postpones until it holds no lock, in the order in which they were added.
/// Nearly every call postpones none, which costs nothing.
#[derive(Default)]
#[must_use]
pub struct Effects {
    queue: Vec<Effect>,
}

impl Effects {
    /// Adds an action that wakes the thread which armed this completion queue.
    pub fn wake(&mut self, cq: &Arc<Cq>) {
        self.queue.push(Effect::Wake(Arc::clone(cq)));
    }

    /// Adds an action that reports `event` about `subject` to `sink`.
    pub fn event(&mut self, sink: &Arc<dyn EventSink>, event: EventType, subject: EventSubject) {
        self.queue
            .push(Effect::Event(Arc::clone(sink), event, subject));
    }

    /// Adds an action that completes the remaining requests of a queue pair in error with the flush status.
    pub fn flush(&mut self, qp: Arc<dyn QpActions>) {
        self.queue.push(Effect::Flush(qp));
    }

    /// Adds an action that makes a queue pair process its send queue again, because the event for which a request waits
    /// may have occurred. [`run`](Self::run) carries out the action when the caller holds no lock.
    pub fn resume(&mut self, qp: Arc<dyn QpActions>) {
        self.queue.push(Effect::Resume(qp));
    }

    /// Adds an action that calls `call`. A driver uses this for work that it must do with no lock held, such as notifying a
    /// peer in the same process.
    pub fn later(&mut self, call: impl FnOnce(&mut Effects) + Send + 'static) {
        self.queue.push(Effect::Call(Box::new(call)));
    }

    /// Returns whether no action is postponed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Runs all actions and those that they add; wake-ups and events come last. The caller holds no lock and is not pinned.
    #[inline]
    pub fn run(self) {
        if !self.queue.is_empty() {
            self.run_all();
        }
    }

    #[cold]
    fn run_all(mut self) {
        crate::lock::assert_unlocked();
        let mut told = Vec::new();
        while !self.queue.is_empty() {
            for effect in std::mem::take(&mut self.queue) {
                match effect {
                    Effect::Flush(qp) => qp.flush(&mut self),
                    Effect::Resume(qp) => qp.resume(&mut self),
                    Effect::Call(call) => call(&mut self),
                    tell => told.push(tell),
                }
            }
        }
        for effect in told {
            match effect {
                Effect::Wake(cq) => cq.notify(),
                Effect::Event(sink, event, subject) => {
                    log_event!(
                        DEBUG,
                        "an asynchronous event is reported",
                        event = format_args!("{event:?}"),
                        subject = format_args!("{subject:?}"),
                    );
                    sink.event(event, subject);
                }
                _ => {}
            }
        }
    }
}

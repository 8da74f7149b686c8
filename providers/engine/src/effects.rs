//! Actions that a call of the engine takes once it holds no lock: wake a waiter, report an event, flush, resume.

use std::sync::Arc;

use verbs_api::event::{EventSubject, EventType};
use verbs_api::provider::EventSink;

use crate::cq::Cq;
use crate::log_event;

/// A queue pair as its effects use it, whatever its driver.
pub trait QpActions: Send + Sync {
    /// Flushes both queues, because the queue pair has entered the error state.
    fn flush(self: Arc<Self>, effects: &mut Effects);

    /// Continues with the queue, because the event that the queue pair awaited may have occurred.
    fn resume(self: Arc<Self>, effects: &mut Effects);

    /// Fails the queue pair, because a completion queue has overrun.
    fn fatal(self: Arc<Self>, effects: &mut Effects);

    /// The program has polled the oldest completion of this queue pair's sends.
    fn polled(&self);
}

/// One action.
enum Effect {
    Wake(Arc<Cq>),
    Event(Arc<dyn EventSink>, EventType, EventSubject),
    Flush(Arc<dyn QpActions>),
    Resume(Arc<dyn QpActions>),
    Call(Box<dyn FnOnce(&mut Effects) + Send>),
}

/// Actions to take with no lock held, in order. Nearly every call has none, which costs nothing.
#[derive(Default)]
#[must_use]
pub struct Effects {
    queue: Vec<Effect>,
}

impl Effects {
    /// Wakes the waiter that armed this queue.
    pub fn wake(&mut self, cq: &Arc<Cq>) {
        self.queue.push(Effect::Wake(Arc::clone(cq)));
    }

    /// Reports an event.
    pub fn event(&mut self, sink: &Arc<dyn EventSink>, event: EventType, subject: EventSubject) {
        self.queue
            .push(Effect::Event(Arc::clone(sink), event, subject));
    }

    /// Flushes a queue pair that has entered the error state.
    pub fn flush(&mut self, qp: Arc<dyn QpActions>) {
        self.queue.push(Effect::Flush(qp));
    }

    /// Makes a queue pair continue.
    pub fn resume(&mut self, qp: Arc<dyn QpActions>) {
        self.queue.push(Effect::Resume(qp));
    }

    /// Calls `call`. A driver uses this for work that it must do with no lock held, such as notifying a peer in the same
    /// process.
    pub fn later(&mut self, call: impl FnOnce(&mut Effects) + Send + 'static) {
        self.queue.push(Effect::Call(Box::new(call)));
    }

    /// Returns whether there is no action.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes all actions, and those that follow from them. The caller holds no lock and is not pinned.
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

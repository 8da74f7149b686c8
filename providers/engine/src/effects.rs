//! What a call of the engine must still do once it holds no lock: wake, tell, flush, resume.

use std::sync::Arc;

use verbs_api::event::{EventSubject, EventType};
use verbs_api::provider::EventSink;

use crate::cq::Cq;

/// A queue pair as its effects see it, whatever its driver.
pub trait QpActions: Send + Sync {
    /// The queue pair has entered the error state: flush what is left in both queues.
    fn flush(self: Arc<Self>, effects: &mut Effects);

    /// What the queue pair waited for may be there: go on.
    fn resume(self: Arc<Self>, effects: &mut Effects);

    /// A completion queue overran: the queue pair cannot go on.
    fn fatal(self: Arc<Self>, effects: &mut Effects);

    /// The oldest completion of its sends was polled.
    fn polled(&self);
}

/// One thing to do.
enum Effect {
    Wake(Arc<Cq>),
    Event(Arc<dyn EventSink>, EventType, EventSubject),
    Flush(Arc<dyn QpActions>),
    Resume(Arc<dyn QpActions>),
    Call(Box<dyn FnOnce(&mut Effects) + Send>),
}

/// Things to do with no lock held, in order. Empty on nearly every call, and then free.
#[derive(Default)]
#[must_use]
pub struct Effects {
    queue: Vec<Effect>,
}

impl Effects {
    /// Wake whoever armed this queue.
    pub fn wake(&mut self, cq: &Arc<Cq>) {
        self.queue.push(Effect::Wake(Arc::clone(cq)));
    }

    /// Tell an event.
    pub fn event(&mut self, sink: &Arc<dyn EventSink>, event: EventType, subject: EventSubject) {
        self.queue
            .push(Effect::Event(Arc::clone(sink), event, subject));
    }

    /// Flush a queue pair that has entered the error state.
    pub fn flush(&mut self, qp: Arc<dyn QpActions>) {
        self.queue.push(Effect::Flush(qp));
    }

    /// Let a queue pair go on.
    pub fn resume(&mut self, qp: Arc<dyn QpActions>) {
        self.queue.push(Effect::Resume(qp));
    }

    /// Call this. For what a driver can only do with no lock held, such as telling a peer in the same process.
    pub fn later(&mut self, call: impl FnOnce(&mut Effects) + Send + 'static) {
        self.queue.push(Effect::Call(Box::new(call)));
    }

    /// Whether there is nothing to do.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Does everything, and what that brings about. Call with no lock held and unpinned.
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
                Effect::Event(sink, event, subject) => sink.event(event, subject),
                _ => {}
            }
        }
    }
}

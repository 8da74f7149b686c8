//! Targets of emulated devices: each is one queue pair with one or more handles.

use std::sync::Arc;

use polyverbs_engine::emulation::QpHandle;
use verbs_api::event::{EventSubject, EventType};
use verbs_api::objects::ObjectId;
use verbs_api::provider::{EventSink, Mutex, QpOps};

/// A target's queue pair and its handles. The queue pair is destroyed with the last handle.
#[derive(Default)]
pub(crate) struct SharedTarget(Mutex<Parts>);

#[derive(Default)]
struct Parts {
    real: Option<Arc<dyn QpOps>>,
    handles: Vec<(ObjectId, Arc<dyn EventSink>)>,
}

impl SharedTarget {
    /// Adds a handle, whose sink receives the target's events.
    pub(crate) fn add_handle(&self, handle: &QpHandle<'_>) {
        let events = Arc::clone(handle.events);
        self.0.lock().handles.push((handle.id, events));
    }

    /// Returns the identities of the target's handles.
    pub(crate) fn handles(&self) -> Vec<ObjectId> {
        let parts = self.0.lock();
        parts.handles.iter().map(|(id, _)| *id).collect()
    }

    /// Returns the target's queue pair; `None` before it is made, and once it is being destroyed.
    pub(crate) fn real(&self) -> Option<Arc<dyn QpOps>> {
        self.0.lock().real.clone()
    }

    /// Sets the target's queue pair, once it is made.
    pub(crate) fn set_real(&self, made: Arc<dyn QpOps>) {
        self.0.lock().real = Some(made);
    }

    /// Removes a handle; returns the queue pair if it was the last.
    pub(crate) fn remove_handle(&self, id: ObjectId) -> Option<Arc<dyn QpOps>> {
        let mut parts = self.0.lock();
        parts.handles.retain(|(known, _)| *known != id);
        match parts.handles.is_empty() {
            true => parts.real.take(),
            false => None,
        }
    }
}

/// Reports an event of the target's queue pair to every handle.
impl EventSink for SharedTarget {
    fn event(&self, event: EventType, _: EventSubject) {
        let handles = self.0.lock().handles.clone();
        for (id, sink) in handles {
            sink.event(event, EventSubject::Object(id));
        }
    }
}

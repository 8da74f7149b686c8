//! Targets of emulated devices: each is one queue pair with one or more handles.

use std::sync::Arc;

use polyverbs_engine::emulation::QpHandle;
use verbs_api::event::{EventSubject, EventType};
use verbs_api::objects::ObjectId;
use verbs_api::provider::{EventSink, Mutex, QpOps};

/// The most handles that other processes have of a target.
const MOST_REMOTE: usize = 4096;

/// A target's queue pair and its handles. The queue pair is destroyed with the last handle.
#[derive(Default)]
pub(crate) struct SharedTarget(Mutex<Parts>);

#[derive(Default)]
struct Parts {
    real: Option<Arc<dyn QpOps>>,
    handles: Vec<(ObjectId, Arc<dyn EventSink>)>,
    /// The handles of other processes: a number of the process, its name for the handle, and what sends it the events.
    remote: Vec<(u32, u64, Arc<dyn EventSink>)>,
}

impl Parts {
    // Returns the queue pair if there is no handle left.
    fn end(&mut self) -> Option<Arc<dyn QpOps>> {
        match self.handles.is_empty() && self.remote.is_empty() {
            true => self.real.take(),
            false => None,
        }
    }
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
        parts.end()
    }

    /// Adds a handle of another process, unless the target is being destroyed or has too many. Returns whether it was added.
    pub(crate) fn add_remote(&self, of: u32, token: u64, events: Arc<dyn EventSink>) -> bool {
        let mut parts = self.0.lock();
        parts
            .remote
            .retain(|(process, known, _)| (*process, *known) != (of, token));
        if parts.real.is_none() || parts.remote.len() >= MOST_REMOTE {
            return false;
        }
        parts.remote.push((of, token, events));
        true
    }

    /// Returns whether other processes have handles.
    pub(crate) fn has_remote(&self) -> bool {
        !self.0.lock().remote.is_empty()
    }

    /// Removes the handles of other processes that `which` selects; returns the queue pair if there is no handle left.
    pub(crate) fn remove_remote(&self, which: impl Fn(u32, u64) -> bool) -> Option<Arc<dyn QpOps>> {
        let mut parts = self.0.lock();
        parts
            .remote
            .retain(|(process, token, _)| !which(*process, *token));
        parts.end()
    }
}

/// Reports an event of the target's queue pair to every handle.
impl EventSink for SharedTarget {
    fn event(&self, event: EventType, _: EventSubject) {
        let (handles, remote) = {
            let parts = self.0.lock();
            (parts.handles.clone(), parts.remote.clone())
        };
        for (id, sink) in handles {
            sink.event(event, EventSubject::Object(id));
        }
        for (_, _, sink) in remote {
            sink.event(event, EventSubject::Device);
        }
    }
}

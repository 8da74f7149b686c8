//! The state that the objects of an open device share. The thread of the device carries out blocking verbs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use polyverbs_abi::IbvContext;
use verbs_api::VerbError;
use verbs_api::capability::Limits;
use verbs_api::objects::ObjectId;
use verbs_api::provider::{Mutex, Reply};

use crate::keys::KeyHistory;
use crate::rdmacm::Connections;
use crate::verbs::Live;
use crate::worker::Worker;

/// The state that all objects of an open device share.
pub(crate) struct Context {
    pub(crate) live: Arc<Live<IbvContext>>,
    pub(crate) properties: Properties,
    pub(crate) keys: Mutex<KeyHistory>,
    pub(crate) connections: Arc<Connections>,
    worker: Worker,
    is_removed: AtomicBool,
    /// The objects that handle events of the device, in order of creation: completion queues before the queue pairs that
    /// complete on them.
    objects: Mutex<Vec<Weak<dyn DeviceEvents>>>,
}

/// The properties of a device that the objects of an open device need.
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    pub(crate) limits: Limits,
    /// The bits of a completion's flags any of which means that a key was invalidated.
    pub(crate) with_inv: u32,
    /// Whether the device supports XRC.
    pub(crate) has_xrc: bool,
}

/// How an object reacts to events of its device.
pub(crate) trait DeviceEvents: Send + Sync {
    /// Called when a completion queue has lost completions. It may be this object or another one.
    fn cq_overrun(&self, _cq: ObjectId) {}

    /// Called when the device was removed: the object accepts no further requests.
    fn close(&self);

    /// Called after all objects are closed: completes the object's outstanding requests as flushed.
    fn flush(&self) {}
}

impl Context {
    /// Opens a device of the library again, for a program.
    pub(crate) fn open(
        listed: &Live<IbvContext>,
        properties: Properties,
        connections: Arc<Connections>,
    ) -> Result<Arc<Self>, VerbError> {
        let worker = Worker::start()?;
        Ok(Arc::new(Self {
            live: Arc::new(listed.open_again()?),
            properties,
            keys: Mutex::default(),
            connections,
            worker,
            is_removed: AtomicBool::new(false),
            objects: Mutex::default(),
        }))
    }

    /// Runs a verb on the device's thread and replies with its result. Verbs run one after the other, so that no object is
    /// destroyed while another verb uses it.
    pub(crate) fn start<T: 'static>(
        &self,
        reply: Reply<T>,
        verb: impl FnOnce() -> Result<T, VerbError> + Send + 'static,
    ) {
        match self.is_removed.load(Ordering::Acquire) {
            true => reply.send(Err(VerbError::DeviceRemoved)),
            false => self.worker.run(move || reply.send(verb())),
        }
    }

    /// Runs a verb that destroys an object, as [`start`](Self::start) does. If the device was removed, the verb succeeds
    /// whatever the library returns.
    pub(crate) fn destroy(
        self: &Arc<Self>,
        reply: Reply<()>,
        verb: impl FnOnce() -> Result<(), VerbError> + Send + 'static,
    ) {
        let context = Arc::clone(self);
        self.worker.run(move || {
            let answer = verb();
            reply.send(match context.is_removed.load(Ordering::Acquire) {
                true => Err(VerbError::DeviceRemoved),
                false => answer,
            });
        });
    }

    /// Runs a job on the device's thread without replying.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.worker.run(job);
    }

    /// Adds an object that handles events of the device.
    pub(crate) fn add(&self, object: Weak<dyn DeviceEvents>) {
        let mut objects = self.objects.lock();
        if objects.len() == objects.capacity() {
            objects.retain(|known| known.strong_count() > 0);
        }
        objects.push(Weak::clone(&object));
        // A removal may have read the list before the object was in it.
        if self.is_removed.load(Ordering::Acquire)
            && let Some(object) = object.upgrade()
        {
            object.close();
        }
    }

    /// Returns the objects that exist and handle events, the newest first.
    fn objects(&self) -> Vec<Arc<dyn DeviceEvents>> {
        let objects = self.objects.lock();
        objects.iter().rev().filter_map(Weak::upgrade).collect()
    }

    /// Notes that a completion queue has lost completions. Not every library reports it again in the next poll.
    pub(crate) fn note_overrun(&self, cq: ObjectId) {
        for object in self.objects() {
            object.cq_overrun(cq);
        }
    }

    /// Notes that the device was removed and flushes outstanding requests. Returns whether this was the first report.
    pub(crate) fn remove(&self) -> bool {
        if self.is_removed.swap(true, Ordering::AcqRel) {
            return false;
        }
        let objects = self.objects();
        for object in &objects {
            object.close();
        }
        for object in &objects {
            object.flush();
        }
        true
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A context that was closed before returns an error here.
        let _ = self.live.close();
    }
}

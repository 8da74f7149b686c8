//! What the objects of an open device share. Verbs that block are carried out by its thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use polyverbs_abi::IbvContext;
use verbs_api::VerbError;
use verbs_api::capability::Limits;
use verbs_api::objects::ObjectId;
use verbs_api::provider::Reply;

use crate::keys::KeyHistory;
use crate::lock::lock;
use crate::rdmacm::Connections;
use crate::verbs::Live;
use crate::worker::Worker;

/// What everything of an open device shares.
pub(crate) struct Context {
    pub(crate) live: Arc<Live<IbvContext>>,
    pub(crate) properties: Properties,
    pub(crate) keys: Mutex<KeyHistory>,
    pub(crate) connections: Arc<Connections>,
    worker: Worker,
    is_removed: AtomicBool,
    /// In the order in which they were made: completion queues before the queue pairs that complete there.
    objects: Mutex<Vec<Weak<dyn DeviceEvents>>>,
}

/// What the objects of an open device need to know of the device.
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    pub(crate) limits: Limits,
    /// The flags of a completion of which each says that a key was invalidated.
    pub(crate) with_inv: u32,
    /// It has extended reliable connections.
    pub(crate) has_xrc: bool,
}

/// What events of its device do to an object.
pub(crate) trait DeviceEvents: Send + Sync {
    /// A completion queue has lost completions: this one, or another.
    fn cq_overrun(&self, _cq: ObjectId) {}

    /// The device was removed: nothing is posted to the object any more.
    fn close(&self);

    /// All objects are closed: ends what is outstanding.
    fn flush(&self) {}
}

impl Context {
    /// Opens a device that is listed once more.
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

    /// Has a verb carried out and answered: one after the other, so that nothing is destroyed while another verb
    /// uses it.
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

    /// The same for a verb that destroys: of a device that was removed whatever the library says of it is good.
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

    /// Has something done that nobody waits for.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.worker.run(job);
    }

    /// Adds an object that events of the device concern.
    pub(crate) fn add(&self, object: Weak<dyn DeviceEvents>) {
        let mut objects = lock(&self.objects);
        if objects.len() == objects.capacity() {
            objects.retain(|known| known.strong_count() > 0);
        }
        objects.push(Weak::clone(&object));
        // A removal that went through the list before has not seen it.
        if self.is_removed.load(Ordering::Acquire)
            && let Some(object) = object.upgrade()
        {
            object.close();
        }
    }

    /// Those that live, the newest first.
    fn objects(&self) -> Vec<Arc<dyn DeviceEvents>> {
        let objects = lock(&self.objects);
        objects.iter().rev().filter_map(Weak::upgrade).collect()
    }

    /// A completion queue has lost completions. Not every library says so at the next poll too.
    pub(crate) fn note_overrun(&self, cq: ObjectId) {
        for object in self.objects() {
            object.cq_overrun(cq);
        }
    }

    /// The device is gone: what is outstanding ends as flushed. Answers whether this was the first to say so.
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
        // One that was closed is gone already.
        let _ = self.live.close();
    }
}

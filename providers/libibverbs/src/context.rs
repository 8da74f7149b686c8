//! Open devices: verbs that block are carried out by a thread of the context.

use std::collections::HashMap;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use polyverbs_abi::{IbvCompChannel, IbvContext};
use verbs_api::VerbError;
use verbs_api::capability::{DeviceAttributes, Features, Limits, PortAttributes};
use verbs_api::ids::Port;
use verbs_api::objects::ObjectId;
use verbs_api::provider::{CompletionSink, ContextOps, CqInit, CqOps, EventSink, PdOps, Reply};

use crate::completion_queue::CompletionQueue;
use crate::device;
use crate::domain::{Domain, KeyHistory};
use crate::verbs::Live;
use crate::watch::Watch;

/// What everything of an open device shares.
pub(crate) struct Context {
    pub(crate) live: Live<IbvContext>,
    pub(crate) channel: Live<IbvCompChannel>,
    pub(crate) features: Features,
    pub(crate) limits: Limits,
    pub(crate) keys: Mutex<KeyHistory>,
    sinks: Mutex<HashMap<ObjectId, Arc<dyn CompletionSink>>>,
    worker: Mutex<Sender<Job>>,
}

type Job = Box<dyn FnOnce() + Send>;

/// A lock whose holders leave nothing half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    pub(crate) fn new(
        live: Live<IbvContext>,
        attributes: &DeviceAttributes,
    ) -> Result<Arc<Self>, VerbError> {
        let channel = live.create_channel()?;
        let (worker, jobs) = mpsc::channel::<Job>();
        let work = move || jobs.into_iter().for_each(|job| job());
        let thread = thread::Builder::new()
            .name("libibverbs-verbs".into())
            .spawn(work);
        thread.map_err(|error| VerbError::os("thread", error))?;
        Ok(Arc::new(Self {
            live,
            channel,
            features: attributes.features,
            limits: attributes.limits,
            keys: Mutex::default(),
            sinks: Mutex::default(),
            worker: Mutex::new(worker),
        }))
    }

    /// Has the thread carry out a verb and answer: one after the other, so that nothing is destroyed while another verb
    /// uses it.
    pub(crate) fn start<T: 'static>(
        &self,
        reply: Reply<T>,
        verb: impl FnOnce() -> Result<T, VerbError> + Send + 'static,
    ) {
        self.run(move || reply.send(verb()));
    }

    fn run(&self, job: impl FnOnce() + Send + 'static) {
        // The thread ends with the context. A job that it does not take is dropped, and its reply answers so.
        let _ = lock(&self.worker).send(Box::new(job));
    }

    /// Tells the owner of a completion queue.
    pub(crate) fn notify(&self, queue: ObjectId) {
        let sink = lock(&self.sinks).get(&queue).cloned();
        if let Some(sink) = sink {
            sink.notify();
        }
    }

    pub(crate) fn forget_sink(&self, queue: ObjectId) {
        let forgotten = lock(&self.sinks).remove(&queue);
        drop(forgotten);
    }
}

/// The context as the contract has it.
pub(crate) struct Open {
    context: Arc<Context>,
    watch: Mutex<Option<Watch>>,
}

impl Open {
    pub(crate) fn new(
        context: Arc<Context>,
        events: Arc<dyn EventSink>,
    ) -> Result<Self, VerbError> {
        let watch = Watch::start(Arc::clone(&context), events)?;
        Ok(Self {
            context,
            watch: Mutex::new(Some(watch)),
        })
    }
}

impl ContextOps for Open {
    fn query_port(&self, port: Port) -> Result<PortAttributes, VerbError> {
        device::port(&self.context.live, port)
    }

    fn alloc_pd(&self, reply: Reply<Arc<dyn PdOps>>) {
        let context = Arc::clone(&self.context);
        self.context.start(reply, move || {
            let pd = context.live.alloc_pd()?;
            Ok(Arc::new(Domain::new(context, pd)) as _)
        });
    }

    fn create_cq(&self, init: CqInit, reply: Reply<Arc<dyn CqOps>>) {
        let context = Arc::clone(&self.context);
        self.context.start(reply, move || {
            let CqInit {
                id,
                cqe,
                comp_vector,
                sink,
            } = init;
            lock(&context.sinks).insert(id, sink);
            let made = context
                .live
                .create_cq(cqe, id, &context.channel, comp_vector);
            let cq = made.inspect_err(|_| context.forget_sink(id))?;
            Ok(CompletionQueue::new(context, id, cq) as _)
        });
    }

    fn close(&self) {
        let (context, watch) = (Arc::clone(&self.context), lock(&self.watch).take());
        self.context.run(move || {
            if let Some(watch) = watch {
                watch.stop();
            }
            // Nobody is left to be told of a failure.
            let _ = context
                .channel
                .destroy()
                .and_then(|()| context.live.close());
        });
    }
}

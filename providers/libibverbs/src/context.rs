//! Open devices: verbs that block are carried out by a thread of the context.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use polyverbs_abi::IbvContext;
use verbs_api::VerbError;
use verbs_api::capability::PortAttributes;
use verbs_api::event::{EventSubject, EventType};
use verbs_api::ids::Port;
use verbs_api::objects::ObjectId;
use verbs_api::provider::{ContextOps, CqInit, CqOps, EventSink, PdOps, Reply};

use crate::completion_queue::CompletionQueue;
use crate::device::{self, Properties};
use crate::domain::{Domain, KeyHistory};
use crate::queue_pair;
use crate::rdmacm::Connections;
use crate::verbs::{Live, never_waits};
use crate::watch::{Watch, Watched, guarded};
use crate::worker::Worker;

/// What everything of an open device shares.
pub(crate) struct Context {
    pub(crate) live: Arc<Live<IbvContext>>,
    pub(crate) properties: Properties,
    pub(crate) keys: Mutex<KeyHistory>,
    pub(crate) connections: Arc<Connections>,
    worker: Worker,
    is_removed: AtomicBool,
    made: Mutex<Made>,
}

/// What a removal ends.
#[derive(Default)]
struct Made {
    queues: Vec<Weak<CompletionQueue>>,
    queue_pairs: Vec<Weak<queue_pair::Own>>,
}

/// A lock whose holders leave nothing half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds to a list, without those that are gone.
fn add<T>(list: &mut Vec<Weak<T>>, made: &Arc<T>) {
    if list.len() == list.capacity() {
        list.retain(|known| known.strong_count() > 0);
    }
    list.push(Arc::downgrade(made));
}

fn alive<T>(list: &[Weak<T>]) -> Vec<Arc<T>> {
    list.iter().filter_map(Weak::upgrade).collect()
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
            made: Mutex::default(),
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

    /// Adds what a removal closes. One that was looking while this was being made has not seen it.
    pub(crate) fn add_queue(&self, queue: &Arc<CompletionQueue>) {
        let mut made = lock(&self.made);
        add(&mut made.queues, queue);
        if self.is_removed.load(Ordering::Acquire) {
            queue.close();
        }
    }

    /// The same; nothing is outstanding yet.
    pub(crate) fn add_queue_pair(&self, queue_pair: &Arc<queue_pair::Own>) {
        let mut made = lock(&self.made);
        add(&mut made.queue_pairs, queue_pair);
        if self.is_removed.load(Ordering::Acquire) {
            queue_pair.admit(false);
        }
    }

    /// A completion queue has lost completions. Not every library says so at the next poll too.
    fn note_overrun(&self, queue: ObjectId) {
        let queues = alive(&lock(&self.made).queues);
        for queue in queues.iter().filter(|known| known.id == queue) {
            queue.has_overrun.store(true, Ordering::Relaxed);
        }
    }

    /// The device is gone: what is outstanding ends as flushed. Answers whether this was the first to say so.
    fn remove(&self) -> bool {
        if self.is_removed.swap(true, Ordering::AcqRel) {
            return false;
        }
        let made = lock(&self.made);
        let (queues, queue_pairs) = (alive(&made.queues), alive(&made.queue_pairs));
        drop(made);
        for queue_pair in &queue_pairs {
            queue_pair.admit(false);
        }
        for queue in &queues {
            queue.close();
        }
        for queue_pair in &queue_pairs {
            queue_pair.flush();
            guarded(|| queue_pair.call_off(&VerbError::DeviceRemoved));
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

/// Takes the asynchronous events of an open device.
struct Events {
    context: Arc<Context>,
    sink: Arc<dyn EventSink>,
    watch: Mutex<Option<Watch>>,
}

impl Events {
    fn tell(&self, event: EventType, subject: EventSubject) {
        if let (EventType::CqErr, EventSubject::Object(id)) = (event, subject) {
            self.context.note_overrun(id);
        }
        guarded(|| self.sink.event(event, subject));
        if event == EventType::DeviceFatal && self.context.remove() {
            self.stop();
            self.sink
                .event(EventType::DeviceRemoved, EventSubject::Device);
        }
    }

    fn stop(&self) {
        let watch = lock(&self.watch).take();
        if let (Some(watch), Ok(fd)) = (watch, self.context.live.async_fd()) {
            watch.stop(fd);
        }
    }
}

impl Watched for Events {
    fn is_ready(&self) {
        let taken = self
            .context
            .live
            .take_event(|event, subject| self.tell(event, subject));
        // A descriptor of no use any more would be ready for ever.
        if taken.is_err() {
            self.tell(EventType::DeviceFatal, EventSubject::Device);
        }
    }
}

/// The context as the contract has it.
pub(crate) struct Open {
    pub(crate) context: Arc<Context>,
    events: Arc<Events>,
}

impl Open {
    pub(crate) fn new(context: Arc<Context>, sink: Arc<dyn EventSink>) -> Result<Self, VerbError> {
        never_waits(context.live.async_fd()?)?;
        let events = Arc::new(Events {
            context: Arc::clone(&context),
            sink,
            watch: Mutex::new(None),
        });
        let mut watch = lock(&events.watch);
        let watched = Arc::clone(&events) as Arc<dyn Watched>;
        *watch = Some(Watch::level(context.live.async_fd()?, watched)?);
        drop(watch);
        Ok(Self { context, events })
    }
}

impl ContextOps for Open {
    fn query_port(&self, port: Port) -> Result<PortAttributes, VerbError> {
        let ports = self.context.properties.limits.phys_port_cnt;
        device::port(&self.context.live, port, ports)
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
            Ok(CompletionQueue::create(context, init)? as _)
        });
    }

    fn close(&self) {
        let (context, events) = (Arc::clone(&self.context), Arc::clone(&self.events));
        self.context.worker.run(move || {
            events.stop();
            // Nobody is left to be told of a failure.
            let _ = context.live.close();
        });
    }
}

#[cfg(test)]
mod tests {
    use verbs_api::VerbError;
    use verbs_api::capability::Grant;
    use verbs_api::extension::Extensions;
    use verbs_api::provider::{CompletionSink, PostOps as _, Provider as _, QpInit, own};
    use verbs_api::qp::{QpCap, QpType};
    use verbs_api::wr::{Operations, PostReason};

    use super::*;
    use crate::LibIbverbs;
    use crate::queue_pair::QueuePair;

    struct Nobody;

    impl EventSink for Nobody {
        fn event(&self, _: EventType, _: EventSubject) {}
    }

    impl CompletionSink for Nobody {
        fn notify(&self) {}
    }

    #[test]
    fn a_queue_pair_that_is_made_while_the_device_is_removed_takes_no_requests() {
        let refused = || -> Result<_, VerbError> {
            let library = LibIbverbs::in_file(built_library::built_apart());
            let devices = library.devices(&Extensions::new())?;
            let open = devices[0].open(&Grant::default(), Arc::new(Nobody))?;
            let context = Arc::clone(&own::<Open, _>(&open, "context")?.context);
            let pd = context.live.alloc_pd()?;
            let id = ObjectId::new(0, 0);
            context.remove();
            let init = CqInit {
                id,
                cqe: 1,
                comp_vector: 0,
                sink: Arc::new(Nobody),
            };
            let cq = CompletionQueue::create(Arc::clone(&context), init)?;
            let init = QpInit {
                id,
                qp_type: QpType::Rc,
                send_cq: Arc::clone(&cq) as _,
                recv_cq: cq,
                srq: None,
                cap: QpCap {
                    max_send_wr: 1,
                    max_recv_wr: 1,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: 0,
                },
                reserved_wr: 0,
                sq_sig_all: true,
                operations: Operations::empty(),
                extensions: Vec::new(),
            };
            let qp = QueuePair::create(context, &pd, init)?;
            Ok([qp.post_send(&[]), qp.post_recv(&[])])
        };
        let is_gone = Err((0, PostReason::InvalidHandle));
        assert_eq!(refused(), Ok([is_gone; 2]));
    }
}

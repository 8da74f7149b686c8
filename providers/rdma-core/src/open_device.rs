//! Open devices: the verbs of the contract, asynchronous events, and the access of extensions to the device.

use std::ffi::c_void;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use verbs_api::VerbError;
use verbs_api::capability::PortAttributes;
use verbs_api::event::{EventSubject, EventType};
use verbs_api::ids::Port;
use verbs_api::provider::{
    ContextOps, CqInit, CqOps, EventSink, Mutex, PdOps, Reply, own_in_layers,
};

use crate::completion_queue::CompletionQueue;
use crate::context::Context;
use crate::domain::Domain;
use crate::port;
use crate::verbs::never_waits;
use crate::watch::{Watch, Watched, guarded};
use crate::xrc::{OpenFlags, Xrcd};

/// Reads the asynchronous events of an open device, and reports them.
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
        let watch = self.watch.lock().take();
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
        // An unusable descriptor would be reported as ready forever.
        if taken.is_err() {
            self.tell(EventType::DeviceFatal, EventSubject::Device);
        }
    }
}

/// An open device in the form that the provider contract requires.
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
        let mut watch = events.watch.lock();
        let watched = Arc::clone(&events) as Arc<dyn Watched>;
        *watch = Some(Watch::level(context.live.async_fd()?, watched)?);
        drop(watch);
        Ok(Self { context, events })
    }
}

impl ContextOps for Open {
    fn query_port(&self, port: Port) -> Result<PortAttributes, VerbError> {
        let ports = self.context.properties.limits.phys_port_cnt;
        port::port(&self.context.live, port, ports)
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
        self.context.run(move || {
            events.stop();
            // There is no caller to report a failure to.
            let _ = context.live.close();
        });
    }
}

/// An open device of this provider, for extensions.
pub struct OpenDevice(Arc<Open>);

impl OpenDevice {
    /// Returns the open device of a context; `None` if it is of another provider.
    pub fn of(context: &verbs_api::Context) -> Option<Self> {
        own_in_layers(context.ops(), "context", <dyn ContextOps>::inner)
            .ok()
            .map(Self)
    }

    /// Calls `act` with the `ibv_context*` of the device, for instance to use a driver's direct verbs. The pointer is valid until
    /// `act` returns, and `act` must not close the device.
    ///
    /// # Errors
    /// The device is closed.
    pub fn with_context<R>(&self, act: impl FnOnce(*mut c_void) -> R) -> Result<R, VerbError> {
        self.0.context.live.with(|at| act(at.cast()))
    }

    /// Opens the XRC domain of a file, or, without a file, a new domain that cannot be opened again.
    pub fn open_xrcd(&self, file: Option<OwnedFd>, flags: OpenFlags, reply: Reply<Arc<Xrcd>>) {
        let context = Arc::clone(&self.0.context);
        self.0.context.start(reply, move || {
            // The device may have been opened with a feature that it does not claim.
            if !context.properties.has_xrc {
                return Err(VerbError::UnsupportedVerb("open_xrcd"));
            }
            let file = file.as_ref().map(|file| file.as_fd());
            Xrcd::open(&context.live, file, flags)
        });
    }
}

#[cfg(test)]
mod tests {
    use verbs_api::VerbError;
    use verbs_api::capability::Grant;
    use verbs_api::extension::Extensions;
    use verbs_api::objects::ObjectId;
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
    fn a_queue_pair_made_during_a_removal_refuses_requests() {
        let refused = || -> Result<_, VerbError> {
            let library = LibIbverbs::in_file(test_kit::libraries::built_apart());
            let found = library.devices(&Extensions::new())?;
            let open = found.devices[0].open(&Grant::default(), Arc::new(Nobody))?;
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

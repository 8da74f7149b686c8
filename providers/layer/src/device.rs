//! The device, closed and open.

use std::sync::Arc;

use verbs_api::VerbError;
use verbs_api::capability::{DeviceAttributes, Grant, PortAttributes};
use verbs_api::ids::Port;
use verbs_api::objects::ObjectKind;
use verbs_api::objects::management::AgentRegistration;
use verbs_api::provider::carrier::Carrier;
use verbs_api::provider::{
    AgentOps, AgentSink, ContextOps, CqInit, CqOps, DeviceOps, EventSink, PdOps, Reply,
};

use crate::completion_queue::CompletionQueue;
use crate::domain::Domain;
use crate::hooks::{Answer, Arguments, Call, Ended};
use crate::object::Object;
use crate::open_layer::{Events, Layer, OpenLayer};
use crate::verb::Verb;

/// A device with a layer.
pub(crate) struct LayeredDevice {
    pub(crate) inner: Arc<dyn DeviceOps>,
    pub(crate) layer: Arc<Layer>,
}

impl DeviceOps for LayeredDevice {
    fn attributes(&self) -> DeviceAttributes {
        let mut attributes = self.inner.attributes();
        self.layer.hooks.attributes(&mut attributes);
        attributes
    }

    fn open(
        &self,
        grant: &Grant,
        events: Arc<dyn EventSink>,
    ) -> Result<Arc<dyn ContextOps>, VerbError> {
        let before = self.layer.hooks.before(&mut Call {
            verb: Verb::OpenDevice,
            open: None,
            on: None,
            arguments: Arguments::None,
        });
        self.layer.sleep(before.delay);
        if let Some(error) = before.refusal {
            return Err(error);
        }
        let open = Arc::new(OpenLayer::new(Arc::clone(&self.layer), events));
        let events = Arc::new(Events(Arc::downgrade(&open)));
        let inner = self.inner.open(grant, events)?;
        self.layer.hooks.opened(&open);
        Ok(Arc::new(Context { inner, open }))
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.inner.counters()
    }

    fn carrier(&self) -> Option<Carrier> {
        self.inner.carrier()
    }

    fn is_idle(&self) -> bool {
        self.inner.is_idle()
    }
}

struct Context {
    inner: Arc<dyn ContextOps>,
    open: Arc<OpenLayer>,
}

impl ContextOps for Context {
    fn query_port(&self, port: Port) -> Result<PortAttributes, VerbError> {
        let verb = Verb::QueryPort;
        self.open.before_direct(&mut Call {
            verb,
            open: Some(&self.open),
            on: None,
            arguments: Arguments::Port(port),
        })?;
        let mut result = self.inner.query_port(port);
        let (error, answer) = match &mut result {
            Ok(attributes) => (None, Answer::Port(port, attributes)),
            Err(error) => (Some(&*error), Answer::None),
        };
        self.open.layer.hooks.after(&mut Ended {
            verb,
            object: None,
            error,
            answer,
        });
        result
    }

    fn alloc_pd(&self, reply: Reply<Arc<dyn PdOps>>) {
        let verb = Verb::AllocPd;
        let before = self.open.before(&mut Call {
            verb,
            open: Some(&self.open),
            on: None,
            arguments: Arguments::None,
        });
        let (open, context) = (Arc::clone(&self.open), Arc::clone(&self.inner));
        self.open
            .carry_out(before, verb, None, reply, move |reply| {
                context.alloc_pd(open.wrapping(
                    (verb, ObjectKind::Pd),
                    reply,
                    |inner, open, number| {
                        let object = Arc::new(Object::new(ObjectKind::Pd, number, None));
                        let domain = Domain {
                            inner,
                            open,
                            object: Arc::clone(&object),
                        };
                        (Arc::new(domain) as _, object)
                    },
                ));
            });
    }

    fn create_cq(&self, mut init: CqInit, reply: Reply<Arc<dyn CqOps>>) {
        let verb = Verb::CreateCq;
        let before = self.open.before(&mut Call {
            verb,
            open: Some(&self.open),
            on: None,
            arguments: Arguments::Cq(&mut init),
        });
        let (open, context) = (Arc::clone(&self.open), Arc::clone(&self.inner));
        let (id, sink) = (init.id, Arc::clone(&init.sink));
        self.open
            .carry_out(before, verb, None, reply, move |reply| {
                let made = (verb, ObjectKind::Cq);
                let wrap = move |inner, open: Arc<OpenLayer>, number| {
                    let object = Arc::new(Object::new(ObjectKind::Cq, number, Some(id)));
                    open.add(&object);
                    let cq = CompletionQueue::new(inner, open, Arc::clone(&object), sink);
                    (Arc::new(cq) as _, object)
                };
                context.create_cq(init, open.wrapping(made, reply, wrap));
            });
    }

    fn register_agent(
        &self,
        port: Port,
        registration: AgentRegistration,
        sink: Arc<dyn AgentSink>,
    ) -> Result<Box<dyn AgentOps>, VerbError> {
        self.inner.register_agent(port, registration, sink)
    }

    fn inner(&self) -> Option<&Arc<dyn ContextOps>> {
        Some(&self.inner)
    }

    fn close(&self) {
        self.open.closed();
        self.inner.close();
    }
}

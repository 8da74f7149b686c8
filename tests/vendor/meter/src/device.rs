//! The device, closed and open.

use std::sync::Arc;

use delegate::delegate;
use verbs_api::VerbError;
use verbs_api::capability::{DeviceAttributes, Grant, Limit, PortAttributes};
use verbs_api::ids::Port;
use verbs_api::objects::management::AgentRegistration;
use verbs_api::provider::carrier::Carrier;
use verbs_api::provider::{
    AgentOps, AgentSink, ContextOps, CqInit, CqOps, DeviceOps, EventSink, PdOps, Reply,
};

use crate::QUOTA;
use crate::completion_queue::CompletionQueue;
use crate::domain::Domain;
use crate::meter::Meter;

pub(crate) struct Device {
    name: String,
    provider: &'static str,
    behind: Arc<dyn DeviceOps>,
    meter: Arc<Meter>,
}

impl Device {
    pub(crate) fn new(name: String, provider: &'static str, behind: Arc<dyn DeviceOps>) -> Self {
        let max_qp = behind.attributes().limits.max_qp.min(QUOTA);
        Self {
            name,
            provider,
            behind,
            meter: Arc::new(Meter::new(max_qp)),
        }
    }
}

impl DeviceOps for Device {
    fn attributes(&self) -> DeviceAttributes {
        let mut attributes = self.behind.attributes();
        attributes.name = self.name.clone();
        attributes.provider = self.provider;
        attributes.limits.lower(Limit::MaxQp, self.meter.max_qp());
        attributes
    }

    fn open(
        &self,
        grant: &Grant,
        events: Arc<dyn EventSink>,
    ) -> Result<Arc<dyn ContextOps>, VerbError> {
        Ok(Arc::new(Context {
            behind: self.behind.open(grant, events)?,
            meter: Arc::clone(&self.meter),
        }))
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.meter.counters();
        counters.extend(self.behind.counters());
        counters
    }

    delegate! {
        to self.behind {
            fn carrier(&self) -> Option<Carrier>;
            fn is_idle(&self) -> bool;
        }
    }
}

struct Context {
    behind: Arc<dyn ContextOps>,
    meter: Arc<Meter>,
}

impl ContextOps for Context {
    fn alloc_pd(&self, reply: Reply<Arc<dyn PdOps>>) {
        let meter = Arc::clone(&self.meter);
        self.behind.alloc_pd(wrapping(reply, move |behind| {
            Arc::new(Domain { behind, meter })
        }));
    }

    fn create_cq(&self, init: CqInit, reply: Reply<Arc<dyn CqOps>>) {
        let meter = Arc::clone(&self.meter);
        self.behind.create_cq(
            init,
            wrapping(reply, move |behind| {
                Arc::new(CompletionQueue { behind, meter })
            }),
        );
    }

    fn inner(&self) -> Option<&Arc<dyn ContextOps>> {
        Some(&self.behind)
    }

    delegate! {
        to self.behind {
            fn query_port(&self, port: Port) -> Result<PortAttributes, VerbError>;
            fn register_agent(
                &self,
                port: Port,
                registration: AgentRegistration,
                sink: Arc<dyn AgentSink>,
            ) -> Result<Box<dyn AgentOps>, VerbError>;
            fn close(&self);
        }
    }
}

/// The reply that is passed to the inner device: it wraps the object that the device has made, and forwards
/// an error unchanged.
pub(crate) fn wrapping<T: ?Sized + 'static>(
    reply: Reply<Arc<T>>,
    wrap: impl FnOnce(Arc<T>) -> Arc<T> + Send + 'static,
) -> Reply<Arc<T>> {
    Reply::new(move |made: Result<Arc<T>, VerbError>| reply.send(made.map(wrap)))
}

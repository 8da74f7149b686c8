//! An open device.

mod events;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

pub use events::{Events, NextEvent};

use crate::capability::{DeviceAttributes, Features, Grant, Limits, PortAttributes};
use crate::contract::carrier::Carrier;
use crate::contract::{ContextOps, DeviceOps, EventSink};
use crate::control::Started;
use crate::error::{ArgumentReason, VerbError};
use crate::event_type::{EventSubject, EventType};
use crate::ids::{Gid, LinkAddress, Port};
use crate::lifecycle::{
    AsyncEvent, ContextCore, ContextShared, DestroyError, ObjectBuilder, Outcome, ProviderPart,
    by_identity,
};
use crate::object_id::{ObjectId, ObjectKind};
use crate::qp_attributes::AddressVector;

/// Tells devices apart, and keeps none alive.
#[derive(Clone)]
pub struct DeviceId(Weak<dyn DeviceOps>);

impl DeviceId {
    /// Whether the device is gone: neither its provider nor a program has it any more.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl PartialEq for DeviceId {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Eq for DeviceId {}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceId").field(&self.0.as_ptr()).finish()
    }
}

/// An open device: what a program makes everything else from. Cloning shares it.
///
/// The features granted are exactly those that [`open`](crate::open) was asked for; the device may
/// have more. Every error of a verb after [`DeviceRemoved`](crate::event::EventType::DeviceRemoved) is
/// [`VerbError::DeviceRemoved`]; objects can still be destroyed.
///
/// ```no_run
/// use verbs_api::{Requirements, open};
/// let device = open(Requirements::new())?;
/// println!("{}: up to {} queue pairs", device.attributes().name, device.limits().max_qp);
/// let pd = device.alloc_pd().wait()?;
/// let cq = device.create_cq(256).wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_context")]
#[doc(alias = "ibv_open_device")]
pub struct Context {
    pub(crate) core: Arc<ContextCore>,
    pub(crate) opened: Arc<Opened>,
}

/// The provider's part of a context, and the device that it was opened from.
pub(crate) struct Opened {
    ops: Arc<dyn ContextOps>,
    device: Arc<dyn DeviceOps>,
}

impl ProviderPart for Opened {
    fn close(&self) {
        self.ops.close();
    }
}

impl EventSink for ContextShared {
    fn event(&self, event: EventType, subject: EventSubject) {
        self.on_event(event, subject);
    }
}

impl Context {
    pub(crate) fn open(device: Arc<dyn DeviceOps>, grant: Grant) -> Result<Self, VerbError> {
        let shared = Arc::new(ContextShared::default());
        let ops = device.open(&grant, Arc::clone(&shared) as Arc<dyn EventSink>)?;
        let attributes = device.attributes();
        let opened = Arc::new(Opened { ops, device });
        let provider = Arc::clone(&opened) as Arc<dyn ProviderPart>;
        let core = Arc::new(ContextCore::new(shared, provider, attributes, grant));
        Ok(Self { core, opened })
    }

    /// The attributes of the device when it was opened.
    #[doc(alias = "ibv_query_device")]
    pub fn attributes(&self) -> &DeviceAttributes {
        self.core.attributes()
    }

    /// The device's numbers.
    pub fn limits(&self) -> &Limits {
        &self.core.attributes().limits
    }

    /// The core features granted.
    pub fn features(&self) -> Features {
        self.core.features()
    }

    /// The provider's part, for extensions.
    pub fn ops(&self) -> &Arc<dyn ContextOps> {
        &self.opened.ops
    }

    /// Everything granted, the bits of extensions included.
    pub fn grant(&self) -> &Grant {
        &self.core.grant
    }

    /// What a port tells about itself, now.
    ///
    /// # Errors
    /// There is no such port (they are counted from 1), or the device was removed.
    #[doc(alias = "ibv_query_port")]
    #[doc(alias = "ibv_query_gid")]
    #[doc(alias = "ibv_query_pkey")]
    pub fn query_port(&self, port: Port) -> Result<PortAttributes, VerbError> {
        self.core.check_open()?;
        let ports = self.attributes().ports.len();
        if port == 0 || usize::from(port) > ports {
            let reason = ArgumentReason::OutOfRange {
                given: port.into(),
                least: 1,
                most: ports as u64,
            };
            return Err(VerbError::argument("port_num", reason));
        }
        self.opened.ops.query_port(port)
    }

    /// A path from a port to where an address and an identifier are, with the port's
    /// [default identifier](PortAttributes::default_gid_index): the first of its table may be of another kind of network.
    ///
    /// ```no_run
    /// # fn example(context: &verbs_api::Context, pd: &verbs_api::Pd, peer: verbs_api::QpEndpoint)
    /// #     -> Result<(), verbs_api::VerbError> {
    /// let path = context.path_to(1, peer.address, peer.gid)?;
    /// let ah = pd.create_ah(path).wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// There is no such port (they are counted from 1), or the device was removed.
    pub fn path_to(
        &self,
        port_num: Port,
        address: LinkAddress,
        gid: Gid,
    ) -> Result<AddressVector, VerbError> {
        Ok(AddressVector {
            sgid_index: self.query_port(port_num)?.default_gid_index(),
            ..AddressVector::new(address, gid, port_num)
        })
    }

    /// Names and values of the device's own counters, over all contexts.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.opened.device.counters()
    }

    /// How connections are made; `None` where the device knows of no way.
    pub fn carrier(&self) -> Option<Carrier> {
        self.opened.device.carrier()
    }

    /// The identity of the device, the same for all its contexts.
    pub fn device_id(&self) -> DeviceId {
        DeviceId(Arc::downgrade(&self.opened.device))
    }

    /// Starts a verb of the caller's own, such as one of an extension that takes several steps: returns its future, and the
    /// end by which the caller completes it. It ends with [`VerbError::DeviceRemoved`] where the device is removed meanwhile.
    pub fn begin<T: Send + 'static>(&self) -> (Started<T>, Outcome<T>) {
        self.core.begin()
    }

    /// The next asynchronous event, if one waits.
    #[doc(alias = "ibv_get_async_event")]
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.core.shared().poll_event()
    }

    /// The next asynchronous event: await it, or wait for it. Each event goes to one of the waiters.
    ///
    /// ```no_run
    /// # fn example(device: &verbs_api::Context) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// while let Some(event) = device.next_event().wait_for(Duration::from_secs(1))? {
    ///     println!("{:?} of {:?}", event.event_type(), event.object());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn next_event(&self) -> NextEvent<'_> {
        NextEvent {
            shared: self.core.shared(),
        }
    }

    /// Every asynchronous event from now on, as a stream. Each goes to one of the waiters.
    ///
    /// ```no_run
    /// # async fn example(device: &verbs_api::Context) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::{future::poll_fn, pin::pin};
    /// use futures_core::Stream;
    /// use verbs_api::event::EventType;
    /// let mut events = pin!(device.events());
    /// while let Some(event) = poll_fn(|cx| events.as_mut().poll_next(cx)).await {
    ///     if event.event_type() == EventType::DeviceRemoved {
    ///         break;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn events(&self) -> Events<'_> {
        Events {
            next: self.next_event(),
        }
    }

    /// A descriptor that is readable while asynchronous events wait, for any event loop.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, VerbError> {
        self.core.shared().events().fd()
    }

    /// Gives every asynchronous event to `handler` from now on, those that wait already included.
    ///
    /// It runs on the thread that brings the event, with no lock held. In it every verb may be
    /// started and none waited for; the event is acknowledged when the handler drops it, so that the
    /// object that it is about may be destroyed in it and ends after it.
    ///
    /// ```no_run
    /// # fn example(device: &verbs_api::Context) -> Result<(), Box<dyn std::error::Error>> {
    /// device.on_event(|event| eprintln!("{:?} of {:?}", event.event_type(), event.object()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_event(&self, handler: impl Fn(AsyncEvent) + Send + Sync + 'static) {
        let shared = self.core.shared();
        shared.events().set_handler(Arc::new(handler));
        shared.deliver();
    }

    /// Events lost because earlier ones were not fetched. Fatal events are never lost.
    pub fn lost_events(&self) -> u64 {
        self.core.shared().events().lost()
    }

    /// Closes the device: Busy while anything made from it lives.
    #[doc(alias = "ibv_close_device")]
    pub fn close(self) -> Started<(), DestroyError<Self>> {
        self.core.retry_deferred();
        match self.core.table().close() {
            Ok(true) => {}
            Ok(false) => {
                let error = VerbError::InvalidHandle(ObjectKind::Context);
                return Started::ready(Err(DestroyError::Failed(error)));
            }
            Err(held_by) => {
                return Started::ready(Err(DestroyError::Busy {
                    held_by: self.core.table().named(held_by),
                    object: self,
                }));
            }
        }
        self.core.close();
        Started::ready(Ok(()))
    }

    /// Whether the device does nothing more until a program asks it for something.
    pub(crate) fn is_idle(&self) -> bool {
        self.opened.device.is_idle()
    }

    /// The object of this identity, if it is of this type and lives.
    pub(crate) fn find<T: 'static + Send + Sync>(&self, id: ObjectId) -> Option<Arc<T>> {
        let object = self
            .core
            .table()
            .find(id)
            .filter(|object| object.node().is_live())?;
        object.as_any().downcast().ok()
    }

    /// An object that is made from the context itself.
    pub(crate) fn builder(&self, kind: ObjectKind) -> Result<ObjectBuilder, VerbError> {
        self.core.check_open()?;
        ObjectBuilder::new(&self.core, kind, None)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Context");
        debug
            .field("device", &self.attributes().name)
            .field("features", &self.features())
            .finish()
    }
}

by_identity!(Context: core);

const fn core(context: &Context) -> &Arc<ContextCore> {
    &context.core
}

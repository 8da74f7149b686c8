//! An open device.

mod events;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;
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

/// Identifies a device, so that two can be compared. It is a weak reference and does not keep the device alive.
#[derive(Clone)]
pub struct DeviceId(Weak<dyn DeviceOps>);

impl DeviceId {
    /// Whether the device no longer exists, because neither its provider nor a program refers to it.
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

/// An open device, from which a program makes all other objects. A clone is another handle of the same context.
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

/// The provider's implementation of a context, and the device that it was opened from.
pub(crate) struct Opened {
    ops: Arc<dyn ContextOps>,
    device: Arc<dyn DeviceOps>,
    completion_counters: Arc<AtomicU32>,
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
        let opened = Arc::new(Opened {
            ops,
            device,
            completion_counters: Arc::default(),
        });
        let provider = Arc::clone(&opened) as Arc<dyn ProviderPart>;
        let core = Arc::new(ContextCore::new(shared, provider, attributes, grant));
        Ok(Self { core, opened })
    }

    /// Returns the attributes that the device had when it was opened.
    #[doc(alias = "ibv_query_device")]
    pub fn attributes(&self) -> &DeviceAttributes {
        self.core.attributes()
    }

    /// Returns the device's limits.
    pub fn limits(&self) -> &Limits {
        &self.core.attributes().limits
    }

    /// Returns the core features that were granted when the device was opened.
    pub fn features(&self) -> Features {
        self.core.features()
    }

    /// Returns the provider's implementation of the context, for extensions.
    pub fn ops(&self) -> &Arc<dyn ContextOps> {
        &self.opened.ops
    }

    /// Returns everything that was granted when the device was opened, features of extensions included.
    pub fn grant(&self) -> &Grant {
        &self.core.grant
    }

    /// Queries the present attributes of a port.
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

    /// Returns a path from `port` to a peer's link address and GID. The port's own end of it is the port's [default
    /// GID](PortAttributes::default_gid_index), because the first of its table may be of another kind of network.
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

    /// Returns names and values of the device's counters, which count for all contexts of the device.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.opened.device.counters()
    }

    /// Returns how connections are made on this device; `None` where it supports none.
    pub fn carrier(&self) -> Option<Carrier> {
        self.opened.device.carrier()
    }

    /// Returns the identity of the device, which is the same for all its contexts.
    pub fn device_id(&self) -> DeviceId {
        DeviceId(Arc::downgrade(&self.opened.device))
    }

    /// Starts a verb of the caller's own, for example one of an extension that takes several steps. Returns the future of
    /// the verb, and the [`Outcome`] by which the caller completes it. If the device is removed before, the verb fails with
    /// [`VerbError::DeviceRemoved`].
    pub fn begin<T: Send + 'static>(&self) -> (Started<T>, Outcome<T>) {
        self.core.begin()
    }

    /// Returns the next asynchronous event; `None` if none is pending.
    #[doc(alias = "ibv_get_async_event")]
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.core.shared().poll_event()
    }

    /// Returns the next asynchronous event: await it, or wait for it. If several callers wait, each event goes to one of
    /// them.
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

    /// Returns every asynchronous event from now on as a stream. If several callers wait, each event goes to one of them.
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

    /// Returns a descriptor that is readable while asynchronous events are pending, for any event loop.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, VerbError> {
        self.core.shared().events().fd()
    }

    /// Calls `handler` with every asynchronous event from now on, and with those that are pending already.
    ///
    /// The handler runs on the thread that reports the event, with no lock held. It may start every verb and wait for none.
    /// The event is acknowledged when the handler drops it; the handler may destroy the object that the event is about,
    /// which then ends after the handler.
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

    /// Returns how many events were lost because earlier ones were not fetched. Fatal events are never lost.
    pub fn lost_events(&self) -> u64 {
        self.core.shared().events().lost()
    }

    /// Closes the device. Fails with Busy while anything that was made from it exists.
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

    /// How many completion counters the context has.
    pub(crate) fn completion_counters(&self) -> &Arc<AtomicU32> {
        &self.opened.completion_counters
    }

    /// Whether the device has no message and no timeout pending, so that it does nothing until a program posts a request or
    /// starts a verb.
    pub(crate) fn is_idle(&self) -> bool {
        self.opened.device.is_idle()
    }

    /// Returns the object with this identity; `None` if it is not of the type `T` or was destroyed.
    pub(crate) fn find<T: 'static + Send + Sync>(&self, id: ObjectId) -> Option<Arc<T>> {
        let object = self
            .core
            .table()
            .find(id)
            .filter(|object| object.node().is_live())?;
        object.as_any().downcast().ok()
    }

    /// Starts to build an object of this kind whose only parent is the context.
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

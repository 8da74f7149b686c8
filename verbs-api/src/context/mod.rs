//! An open device.

mod events;
mod inner;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

pub use events::{AsyncEvent, Events, NextEvent};
pub use inner::Outcome;
pub(crate) use inner::{ContextInner, ContextShared};

use crate::capability::{DeviceAttributes, Features, Grant, Limits, PortAttributes, Unsupported};
use crate::channel::CompletionChannel;
use crate::contract::carrier::Carrier;
use crate::contract::{ContextOps, DeviceOps};
use crate::control::{Reply, Started};
use crate::cq::{Cq, CqOptions};
use crate::error::VerbError;
use crate::extension::Extension;
use crate::ids::{Gid, LinkAddress, Port};
use crate::mr::Mr;
use crate::object_id::{ObjectId, ObjectKind};
use crate::objects::{Birth, DestroyError, Object};
use crate::pd::Pd;
use crate::qp::Qp;
use crate::qp_attributes::AddressVector;
use crate::srq::Srq;

/// Tells devices apart, and keeps none alive.
#[derive(Clone)]
pub struct DeviceId(Weak<dyn DeviceOps>);

impl DeviceId {
    /// Whether nobody has the device any more.
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
    pub(crate) inner: Arc<ContextInner>,
}

impl Context {
    pub(crate) fn open(device: Arc<dyn DeviceOps>, grant: Grant) -> Result<Self, VerbError> {
        Ok(Self {
            inner: Arc::new(ContextInner::open(device, grant)?),
        })
    }

    /// What the device told about itself when it was opened.
    #[doc(alias = "ibv_query_device")]
    pub fn attributes(&self) -> &DeviceAttributes {
        self.inner.attributes()
    }

    /// The device's numbers.
    pub fn limits(&self) -> &Limits {
        &self.inner.attributes().limits
    }

    /// The core features granted.
    pub fn features(&self) -> Features {
        self.inner.features()
    }

    /// The provider's part, for extensions.
    pub fn ops(&self) -> &Arc<dyn ContextOps> {
        &self.inner.ops
    }

    /// Everything granted, the bits of extensions included.
    pub fn grant(&self) -> &Grant {
        &self.inner.grant
    }

    /// What a port tells about itself, now.
    ///
    /// # Errors
    /// There is no such port (they are counted from 1), or the device was removed.
    #[doc(alias = "ibv_query_port")]
    #[doc(alias = "ibv_query_gid")]
    #[doc(alias = "ibv_query_pkey")]
    pub fn query_port(&self, port: Port) -> Result<PortAttributes, VerbError> {
        self.inner.query_port(port)
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
        self.inner.device.counters()
    }

    /// How connections are made; `None` where the device knows of no way.
    pub fn carrier(&self) -> Option<Carrier> {
        self.inner.device.carrier()
    }

    /// Which device this is: the same for whoever has opened it.
    pub fn device_id(&self) -> DeviceId {
        DeviceId(Arc::downgrade(&self.inner.device))
    }

    /// The typed handle of an extension: the proof that its features were granted.
    ///
    /// # Errors
    /// The bits that were not granted, because the device lacks them or nobody asked for them.
    pub fn extension<X: Extension>(&self) -> Result<X, Unsupported> {
        X::load(self)
    }

    /// Starts a verb of the caller's own, such as one of an extension that takes several steps: what is answered, and
    /// how the caller ends it. It ends with [`VerbError::DeviceRemoved`] where the device is removed meanwhile.
    pub fn begin<T: Send + 'static>(&self) -> (Started<T>, Outcome<T>) {
        self.inner.begin()
    }

    /// Makes a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Started<Pd> {
        let birth = match self.birth(ObjectKind::Pd) {
            Ok(birth) => birth,
            Err(error) => return Started::ready(Err(error)),
        };
        let (started, outcome) = self.inner.begin();
        self.inner.ops.alloc_pd(Reply::new(move |result| {
            outcome.complete(result.map(|ops| {
                let object = birth.finish(|node| Object {
                    ops,
                    node,
                    extra: (),
                });
                Pd { object }
            }));
        }));
        started
    }

    /// Makes a completion queue: of this many entries at least, or with [`CqOptions`].
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, options: impl Into<CqOptions>) -> Started<Cq> {
        Cq::create(self, options.into())
    }

    /// Makes a completion channel: one place to learn of the completions of many queues.
    ///
    /// # Errors
    /// The device was removed, or the context closed.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_completion_channel(&self) -> Result<CompletionChannel, VerbError> {
        Ok(CompletionChannel::new(
            self.birth(ObjectKind::CompletionChannel)?,
        ))
    }

    /// The next asynchronous event, if one waits.
    #[doc(alias = "ibv_get_async_event")]
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.inner.shared.poll_event()
    }

    /// The next asynchronous event: await it, or wait for it. Each event goes to one of those who wait.
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
            shared: &self.inner.shared,
        }
    }

    /// Every asynchronous event from now on, as a stream. Each goes to one of those who wait.
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
        self.inner.shared.events.fd()
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
        self.inner.shared.events.set_handler(Arc::new(handler));
        self.inner.shared.deliver();
    }

    /// Events lost because nobody fetched those before them. Fatal events are never lost.
    pub fn lost_events(&self) -> u64 {
        self.inner.shared.events.lost()
    }

    /// The queue pair of this identity, or `None` once it was destroyed.
    pub fn find_qp(&self, id: ObjectId) -> Option<Qp> {
        Some(Qp::of(self.find(id)?))
    }

    /// The completion queue of this identity, or `None` once it was destroyed.
    pub fn find_cq(&self, id: ObjectId) -> Option<Cq> {
        Some(Cq::of(self.find(id)?))
    }

    /// The protection domain of this identity, or `None` once it was destroyed.
    pub fn find_pd(&self, id: ObjectId) -> Option<Pd> {
        Some(Pd {
            object: self.find(id)?,
        })
    }

    /// The memory region of this identity, or `None` once it was deregistered. Regions of buffers and
    /// allocated keys are not found.
    pub fn find_mr(&self, id: ObjectId) -> Option<Mr> {
        Mr::found(self.find(id)?)
    }

    /// The shared receive queue of this identity, or `None` once it was destroyed.
    pub fn find_srq(&self, id: ObjectId) -> Option<Srq> {
        Some(Srq::of(self.find(id)?))
    }

    /// Closes the device: Busy while anything made from it lives.
    #[doc(alias = "ibv_close_device")]
    pub fn close(self) -> Started<(), DestroyError<Self>> {
        self.inner.retry_deferred();
        match self.inner.table().close() {
            Ok(true) => {}
            Ok(false) => {
                let error = VerbError::InvalidHandle(ObjectKind::Context);
                return Started::ready(Err(DestroyError::Failed(error)));
            }
            Err(held_by) => {
                return Started::ready(Err(DestroyError::Busy {
                    held_by: self.inner.table().named(held_by),
                    object: self,
                }));
            }
        }
        self.inner.closed.store(true, Ordering::Relaxed);
        self.inner.ops.close();
        Started::ready(Ok(()))
    }

    fn find<T: 'static + Send + Sync>(&self, id: ObjectId) -> Option<Arc<T>> {
        let object = self
            .inner
            .table()
            .find(id)
            .filter(|object| object.node().is_live())?;
        object.as_any().downcast().ok()
    }

    fn birth(&self, kind: ObjectKind) -> Result<Birth, VerbError> {
        self.inner.check_open()?;
        Birth::new(&self.inner, kind, None)
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

//! The emulation of an extension, which a software device loads.
//!
//! An [`Emulation`] is the [part](verbs_api::extension::Part) of an extension that software devices need. A device is
//! created with a set of extensions and reports the features that their emulations add. A device without extensions reports
//! none of these features and refuses requests that need them. Only this module connects emulations to devices.

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use verbs_api::objects::ObjectId;
use verbs_api::provider::{EventSink, QpOps};
use verbs_api::{
    Features, VerbError, WcStatus,
    capability::{AtomicScope, DeviceAttributes},
    extension::{
        ExtensionDescriptor, Extensions, FeatureInfo, Held, Part, QpExtension, QpVariant,
        SrqExtension, Unsupported,
    },
    ids::{Gid, LinkAddress},
};

use crate::cq::Cq;
use crate::operation::{MaskedAtomics, OperationEmulation};
use crate::srq::{NamedSrq, Srq};
use crate::sync::Mutex;

/// The name that marks the parts of extensions that are emulations for software devices.
pub const FAMILY: &str = "polyverbs-engine";

/// Features of the core that only an emulation implements, no driver by itself. A driver that reports one of these
/// features says only that its transport can carry the feature's requests.
pub const EMULATED: Features = Features::IWARP_MANDATORY
    .union(Features::WINDOW_1)
    .union(Features::WINDOW_2)
    .union(Features::BLOCK_LIST)
    .union(Features::SG_GAPS);

/// How software devices carry out an extension.
pub trait Emulation: Send + Sync + 'static {
    /// Returns the features that a device gains from this emulation. `device` has the attributes of its driver, without any
    /// emulation.
    fn gains(&self, device: &DeviceAttributes) -> Gains;

    /// Returns the emulations of the extension's operations: one for each that the extension describes.
    fn operations(&self) -> &'static [&'static dyn OperationEmulation] {
        &[]
    }

    /// Returns the hooks of a queue pair that a program is creating with the flag or mode `extension` of this
    /// extension. The call has no side effect, because the creation may still fail.
    ///
    /// # Errors
    /// The queue pair cannot have this flag or mode.
    fn extend_qp(
        &self,
        extension: &QpExtension,
        _handle: &QpHandle<'_>,
    ) -> Result<QpHooks, VerbError> {
        Err(unsupported(extension.extension(), extension.feature()))
    }

    /// Makes a shared receive queue known to this extension, so that requests of peers can name the queue by its
    /// number. A program is creating the queue with the mode `extension` of this extension, such as XRC. The returned
    /// registration has the number; the queue drops the registration when the queue is destroyed.
    ///
    /// # Errors
    /// The shared receive queue cannot have this mode.
    fn extend_srq(
        &self,
        extension: &SrqExtension,
        _queue: SrqParts,
    ) -> Result<Box<dyn NamedSrq>, VerbError> {
        Err(unsupported(extension.extension(), extension.feature()))
    }

    /// Returns the implementation of masked atomics, for transports that carry them natively; `None` if this emulation has
    /// none.
    fn masked_atomics(&self) -> Option<&'static dyn MaskedAtomics> {
        None
    }
}

pub(crate) fn unsupported(extension: &'static str, feature: &FeatureInfo) -> VerbError {
    let missing = vec![feature.name];
    VerbError::Extension(Unsupported { extension, missing })
}

/// The handle through which a program will use a queue pair that is being created.
#[derive(Clone, Copy)]
pub struct QpHandle<'h> {
    /// The identity of the handle, by which events name the queue pair.
    pub id: ObjectId,
    /// The sink to which events of the queue pair are reported.
    pub events: &'h Arc<dyn EventSink>,
    /// The numbers of this device: the first, and the one after the last.
    pub numbers: (u32, u32),
    /// The domains that the device shares with other processes at its address.
    pub domains: &'h Arc<Domains>,
}

/// A shared receive queue that a program is creating with a mode of an extension.
pub struct SrqParts {
    /// The identity of the program's handle for the queue.
    pub id: ObjectId,
    /// The shared receive queue itself.
    pub srq: Arc<Srq>,
    /// The completion queue for receives of this shared receive queue.
    pub cq: Arc<Cq>,
    /// The numbers of this device: the first, and the one after the last.
    pub numbers: (u32, u32),
    /// The domains that the device shares with other processes at its address.
    pub domains: Arc<Domains>,
}

/// The hooks by which an extension takes part in one queue pair.
#[derive(Default)]
pub struct QpHooks {
    /// Decides which multicast datagrams the queue pair takes; without it, the queue pair takes all.
    pub delivery_filter: Option<Box<dyn DeliveryFilter>>,
    /// Observes how the requests of the queue pair end.
    pub completion_observer: Option<Box<dyn CompletionObserver>>,
    /// Whether each request names the peer's shared receive queue, and so the protection domain, for which it is meant.
    pub addressing: Addressing,
    /// Present if several handles of programs share the queue pair.
    pub sharing: Option<Box<dyn Sharing>>,
}

/// Whether each request between two queue pairs names the shared receive queue for which it is meant. Each transport has
/// its own encoding: InfiniBand uses the opcodes of XRC.
#[derive(Clone, Default)]
pub enum Addressing {
    /// Requests name no shared receive queue.
    #[default]
    None,
    /// The queue pair sends requests that name a shared receive queue of the peer: the attribute of each request is the
    /// number of that queue.
    Sends,
    /// The queue pair receives requests that name one of these shared receive queues of its device.
    Receives(Arc<dyn Targets>),
}

/// The shared receive queues that requests of a peer may name.
pub trait Targets: Send + Sync {
    /// Returns the shared receive queue with this number; `None` if there is none that the peer may use. The caller holds a
    /// lock of the queue pair.
    fn target(&self, number: u32) -> Option<Arc<Target>>;

    /// Returns all these shared receive queues.
    fn all(&self) -> Vec<Arc<Target>>;

    /// Returns the identity by which other processes at the device's address know the domain of these queues; `None` if the
    /// domain belongs to this process alone.
    fn domain(&self) -> Option<DomainId> {
        None
    }

    /// Handles a [message](Domains::send_message) that another process has sent to this domain. `from` is a number of that process. The
    /// caller holds no lock.
    fn handle_message(&self, _from: u32, _message: &[u8]) {}

    /// Notes that the process with these numbers has gone. The caller holds no lock.
    fn handle_gone(&self, _numbers: Range<u32>) {}
}

/// The identity of a domain whose shared receive queues belong to several processes at one address.
pub type DomainId = [u8; 16];

/// Reaches the other processes at the address of a device.
pub(crate) trait Neighbours: Send + Sync {
    /// Sends a message to the domain of the process with this number.
    fn send_message(&self, number: u32, domain: &DomainId, message: &[u8]);
}

/// The domains that a device shares with other processes at its address, by identity.
pub struct Domains {
    known: Mutex<HashMap<DomainId, Weak<dyn Targets>>>,
    neighbours: Weak<dyn Neighbours>,
}

impl Domains {
    pub(crate) fn new(neighbours: Weak<dyn Neighbours>) -> Self {
        Self {
            known: Mutex::default(),
            neighbours,
        }
    }

    /// Sends a message to the domain with this identity in the process with this number, where
    /// [`Targets::handle_message`] gets it. It may be lost, like a packet. The caller holds no lock.
    pub fn send_message(&self, number: u32, domain: &DomainId, message: &[u8]) {
        if let Some(neighbours) = self.neighbours.upgrade() {
            neighbours.send_message(number, domain, message);
        }
    }

    pub(crate) fn domain(&self, id: &DomainId) -> Option<Arc<dyn Targets>> {
        self.known.lock().get(id)?.upgrade()
    }

    pub(crate) fn domains(&self) -> Vec<Arc<dyn Targets>> {
        let known = self.known.lock();
        known.values().filter_map(Weak::upgrade).collect()
    }

    /// Adds a domain, which stays as long as it lives.
    pub fn add(&self, id: DomainId, domain: Weak<dyn Targets>) {
        let mut known = self.known.lock();
        known.retain(|_, domain| domain.strong_count() > 0);
        known.insert(id, domain);
    }

    /// Returns the shared receive queue with this number in this domain; `None` if this process has none.
    pub fn target(&self, id: &DomainId, number: u32) -> Option<Arc<Target>> {
        self.domain(id)?.target(number)
    }

    /// Returns the shared receive queues of all these domains.
    pub fn all(&self) -> Vec<Arc<Target>> {
        self.domains()
            .iter()
            .flat_map(|domain| domain.all())
            .collect()
    }
}

/// A shared receive queue that requests of a peer name.
pub struct Target {
    /// The number by which requests name the shared receive queue.
    pub number: u32,
    /// The shared receive queue, in whose protection domain the requests that name the queue are executed.
    pub srq: Arc<Srq>,
    /// The completion queue for receives of this shared receive queue.
    pub cq: Arc<Cq>,
    /// The stand-ins for queue pairs of other processes that deliver to this queue, by number. Each is of a driver's own
    /// type.
    stand_ins: Mutex<HashMap<u32, Arc<dyn Any + Send + Sync>>>,
}

impl Target {
    /// Makes the shared receive queue known under a number.
    pub fn new(number: u32, srq: Arc<Srq>, cq: Arc<Cq>) -> Self {
        Self {
            number,
            srq,
            cq,
            stand_ins: Mutex::default(),
        }
    }

    /// Returns the stand-in for the queue pair `qpn` of another process, which `make` makes if there is none.
    pub fn stand_in<T: Any + Send + Sync>(
        &self,
        qpn: u32,
        make: impl FnOnce() -> Option<Arc<T>>,
    ) -> Option<Arc<T>> {
        let mut stand_ins = self.stand_ins.lock();
        if let Some(known) = stand_ins.get(&qpn) {
            return Arc::clone(known).downcast().ok();
        }
        let made = make()?;
        stand_ins.insert(qpn, Arc::clone(&made) as _);
        Some(made)
    }

    /// Ends all stand-ins, because the shared receive queue is destroyed. The caller holds no lock.
    pub fn end(&self) {
        let ended = std::mem::take(&mut *self.stand_ins.lock());
        drop(ended);
    }

    /// Removes the stand-ins that `which` selects, and returns them. It gets the number of the queue pair for which each
    /// stands.
    pub fn end_stand_ins<T: Any + Send + Sync>(
        &self,
        which: impl Fn(u32, &T) -> bool,
    ) -> Vec<Arc<dyn Any + Send + Sync>> {
        let mut stand_ins = self.stand_ins.lock();
        let ended = stand_ins.extract_if(|&qpn, one| {
            let one: Option<&T> = one.downcast_ref();
            one.is_some_and(|one| which(qpn, one))
        });
        ended.map(|(_, one)| one).collect()
    }
}

/// The addressing of a stand-in, whose driver says which shared receive queue each request names.
struct AsNamed;

impl Targets for AsNamed {
    fn target(&self, _: u32) -> Option<Arc<Target>> {
        None
    }

    fn all(&self) -> Vec<Arc<Target>> {
        Vec::new()
    }
}

/// Lets several handles of programs share one queue pair.
pub trait Sharing: Send + Sync {
    /// Returns a further handle of the shared queue pair if that exists already; `None` if the engine has to create it.
    fn existing(&mut self) -> Option<Arc<dyn QpOps>>;

    /// Returns the sink for the events of a new queue pair, which forwards each event to all handles of that queue
    /// pair.
    fn events(&self) -> Arc<dyn EventSink>;

    /// Returns the first handle of `made`, the queue pair that the engine has just created.
    fn first(&mut self, made: Arc<dyn QpOps>) -> Arc<dyn QpOps>;
}

/// Decides which multicast datagrams a queue pair takes.
pub trait DeliveryFilter: Send + Sync {
    /// Returns whether `receiver` takes a datagram for `group` that `sender` sent. The caller holds a lock of the receiver.
    fn takes(&self, sender: Station, receiver: Station, group: Gid) -> bool;
}

/// One end of a datagram: a queue pair and the address of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// The link address of the device.
    pub address: LinkAddress,
    /// The number of the queue pair.
    pub qpn: u32,
}

/// Observes how the requests of a queue pair end: before the completion of a request is in the completion queue, and
/// also if the request gets no completion.
///
/// The engine calls the methods in the order of the requests and holds a lock of the queue pair, so they must only note
/// the status.
pub trait CompletionObserver: Send + Sync {
    /// Notes that the next request of the send queue has ended with this status.
    fn sent(&self, status: WcStatus);

    /// Notes that the next receive has ended with this status.
    fn received(&self, status: WcStatus);
}

/// The hooks of all extensions with which a queue pair was created.
#[derive(Default)]
pub struct QpExtensions {
    filters: Vec<Box<dyn DeliveryFilter>>,
    observers: Vec<Box<dyn CompletionObserver>>,
    addressing: Addressing,
    named: Mutex<Option<Arc<Target>>>,
    pub(crate) variant: Option<&'static QpVariant>,
    pub(crate) sharing: Option<Box<dyn Sharing>>,
    // Objects that the program passed and that must live as long as the queue pair.
    _held: Vec<Held>,
}

impl QpExtensions {
    /// Returns whether an extension has to see each request, so that no request may take the express path past the driver.
    pub(crate) fn watches(&self) -> bool {
        !self.observers.is_empty() || self.carries_srqn()
    }

    pub(crate) fn carries_srqn(&self) -> bool {
        !matches!(self.addressing, Addressing::None)
    }

    /// Returns whether the queue pair receives requests that name one of its device's shared receive queues.
    pub fn is_target(&self) -> bool {
        matches!(self.addressing, Addressing::Receives(_))
    }

    /// Returns the shared receive queue with this number. The result is `None` both if there is none and if this queue pair
    /// may not use it.
    pub fn target(&self, number: u32) -> Option<Arc<Target>> {
        match &self.addressing {
            Addressing::Receives(targets) => targets.target(number),
            _ => None,
        }
    }

    /// Returns the hooks of a stand-in for a queue pair of another process.
    pub(crate) fn of_stand_in() -> Box<Self> {
        Box::new(Self {
            addressing: Addressing::Receives(Arc::new(AsNamed)),
            ..Self::default()
        })
    }

    /// Returns the identity of the queue pair's domain among the processes at the device's address; `None` if no other
    /// process can have the domain.
    pub fn domain(&self) -> Option<DomainId> {
        match &self.addressing {
            Addressing::Receives(targets) => targets.domain(),
            _ => None,
        }
    }

    /// Makes the queue pair take its next receives from `target` and complete them in that target's completion queue;
    /// with `None`, the queue pair takes receives from no target any longer.
    pub fn take_receives_from(&self, target: Option<Arc<Target>>) {
        *self.named.lock() = target;
    }

    /// Returns the shared receive queue that the current request names, if any.
    pub(crate) fn named(&self) -> Option<Arc<Target>> {
        self.named.lock().clone()
    }

    /// Returns whether all extensions let `receiver` take a multicast datagram that `sender` has sent to `group`.
    pub fn takes_multicast(&self, sender: Station, receiver: Station, group: Gid) -> bool {
        let mut filters = self.filters.iter();
        filters.all(|filter| filter.takes(sender, receiver, group))
    }

    pub(crate) fn sent(&self, status: WcStatus) {
        let all = self.observers.iter();
        all.for_each(|observer| observer.sent(status));
    }

    pub(crate) fn received(&self, status: WcStatus) {
        let all = self.observers.iter();
        all.for_each(|observer| observer.received(status));
    }
}

/// The features that a device gains from an emulation. The default, no feature, means that the device cannot have the
/// extension.
#[derive(Clone, Debug, Default)]
pub struct Gains {
    /// The feature bits of the core that the device gains.
    pub features: Features,
    /// The feature bits of the extension's own set that the device gains.
    pub own: u64,
    /// The extension's own limits, each a name and a value.
    pub limits: Vec<(&'static str, u64)>,
    /// The scope in which masked atomics are atomic.
    pub masked_atomic_cap: AtomicScope,
    /// Whether these features need a driver whose requests can name shared receive queues of the peer ([`Addressing`]).
    /// If so, a device with another driver gains none of them.
    pub addresses_receives: bool,
}

/// Makes an emulation a part of an extension, in the extension's descriptor:
///
/// ```
/// use polyverbs_engine::emulation::{Emulation, EmulationPart, Gains};
/// use verbs_api::{capability::DeviceAttributes, extension::ExtensionDescriptor};
///
/// struct Nothing;
///
/// impl Emulation for Nothing {
///     fn gains(&self, _: &DeviceAttributes) -> Gains {
///         Gains::default()
///     }
/// }
///
/// static EMULATION: EmulationPart = EmulationPart(&Nothing);
/// pub static EXTENSION: ExtensionDescriptor =
///     ExtensionDescriptor::new("nothing", "an example").parts(&[&EMULATION]);
/// ```
pub struct EmulationPart(pub &'static dyn Emulation);

impl Part for EmulationPart {
    fn family(&self) -> &'static str {
        FAMILY
    }

    fn check(&self, extension: &ExtensionDescriptor) -> Result<(), String> {
        let emulated: Vec<_> = self
            .0
            .operations()
            .iter()
            .map(|one| one.operation())
            .collect();
        let described = extension.all_operations();
        if let Some(missing) = described.iter().find(|one| !emulated.contains(one)) {
            return Err(format!("an emulation of {}", missing.name()));
        }
        match emulated.iter().find(|one| !described.contains(one)) {
            Some(unknown) => Err(format!("a description of {}", unknown.name())),
            None => Ok(()),
        }
    }
}

/// A reference to the emulation of one operation of an extension.
pub(crate) type OperationRef = &'static dyn OperationEmulation;

/// The emulations of one device, each in the list for its use.
#[derive(Default)]
pub(crate) struct Emulations {
    pub(crate) operations: Vec<OperationRef>,
    pub(crate) masked_atomics: Option<&'static dyn MaskedAtomics>,
    addresses_receives: bool,
    all: Vec<(&'static str, &'static dyn Emulation)>,
}

impl Emulations {
    /// Selects the emulations of `extensions` that the device can have, and adds their gains to `attributes`. The device
    /// must not get the features in `without`.
    pub(crate) fn plug(
        extensions: &Extensions,
        attributes: &mut DeviceAttributes,
        without: Features,
        addresses_receives: bool,
    ) -> Result<Self, VerbError> {
        let parts = extensions
            .parts::<EmulationPart>(FAMILY)
            .map_err(|error| VerbError::argument("extensions", error))?;
        // A gain that builds on a feature in `without` is not added either.
        let mut driver = attributes.clone();
        driver.features -= without;
        attributes.features -= EMULATED;
        let mut plugged = Self {
            addresses_receives,
            ..Self::default()
        };
        for (extension, EmulationPart(emulation)) in parts {
            let gains = emulation.gains(&driver);
            if gains.addresses_receives && !addresses_receives {
                continue;
            }
            gains.add_to(attributes, extension)?;
            if !gains.is_empty() {
                plugged.add(extension.name(), *emulation);
            }
        }
        Ok(plugged)
    }

    /// Returns the hooks of all extensions with which a program creates a queue pair; `None` if the queue pair has no
    /// extension.
    pub(crate) fn extend_qp(
        &self,
        extensions: &[QpExtension],
        handle: &QpHandle<'_>,
    ) -> Result<Option<Box<QpExtensions>>, VerbError> {
        if extensions.is_empty() {
            return Ok(None);
        }
        let mut all = Box::<QpExtensions>::default();
        for extension in extensions {
            let emulation = self.named(extension.extension(), extension.feature())?;
            let hooks = emulation.extend_qp(extension, handle)?;
            all.filters.extend(hooks.delivery_filter);
            all.observers.extend(hooks.completion_observer);
            if !matches!(hooks.addressing, Addressing::None) {
                if !self.addresses_receives {
                    let what = "requests that name shared receive queues of the peer";
                    return Err(VerbError::UnsupportedVerb(what));
                }
                all.addressing = hooks.addressing;
            }
            all.variant = all.variant.or(extension.qp_variant());
            all.sharing = hooks.sharing.or(all.sharing);
            all._held.extend(extension.held().cloned());
        }
        Ok(Some(all))
    }

    /// Makes a shared receive queue, which a program is creating with a mode of an extension, known to that extension.
    pub(crate) fn extend_srq(
        &self,
        extension: &SrqExtension,
        queue: SrqParts,
    ) -> Result<Box<dyn NamedSrq>, VerbError> {
        self.named(extension.extension(), extension.feature())?
            .extend_srq(extension, queue)
    }

    fn named(
        &self,
        extension: &'static str,
        feature: &FeatureInfo,
    ) -> Result<&'static dyn Emulation, VerbError> {
        let mut known = self.all.iter();
        let found = known.find(|(name, _)| *name == extension);
        let found = found.map(|(_, emulation)| *emulation);
        found.ok_or_else(|| unsupported(extension, feature))
    }

    fn add(&mut self, name: &'static str, emulation: &'static dyn Emulation) {
        self.all.push((name, emulation));
        self.masked_atomics = self.masked_atomics.or(emulation.masked_atomics());
        self.operations.extend(emulation.operations());
    }
}

impl Gains {
    fn is_empty(&self) -> bool {
        self.features.is_empty() && self.own == 0
    }

    // Adds the gains to the device's attributes. It fails if the emulation claims a feature that its extension does not
    // describe.
    fn add_to(
        &self,
        attributes: &mut DeviceAttributes,
        extension: &ExtensionDescriptor,
    ) -> Result<(), VerbError> {
        let claimed = extension
            .claimed(self.features, self.own, &self.limits)
            .map_err(|reason| VerbError::argument("extensions", reason))?;
        attributes.features |= self.features;
        if self.masked_atomic_cap != AtomicScope::None {
            attributes.masked_atomic_cap = self.masked_atomic_cap;
        }
        attributes.extensions.extend(claimed);
        Ok(())
    }
}

//! The emulation of an extension, which a software device loads.
//!
//! An [`Emulation`] is the [part](verbs_api::extension::Part) of an extension that software devices need. A device is
//! created with a set of extensions and reports the features that their emulations add. A device without extensions reports
//! none of these features and refuses requests that need them. Only this module connects emulations to devices.

use std::sync::Arc;

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

/// The family of parts that are emulations for software devices.
pub const FAMILY: &str = "polyverbs-engine";

/// Features of the core that no driver has by itself: an emulation implements them. A driver that names one only says that
/// it has a place for it.
pub const EMULATED: Features = Features::IWARP_MANDATORY
    .union(Features::WINDOW_1)
    .union(Features::WINDOW_2)
    .union(Features::BLOCK_LIST)
    .union(Features::SG_GAPS);

/// The emulation of an extension on software devices.
pub trait Emulation: Send + Sync + 'static {
    /// Returns the features that a device gains. `device` are the attributes of its driver, before any emulation.
    fn gains(&self, device: &DeviceAttributes) -> Gains;

    /// Its operations: one for each that the extension describes.
    fn operations(&self) -> &'static [&'static dyn OperationEmulation] {
        &[]
    }

    /// Returns the hooks of a queue pair that is being created with a flag or a mode of the extension. The call has no side
    /// effect, because the creation may still fail.
    ///
    /// # Errors
    /// The queue pair cannot have it.
    fn extend_qp(
        &self,
        extension: &QpExtension,
        _handle: &QpHandle<'_>,
    ) -> Result<QpHooks, VerbError> {
        Err(unsupported(extension.extension(), extension.feature()))
    }

    /// Registers a shared receive queue that is being created with a mode of the extension, so that requests can name it.
    /// The queue drops the registration when it is destroyed.
    ///
    /// # Errors
    /// The queue cannot have it.
    fn extend_srq(
        &self,
        extension: &SrqExtension,
        _queue: SrqParts,
    ) -> Result<Box<dyn NamedSrq>, VerbError> {
        Err(unsupported(extension.extension(), extension.feature()))
    }

    /// Returns the masked atomics for transports that carry them natively.
    fn masked_atomics(&self) -> Option<&'static dyn MaskedAtomics> {
        None
    }
}

pub(crate) fn unsupported(extension: &'static str, feature: &FeatureInfo) -> VerbError {
    let missing = vec![feature.name];
    VerbError::Extension(Unsupported { extension, missing })
}

/// The handle for which a queue pair is being created. Events of the queue pair name it.
#[derive(Clone, Copy)]
pub struct QpHandle<'h> {
    /// Its identity.
    pub id: ObjectId,
    /// The sink of its events.
    pub events: &'h Arc<dyn EventSink>,
}

/// A shared receive queue that is being created.
pub struct SrqParts {
    /// Its identity.
    pub id: ObjectId,
    /// The queue.
    pub srq: Arc<Srq>,
    /// The completion queue of its receives.
    pub cq: Arc<Cq>,
}

/// The hooks of an extension for one queue pair.
#[derive(Default)]
pub struct QpHooks {
    /// Decides which multicast datagrams the queue pair takes.
    pub delivery_filter: Option<Box<dyn DeliveryFilter>>,
    /// Observes the completions of the queue pair.
    pub completion_observer: Option<Box<dyn CompletionObserver>>,
    /// Whether each request names the shared receive queue, and so the protection domain, for which it is meant.
    pub addressing: Addressing,
    /// Present if the queue pair has several handles.
    pub sharing: Option<Box<dyn Sharing>>,
}

/// Whether each request between two queue pairs names the shared receive queue for which it is meant. Each transport has
/// its own encoding: InfiniBand uses the opcodes of XRC.
#[derive(Clone, Default)]
pub enum Addressing {
    /// Requests name no queue.
    #[default]
    None,
    /// The queue pair sends such requests: the attribute of each is the number of the queue.
    Sends,
    /// The queue pair receives such requests.
    Receives(Arc<dyn Targets>),
}

/// The shared receive queues that requests may name.
pub trait Targets: Send + Sync {
    /// Returns the queue with this number. The caller holds a lock of the queue pair.
    fn target(&self, number: u32) -> Option<Arc<Target>>;
}

/// A shared receive queue that requests name.
pub struct Target {
    /// Its number.
    pub number: u32,
    /// The queue. Its domain applies to the requests.
    pub srq: Arc<Srq>,
    /// The completion queue of its receives.
    pub cq: Arc<Cq>,
}

/// Several handles of one queue pair.
pub trait Sharing: Send + Sync {
    /// Returns a handle of an existing queue pair, if there is one: then no queue pair is made.
    fn existing(&mut self) -> Option<Arc<dyn QpOps>>;

    /// Returns the sink of a new queue pair's events, which forwards them to all handles.
    fn events(&self) -> Arc<dyn EventSink>;

    /// Returns the first handle of a new queue pair.
    fn first(&mut self, made: Arc<dyn QpOps>) -> Arc<dyn QpOps>;
}

/// Decides which multicast datagrams a queue pair takes.
pub trait DeliveryFilter: Send + Sync {
    /// Returns whether `receiver` takes a datagram for `group` that `sender` sent. The caller holds a lock of the receiver.
    fn takes(&self, sender: Station, receiver: Station, group: Gid) -> bool;
}

/// A queue pair as datagrams name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// The device's address on the link.
    pub address: LinkAddress,
    /// The queue pair.
    pub qpn: u32,
}

/// Observes the completions of a queue pair before they are in its completion queue, and also requests that have none.
///
/// The engine calls it with a lock of the queue pair held, in the order of the queue, so it must only note the status.
pub trait CompletionObserver: Send + Sync {
    /// A request of the send queue has ended.
    fn sent(&self, status: WcStatus);

    /// A receive has ended.
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
    // Objects that the program passed and that must stay alive.
    _held: Vec<Held>,
}

impl QpExtensions {
    /// Returns whether the queue pair must not use the express path.
    pub(crate) fn watches(&self) -> bool {
        !self.observers.is_empty() || self.carries_srqn()
    }

    pub(crate) fn carries_srqn(&self) -> bool {
        !matches!(self.addressing, Addressing::None)
    }

    /// Returns whether the queue pair receives requests that name a shared receive queue.
    pub fn is_target(&self) -> bool {
        matches!(self.addressing, Addressing::Receives(_))
    }

    /// Returns the shared receive queue with this number. Returns `None` both if there is none and if this queue pair may
    /// not use it.
    pub fn target(&self, number: u32) -> Option<Arc<Target>> {
        match &self.addressing {
            Addressing::Receives(targets) => targets.target(number),
            _ => None,
        }
    }

    /// Takes receives from `target` from now on, and completes them in its completion queue.
    pub fn take_receives_from(&self, target: Option<Arc<Target>>) {
        *self.named.lock() = target;
    }

    /// Returns the queue that the current request names.
    pub(crate) fn named(&self) -> Option<Arc<Target>> {
        self.named.lock().clone()
    }

    /// Returns whether the extensions let `receiver` take a multicast datagram of `sender`.
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

/// The features that a device gains from an emulation: none, if the device cannot have it.
#[derive(Clone, Debug, Default)]
pub struct Gains {
    /// Bits of the core.
    pub features: Features,
    /// Bits of the extension's own set.
    pub own: u64,
    /// Names and values of the extension's numbers.
    pub limits: Vec<(&'static str, u64)>,
    /// The scope in which masked atomics are atomic.
    pub masked_atomic_cap: AtomicScope,
    /// All of this needs a driver whose requests name shared receive queues of the peer ([`Addressing`]). A device with
    /// another driver gains nothing.
    pub addresses_receives: bool,
}

/// An emulation as a part of an extension:
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

/// The emulation of one operation of an extension.
pub(crate) type OperationRef = &'static dyn OperationEmulation;

/// The emulations of one device, by where they are used.
#[derive(Default)]
pub(crate) struct Emulations {
    pub(crate) operations: Vec<OperationRef>,
    pub(crate) masked_atomics: Option<&'static dyn MaskedAtomics>,
    addresses_receives: bool,
    all: Vec<(&'static str, &'static dyn Emulation)>,
}

impl Emulations {
    /// Adds the emulations of `extensions`, and adds their gains to `attributes`.
    pub(crate) fn plug(
        extensions: &Extensions,
        attributes: &mut DeviceAttributes,
        without: Features,
        addresses_receives: bool,
    ) -> Result<Self, VerbError> {
        let parts = extensions
            .parts::<EmulationPart>(FAMILY)
            .map_err(|error| VerbError::argument("extensions", error))?;
        // A gain that builds on a feature which the device must lack is not added either.
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

    /// Returns the hooks of all extensions of a queue pair, if it has any.
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

    /// Registers a shared receive queue with its extension.
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

    // An emulation must not implement a feature that its extension does not describe.
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

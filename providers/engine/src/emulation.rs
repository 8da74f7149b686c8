//! What an extension plugs into a software device: its emulation.
//!
//! An [`Emulation`] is the [part](verbs_api::extension::Part) of an extension that software devices need. A device is made with a
//! set of extensions and claims what their emulations say that it gains; without any of them it claims no such feature
//! and refuses what belongs to it. What an emulation does is plugged in here and nowhere else.

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

/// The family of parts that are emulations on software devices.
pub const FAMILY: &str = "polyverbs-engine";

/// Features of the core that no driver has by itself: an emulation makes them work. A driver that names one says only
/// that it has a place for it.
pub const EMULATED: Features = Features::IWARP_MANDATORY
    .union(Features::WINDOW_1)
    .union(Features::WINDOW_2)
    .union(Features::BLOCK_LIST)
    .union(Features::SG_GAPS);

/// The emulation of an extension on software devices.
pub trait Emulation: Send + Sync + 'static {
    /// What a device gains. `device` is what its driver says, before any emulation.
    fn gains(&self, device: &DeviceAttributes) -> Gains;

    /// Its operations: one for each that the extension describes.
    fn operations(&self) -> &'static [&'static dyn OperationEmulation] {
        &[]
    }

    /// What a flag or a mode of the extension makes of a queue pair that is being created. A pure value: the queue pair may
    /// still not be made.
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

    /// What a mode of the extension makes of a shared receive queue that is being created: the place where requests that
    /// name it find it, given back when it is destroyed.
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

    /// Atomics with masks, for transports that carry them as their own.
    fn masked_atomics(&self) -> Option<&'static dyn MaskedAtomics> {
        None
    }
}

pub(crate) fn unsupported(extension: &'static str, feature: &FeatureInfo) -> VerbError {
    let missing = vec![feature.name];
    VerbError::Extension(Unsupported { extension, missing })
}

/// The handle that a queue pair is being created for: whom its events concern.
#[derive(Clone, Copy)]
pub struct QpHandle<'h> {
    /// Its identity.
    pub id: ObjectId,
    /// Where its events go.
    pub events: &'h Arc<dyn EventSink>,
}

/// A shared receive queue that is being created.
pub struct SrqParts {
    /// Its identity.
    pub id: ObjectId,
    /// The queue.
    pub srq: Arc<Srq>,
    /// Where its receives complete.
    pub cq: Arc<Cq>,
}

/// What an extension does for one queue pair.
#[derive(Default)]
pub struct QpHooks {
    /// Says which multicast datagrams the queue pair takes.
    pub delivery_filter: Option<Box<dyn DeliveryFilter>>,
    /// Is told of what the queue pair completes.
    pub completion_observer: Option<Box<dyn CompletionObserver>>,
    /// Whether each request says whose receives and protection domain it is for, and who knows them.
    pub addressing: Addressing,
    /// The queue pair has several handles.
    pub sharing: Option<Box<dyn Sharing>>,
}

/// Whether the requests between two queue pairs say, each for itself, which shared receive queue they are for. Transports
/// carry that their own way: InfiniBand under the opcodes of XRC.
#[derive(Clone, Default)]
pub enum Addressing {
    /// They do not.
    #[default]
    None,
    /// The queue pair sends such requests: the attribute that each carries is the number.
    Sends,
    /// The queue pair is sent such requests.
    Receives(Arc<dyn Targets>),
}

/// Knows the shared receive queues that requests may name.
pub trait Targets: Send + Sync {
    /// The one of this number. Called under a lock of the queue pair.
    fn target(&self, number: u32) -> Option<Arc<Target>>;
}

/// A shared receive queue that requests name.
pub struct Target {
    /// Its number.
    pub number: u32,
    /// The queue, in whose domain the requests are carried out.
    pub srq: Arc<Srq>,
    /// Where its receives complete.
    pub cq: Arc<Cq>,
}

/// Several handles of one queue pair.
pub trait Sharing: Send + Sync {
    /// A handle of a queue pair that is there already: nothing is made.
    fn existing(&mut self) -> Option<Arc<dyn QpOps>>;

    /// Where the events of a new one go instead, to be handed on to all handles.
    fn events(&self) -> Arc<dyn EventSink>;

    /// The first handle of a new one.
    fn first(&mut self, made: Arc<dyn QpOps>) -> Arc<dyn QpOps>;
}

/// Says which multicast datagrams a queue pair takes.
pub trait DeliveryFilter: Send + Sync {
    /// Whether `receiver` takes a datagram for `group` that `sender` sent. Called under a lock of the receiver.
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

/// Is told of what a queue pair completes, before the completion is in its queue; of requests that have none, too.
///
/// Called under a lock of the queue pair, in the order of the queue: it only notes what it is told.
pub trait CompletionObserver: Send + Sync {
    /// A request of the send queue is over.
    fn sent(&self, status: WcStatus);

    /// A receive is over.
    fn received(&self, status: WcStatus);
}

/// What extensions make of a queue pair: the hooks of all that it was created with.
#[derive(Default)]
pub struct QpExtensions {
    filters: Vec<Box<dyn DeliveryFilter>>,
    observers: Vec<Box<dyn CompletionObserver>>,
    addressing: Addressing,
    named: Mutex<Option<Arc<Target>>>,
    pub(crate) variant: Option<&'static QpVariant>,
    pub(crate) sharing: Option<Box<dyn Sharing>>,
    // What the program handed over.
    _held: Vec<Held>,
}

impl QpExtensions {
    /// Whether the queue pair does without the short way.
    pub(crate) fn watches(&self) -> bool {
        !self.observers.is_empty() || self.carries_srqn()
    }

    pub(crate) fn carries_srqn(&self) -> bool {
        !matches!(self.addressing, Addressing::None)
    }

    /// Whether the queue pair is sent requests that name a shared receive queue.
    pub fn is_target(&self) -> bool {
        matches!(self.addressing, Addressing::Receives(_))
    }

    /// The shared receive queue that requests name by this number, or `None`. Not told apart: one that there is not, and
    /// one that this queue pair is not to reach.
    pub fn target(&self, number: u32) -> Option<Arc<Target>> {
        match &self.addressing {
            Addressing::Receives(targets) => targets.target(number),
            _ => None,
        }
    }

    /// From now on receives are taken from `target`, and complete where it says.
    pub fn take_receives_from(&self, target: Option<Arc<Target>>) {
        *self.named.lock() = target;
    }

    /// The queue that the request under way names.
    pub(crate) fn named(&self) -> Option<Arc<Target>> {
        self.named.lock().clone()
    }

    /// Whether `receiver` takes a multicast datagram of `sender`, as far as extensions have a say.
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

/// What a device gains from an emulation. Nothing, where the device cannot have it.
#[derive(Clone, Debug, Default)]
pub struct Gains {
    /// Bits of the core.
    pub features: Features,
    /// Bits of the extension's own set.
    pub own: u64,
    /// Names and values of the extension's numbers.
    pub limits: Vec<(&'static str, u64)>,
    /// With respect to whom masked atomics are atomic.
    pub masked_atomic_cap: AtomicScope,
    /// All of it takes a driver whose requests name shared receive queues of the peer ([`Addressing`]). A device of another
    /// driver gains nothing.
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

/// What carries out one operation of an extension.
pub(crate) type OperationRef = &'static dyn OperationEmulation;

/// The emulations of one device, each where it is plugged in.
#[derive(Default)]
pub(crate) struct Emulations {
    pub(crate) operations: Vec<OperationRef>,
    pub(crate) masked_atomics: Option<&'static dyn MaskedAtomics>,
    addresses_receives: bool,
    all: Vec<(&'static str, &'static dyn Emulation)>,
}

impl Emulations {
    /// Plugs in the emulations of `extensions`, and adds to `attributes` what the device gains.
    pub(crate) fn plug(
        extensions: &Extensions,
        attributes: &mut DeviceAttributes,
        without: Features,
        addresses_receives: bool,
    ) -> Result<Self, VerbError> {
        let parts = extensions
            .parts::<EmulationPart>(FAMILY)
            .map_err(|error| VerbError::argument("extensions", error))?;
        // What builds on a feature that the device is to lack is not gained either.
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

    /// What the extensions of a queue pair make of it, where it has any.
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
                    return Err(VerbError::UnsupportedHere(what.to_owned()));
                }
                all.addressing = hooks.addressing;
            }
            all.variant = all.variant.or(extension.qp_variant());
            all.sharing = hooks.sharing.or(all.sharing);
            all._held.extend(extension.held().cloned());
        }
        Ok(Some(all))
    }

    /// What the extension of a shared receive queue makes of it.
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

    // An emulation makes no feature work that its extension does not tell of.
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

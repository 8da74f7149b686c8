//! Providers and extensions: registered explicitly, or by being linked.
//!
//! Registration at link time loses a crate silently when nothing names it: a dependency alone
//! registers nothing. Name each such crate once, `use some_provider as _;`, or add it explicitly.

mod provider;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub use provider::{Absent, DeviceList, LinkedProvider, Provider};

use crate::capability::{DeviceAttributes, Grant, PortState, Requirements};
use crate::context::Context;
use crate::device::{Device, OpenError};
use crate::error::{RegistryError, VerbError};
use crate::extension::{ExtensionDescriptor, Extensions};
use crate::fork::PerProcess;
use crate::lock::Mutex;
use crate::version::CONTRACT_VERSION;

/// Providers, their devices, and extensions: sorted by name. Its devices are those that there were when the providers were
/// added, or at the last [`refresh`](Self::refresh).
///
/// ```
/// use verbs_api::{Registry, Requirements};
/// let mut registry = Registry::linked()?;
/// registry.refresh()?; // devices that have come since are in it
/// let names: Vec<_> = registry.devices().map(|device| device.name()).collect();
/// match registry.open(&Requirements::new()) {
///     Ok(device) => println!("{} of {names:?}", device.attributes().name),
///     Err(error) => println!("{error}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Registry {
    providers: BTreeMap<&'static str, Registered>,
    devices: BTreeMap<String, Device>,
    extensions: Extensions,
}

#[derive(Clone)]
struct Registered {
    provider: &'static dyn Provider,
    absent: Vec<Absent>,
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.provider.name())
    }
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Every provider and extension that is linked into the program and named by something.
    ///
    /// # Errors
    /// The first that could not be registered.
    pub fn linked() -> Result<Self, RegistryError> {
        let mut registry = Self::new();
        registry.add_linked()?;
        Ok(registry)
    }

    /// Registers every extension, then every provider, that is linked into the program and named by something. Their
    /// devices also have the extensions that were added before.
    ///
    /// # Errors
    /// The first that could not be registered.
    pub fn add_linked(&mut self) -> Result<(), RegistryError> {
        for extension in Extensions::linked()?.iter() {
            self.add_extension(extension)?;
        }
        for LinkedProvider(provider) in inventory::iter::<LinkedProvider> {
            self.add_provider(*provider)?;
        }
        Ok(())
    }

    /// Registers a provider and its devices, made with the extensions that are registered: all of it, or nothing.
    ///
    /// # Errors
    /// Built for another contract, a name that is taken, or devices that it cannot tell.
    pub fn add_provider(&mut self, provider: &'static dyn Provider) -> Result<(), RegistryError> {
        let name = provider.name();
        check_version(name, provider.contract_version())?;
        let (devices, absent) = self.checked(provider, provider.devices(&self.extensions))?;
        if self.providers.contains_key(name) {
            let first = self.devices().filter(|device| device.provider() == name);
            return Err(RegistryError::DuplicateProvider {
                name,
                first_devices: first.map(|device| device.name().to_owned()).collect(),
                second_devices: devices.into_keys().collect(),
            });
        }
        self.providers.insert(name, Registered { provider, absent });
        self.devices.extend(devices);
        Ok(())
    }

    /// Asks every provider again which devices it has: new ones are added, and those that are gone are listed no more. A
    /// [`Device`] that was taken from the registry goes on, unless it is gone: then opening it fails with
    /// [`VerbError::DeviceRemoved`].
    ///
    /// # Errors
    /// That of the first provider that could not tell, or whose devices cannot be registered. Its devices are as they were;
    /// those of the others are up to date all the same.
    pub fn refresh(&mut self) -> Result<(), RegistryError> {
        let mut outcome = Ok(());
        for (name, Registered { provider, absent }) in self.providers.clone() {
            let of_provider = self.devices().filter(|device| device.provider() == name);
            let devices = of_provider.map(|device| Arc::clone(device.ops())).collect();
            let found = provider.refresh(DeviceList { devices, absent }, &self.extensions);
            match self.checked(provider, found) {
                Ok((devices, absent)) => {
                    self.providers.insert(name, Registered { provider, absent });
                    self.replace(name, devices);
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// The same for the [`registry`] of the process. Registries that it returned before stay as they were.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh); or as [`registry`], where it was not made yet.
    pub fn refresh_linked() -> Result<(), RegistryError> {
        registry()?;
        let mut registry = LINKED.lock();
        registry
            .as_mut()
            .map_or(Ok(()), |registry| Arc::make_mut(registry).refresh())
    }

    // Devices that are still there keep their handles.
    fn replace(&mut self, provider: &'static str, mut devices: BTreeMap<String, Device>) {
        self.devices.retain(|name, known| {
            let is_same = |found: &Device| Arc::ptr_eq(found.ops(), known.ops());
            if known.provider() != provider {
                return true;
            }
            let stays = devices.get(name).is_some_and(is_same);
            if stays {
                devices.remove(name);
            } else {
                known.mark_gone();
            }
            stays
        });
        self.devices.append(&mut devices);
    }

    // The devices that a provider reported, by name, if they are consistent and their names are free.
    fn checked(
        &self,
        provider: &'static dyn Provider,
        found: Result<DeviceList, VerbError>,
    ) -> Result<(BTreeMap<String, Device>, Vec<Absent>), RegistryError> {
        let second = provider.name();
        let refused = |error| RegistryError::Provider {
            provider: second,
            error,
        };
        let DeviceList {
            devices: found,
            absent,
        } = found.map_err(refused)?;
        let mut devices = BTreeMap::new();
        for ops in found {
            let attributes = ops.attributes();
            check_consistent(second, &attributes)?;
            let device = Device::of_provider(second, ops);
            let name = attributes.name;
            let of_another = self.device(&name).filter(|twin| twin.provider() != second);
            let first = of_another.or(devices.get(&name)).map(Device::provider);
            if let Some(first) = first {
                return Err(RegistryError::DuplicateDevice {
                    device: name,
                    first,
                    second,
                });
            }
            devices.insert(name, device);
        }
        Ok((devices, absent))
    }

    /// Registers an extension: all of it, or nothing. Before the providers, whose devices are made with it.
    ///
    /// # Errors
    /// A provider is registered already; or as [`Extensions::add`].
    pub fn add_extension(
        &mut self,
        extension: &'static ExtensionDescriptor,
    ) -> Result<(), RegistryError> {
        let mut extensions = self.extensions.clone();
        extensions.add(extension)?;
        if extensions.len() > self.extensions.len() && !self.providers.is_empty() {
            return Err(RegistryError::TooLate {
                extension: extension.name(),
                providers: self.providers().collect(),
            });
        }
        self.extensions = extensions;
        Ok(())
    }

    /// Names of the providers, sorted.
    pub fn providers(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.providers.keys().copied()
    }

    /// The devices, sorted by name.
    #[doc(alias = "ibv_get_device_list")]
    pub fn devices(&self) -> impl Iterator<Item = &Device> + '_ {
        self.devices.values()
    }

    /// The device of this name.
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.get(name)
    }

    /// The extensions.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// What the providers could not offer when they were asked for their devices, each with the provider's name.
    pub fn absent(&self) -> Vec<(&'static str, Absent)> {
        let of = |(name, registered): (&&'static str, &Registered)| {
            let (name, absent) = (*name, registered.absent.clone());
            absent.into_iter().map(move |absent| (name, absent))
        };
        self.providers.iter().flat_map(of).collect()
    }

    /// Opens the device that meets the requirements and comes first in this order: one with a port that is active; one that is
    /// no [fallback](Provider::is_fallback), as emulated devices are; that with most of what is preferred; the first by name.
    /// Grants exactly what was asked for.
    ///
    /// # Errors
    /// All that every device lacks, in one error; or why there is no device at all.
    pub fn open(&self, requirements: &Requirements) -> Result<Context, OpenError> {
        let candidates = self.candidates(requirements)?;
        let mut best: Option<(Rank, &Device, Grant)> = None;
        let mut shortfalls = Vec::new();
        for device in candidates {
            let attributes = device.attributes();
            match requirements.check(&attributes) {
                Err(shortfall) => shortfalls.push(shortfall),
                Ok(grant) => {
                    let rank = self.rank(device, &attributes, &grant);
                    if best.as_ref().is_none_or(|(best, ..)| rank > *best) {
                        best = Some((rank, device, grant));
                    }
                }
            }
        }
        match best {
            Some((_, device, grant)) => device.open_granted(grant),
            None => Err(OpenError::NotMet(shortfalls)),
        }
    }

    fn rank(&self, device: &Device, attributes: &DeviceAttributes, grant: &Grant) -> Rank {
        let provider = self.providers.get(device.provider());
        let bits = grant.sets().iter().map(|set| set.bits.count_ones());
        Rank {
            has_active_port: attributes
                .ports
                .iter()
                .any(|port| port.state == PortState::Active),
            is_no_fallback: provider.is_some_and(|registered| !registered.provider.is_fallback()),
            granted: bits.sum(),
        }
    }

    fn candidates(&self, requirements: &Requirements) -> Result<Vec<&Device>, OpenError> {
        if self.providers.is_empty() {
            return Err(OpenError::NoProvider);
        }
        if self.devices.is_empty() {
            return Err(OpenError::NoDevice {
                providers: self.providers().collect(),
            });
        }
        let Some(wanted) = &requirements.name else {
            return Ok(self.devices().collect());
        };
        let device = self.device(wanted).ok_or_else(|| OpenError::NoSuchDevice {
            wanted: wanted.clone(),
            known: self.devices.keys().cloned().collect(),
        })?;
        Ok(vec![device])
    }
}

// Which of two devices is opened: the fields count in this order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    has_active_port: bool,
    is_no_fallback: bool,
    granted: u32,
}

fn check_version(name: &'static str, built_for: u32) -> Result<(), RegistryError> {
    if built_for == CONTRACT_VERSION {
        return Ok(());
    }
    Err(RegistryError::ContractVersion { name, built_for })
}

/// What a device may not claim: FEATURES 1.02, 1.04, 1.05.
fn check_consistent(
    provider: &'static str,
    device: &DeviceAttributes,
) -> Result<(), RegistryError> {
    device.inconsistency().map_or(Ok(()), |reason| {
        Err(RegistryError::Inconsistent {
            provider,
            device: device.name.clone(),
            reason,
        })
    })
}

// A child of a fork asks the providers itself: the devices of its parent have threads and sockets that do not exist there.
static LINKED: PerProcess<Mutex<Option<Arc<Registry>>>> = PerProcess::new(Mutex::default);

/// The registry of all that is linked, made once for the process, with the devices that there were then or at the last
/// [`Registry::refresh_linked`].
///
/// ```
/// use verbs_api::registry;
/// match registry()?.device("ib0") {
///     Some(device) => println!("{:?}", device.attributes().ports),
///     None => println!("no device is named ib0"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`Registry::linked`]; the next call tries again.
pub fn registry() -> Result<Arc<Registry>, RegistryError> {
    let mut linked = LINKED.lock();
    let registry = match linked.take() {
        Some(registry) => registry,
        None => Arc::new(Registry::linked()?),
    };
    Ok(Arc::clone(linked.insert(registry)))
}

/// The devices of all linked providers, sorted by name: those that there were at first, or at the last [`Registry::refresh_linked`].
///
/// ```
/// for device in verbs_api::devices()? {
///     println!("{}: {:?}", device.name(), device.attributes().features);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`Registry::linked`].
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<Vec<Device>, RegistryError> {
    Ok(registry()?.devices().cloned().collect())
}

/// Opens a device of the linked providers that meets the requirements: see [`Registry::open`].
///
/// # Errors
/// As [`Registry::open`].
///
/// ```no_run
/// use verbs_api::{Features, Limit, Requirements, open};
/// let device = open(
///     Requirements::new().needs(Features::BMME).at_least(Limit::MaxSendSge, 4),
/// )?;
/// println!("{}", device.attributes().name);
/// # Ok::<(), verbs_api::OpenError>(())
/// ```
pub fn open(requirements: Requirements) -> Result<Context, OpenError> {
    registry()?.open(&requirements)
}

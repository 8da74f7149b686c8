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

/// A set of providers, their devices, and extensions, each sorted by name. The devices are those that existed when the
/// providers were added, or at the last [`refresh`](Self::refresh).
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
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a registry of every provider and extension that is linked into the program and named by something.
    ///
    /// # Errors
    /// Why the first provider or extension that was refused could not be registered.
    pub fn linked() -> Result<Self, RegistryError> {
        let mut registry = Self::new();
        registry.add_linked()?;
        Ok(registry)
    }

    /// Registers every extension and then every provider that is linked into the program and named by something. The
    /// devices of the providers also support the extensions that were added before.
    ///
    /// # Errors
    /// Why the first provider or extension that was refused could not be registered.
    pub fn add_linked(&mut self) -> Result<(), RegistryError> {
        for extension in Extensions::linked()?.iter() {
            self.add_extension(extension)?;
        }
        for LinkedProvider(provider) in inventory::iter::<LinkedProvider> {
            self.add_provider(*provider)?;
        }
        Ok(())
    }

    /// Registers a provider and its devices, which are made with the extensions that are registered: completely, or not at
    /// all.
    ///
    /// # Errors
    /// The provider was built for another contract version, its name or the name of a device is taken, or it cannot list
    /// its devices.
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

    /// Asks every provider again for its devices, adds new ones, and removes those that no longer exist. A [`Device`] that
    /// was taken from the registry remains usable unless it no longer exists: then opening it fails with
    /// [`VerbError::DeviceRemoved`].
    ///
    /// # Errors
    /// The error of the first provider that could not list its devices, or whose devices cannot be registered. That
    /// provider's devices are unchanged; those of the others are up to date nevertheless.
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

    /// Refreshes the [`registry`] of the process as [`refresh`](Self::refresh) does. Registries that it returned before are
    /// unchanged.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh); or as [`registry`], if it had not been made yet.
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

    /// Registers an extension, completely or not at all. Extensions are added before providers, which make their devices
    /// with them.
    ///
    /// # Errors
    /// A provider is registered already, or an error of [`Extensions::add`].
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

    /// Iterates over the names of the providers, sorted.
    pub fn providers(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.providers.keys().copied()
    }

    /// Iterates over the devices, sorted by name.
    #[doc(alias = "ibv_get_device_list")]
    pub fn devices(&self) -> impl Iterator<Item = &Device> + '_ {
        self.devices.values()
    }

    /// Returns the device of this name; `None` if there is none.
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.get(name)
    }

    /// Returns the registered extensions.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// Returns devices and libraries that providers could not offer when they were asked for their devices, each with the
    /// provider's name.
    pub fn absent(&self) -> Vec<(&'static str, Absent)> {
        let of = |(name, registered): (&&'static str, &Registered)| {
            let (name, absent) = (*name, registered.absent.clone());
            absent.into_iter().map(move |absent| (name, absent))
        };
        self.providers.iter().flat_map(of).collect()
    }

    /// Opens a device that meets the requirements. Of several it chooses one with an active port; of those one whose
    /// provider is no [fallback](Provider::is_fallback), as that of emulated devices is; then the one with most of the
    /// preferred features; then the first by name. Grants exactly the features that were asked for.
    ///
    /// # Errors
    /// Everything that each device lacks, in one error; or why there is no device at all.
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

/// Checks that the attributes of a device do not contradict each other or its transport: FEATURES 1.02, 1.04, 1.05.
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

/// Returns the registry of all providers and extensions that are linked, which the process makes once. Its devices are
/// those that existed then, or at the last [`Registry::refresh_linked`].
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

/// Returns the devices of all linked providers, sorted by name: those that existed when the registry was made, or at the
/// last [`Registry::refresh_linked`].
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

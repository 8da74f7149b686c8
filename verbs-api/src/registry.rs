//! Providers and extensions: registered explicitly, or by being linked.
//!
//! Registration at link time loses a crate silently when nothing names it: a dependency alone
//! registers nothing. Name each such crate once, `use some_provider as _;`, or add it explicitly.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use thiserror::Error;

use crate::capability::{DeviceAttributes, FeatureBits, Grant, Requirements, Shortfall};
use crate::context::Context;
use crate::error::VerbError;
use crate::extension::{ExtensionDescriptor, Extensions};
use crate::provider::{CONTRACT_VERSION, DeviceOps, Provider};

/// A provider that registers itself where its crate is linked and named: see [`link_provider`](crate::provider::link_provider).
pub struct LinkedProvider(pub &'static dyn Provider);

inventory::collect!(LinkedProvider);

/// Registers a `static` provider wherever its crate is linked and named.
#[doc(hidden)]
#[macro_export]
macro_rules! __link_provider {
    ($provider:path) => {
        $crate::inventory::submit! { $crate::provider::LinkedProvider(&$provider) }
    };
}

/// Why something was not registered. Nothing of it is visible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Built for another version of the contract.
    #[error(
        "{name} was built for contract version {built_for}, this registry has version {CONTRACT_VERSION}: build both from one release"
    )]
    ContractVersion {
        /// The provider or extension.
        name: &'static str,
        /// Its version.
        built_for: u32,
    },
    /// Two devices of one name.
    #[error("device {device} of provider {second} has the name of a device of provider {first}")]
    DuplicateDevice {
        /// The name.
        device: String,
        /// Who has it.
        first: &'static str,
        /// Who wanted it.
        second: &'static str,
    },
    /// Two extensions that claim the same.
    #[error("extensions {first} and {second} both claim {what}")]
    DuplicateExtension {
        /// Name, feature set or opcode.
        what: String,
        /// Who has it.
        first: &'static str,
        /// Who wanted it.
        second: &'static str,
    },
    /// Two providers of one name.
    #[error(
        "two providers are named {name}: {first_devices:?} and {second_devices:?} are their devices"
    )]
    DuplicateProvider {
        /// The name.
        name: &'static str,
        /// Devices of the one that has it.
        first_devices: Vec<String>,
        /// Devices of the one that wanted it.
        second_devices: Vec<String>,
    },
    /// An extension without a part that is mandatory.
    #[error("extension {extension} lacks {missing}")]
    Incomplete {
        /// The extension.
        extension: &'static str,
        /// What is missing.
        missing: String,
    },
    /// A provider whose devices do not keep what their transport promises.
    #[error("provider {provider}, device {device}: {reason}")]
    Inconsistent {
        /// The provider.
        provider: &'static str,
        /// The device.
        device: String,
        /// What does not fit.
        reason: String,
    },
    /// A provider that could not tell its devices.
    #[error("provider {provider} has no devices: {error}")]
    Provider {
        /// The provider.
        provider: &'static str,
        /// Why.
        error: VerbError,
    },
    /// An extension that comes after providers, which have made their devices without it.
    #[error(
        "extension {extension} comes too late: the devices of {} are made; add extensions first, then providers \
         (`Registry::add_linked` adds those that are linked)",
        providers.join(", ")
    )]
    TooLate {
        /// The extension.
        extension: &'static str,
        /// Who has devices.
        providers: Vec<&'static str>,
    },
}

/// Why no device was opened.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The device could not be opened.
    #[error("{device} could not be opened: {error}")]
    Failed {
        /// The device.
        device: String,
        /// Why.
        error: VerbError,
    },
    /// No provider is registered.
    #[error(
        "no provider is registered: one that registers itself when linked is lost unless something names its \
         crate, so write `use provider_crate as _;`, depend on the facade crate that does, or call \
         `Registry::add_provider`; a static library must be linked whole"
    )]
    NoProvider,
    /// Providers are registered, and none has a device.
    #[error("no device: the registered providers are {}", .providers.join(", "))]
    NoDevice {
        /// Their names.
        providers: Vec<&'static str>,
    },
    /// There is no device of this name.
    #[error("no device is named {wanted}; there are {}", known.join(", "))]
    NoSuchDevice {
        /// The name.
        wanted: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// No device meets the requirements: all that each lacks.
    #[error("no device meets the requirements: {}", Shortfalls(.0))]
    NotMet(Vec<Shortfall>),
    /// The registry of linked providers could not be made.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

struct Shortfalls<'a>(&'a [Shortfall]);

impl fmt::Display for Shortfalls<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, shortfall) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { " | " };
            write!(f, "{separator}{shortfall}")?;
        }
        Ok(())
    }
}

/// A device that can be opened.
#[derive(Clone)]
#[doc(alias = "ibv_device")]
pub struct Device {
    ops: Arc<dyn DeviceOps>,
    name: String,
    provider: &'static str,
}

impl Device {
    /// A device that is in no registry: for programs that make their own.
    pub fn of(ops: Arc<dyn DeviceOps>) -> Self {
        let attributes = ops.attributes();
        Self {
            ops,
            name: attributes.name,
            provider: attributes.provider,
        }
    }

    /// Unique among the devices of a registry.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of its provider.
    pub fn provider(&self) -> &'static str {
        self.provider
    }

    /// What it tells about itself, now.
    pub fn attributes(&self) -> DeviceAttributes {
        self.ops.attributes()
    }

    /// Names and values of its own counters.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.ops.counters()
    }

    /// Opens it for exactly what is required, whatever it has beyond.
    ///
    /// # Errors
    /// All that it lacks; or it could not be opened.
    pub fn open(&self, requirements: &Requirements) -> Result<Context, OpenError> {
        self.open_beyond_claims(requirements, &[])
    }

    /// The same, granting these bits as well, whether the device claims them or not: for conformance runs, which see
    /// that the device itself refuses what it does not claim.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_beyond_claims(
        &self,
        requirements: &Requirements,
        beyond: &[FeatureBits],
    ) -> Result<Context, OpenError> {
        match requirements.check(&self.attributes()) {
            Ok(grant) => self.open_granted(grant.beyond(beyond)),
            Err(shortfall) => Err(OpenError::NotMet(vec![shortfall])),
        }
    }

    /// The provider's part.
    pub fn ops(&self) -> &Arc<dyn DeviceOps> {
        &self.ops
    }

    fn open_granted(&self, grant: Grant) -> Result<Context, OpenError> {
        Context::open(Arc::clone(&self.ops), grant).map_err(|error| OpenError::Failed {
            device: self.name.clone(),
            error,
        })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({} of {})", self.name, self.provider)
    }
}

/// Providers, their devices, and extensions: sorted by name.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    providers: BTreeMap<&'static str, Vec<String>>,
    devices: BTreeMap<String, Device>,
    extensions: Extensions,
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
        let found =
            provider
                .devices(&self.extensions)
                .map_err(|error| RegistryError::Provider {
                    provider: name,
                    error,
                })?;
        let mut devices: BTreeMap<String, Device> = BTreeMap::new();
        for ops in found {
            let attributes = ops.attributes();
            check_consistent(name, &attributes)?;
            let device = Device {
                ops,
                name: attributes.name.clone(),
                provider: name,
            };
            if let Some(twin) = devices.insert(attributes.name, device) {
                let Device { name: device, .. } = twin;
                return Err(RegistryError::DuplicateDevice {
                    device,
                    first: name,
                    second: name,
                });
            }
        }
        let names: Vec<_> = devices.keys().cloned().collect();
        if let Some(first) = self.providers.get(name) {
            let first_devices = first.clone();
            return Err(RegistryError::DuplicateProvider {
                name,
                first_devices,
                second_devices: names,
            });
        }
        if let Some(first) = names.iter().find_map(|name| self.devices.get(name)) {
            let Device {
                name: device,
                provider: first,
                ..
            } = first.clone();
            return Err(RegistryError::DuplicateDevice {
                device,
                first,
                second: name,
            });
        }
        self.providers.insert(name, names);
        self.devices.append(&mut devices);
        Ok(())
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

    /// Opens the device that meets the requirements with most of what is preferred; among equals the
    /// first by name. Grants exactly what was asked for.
    ///
    /// # Errors
    /// All that every device lacks, in one error; or why there is no device at all.
    pub fn open(&self, requirements: &Requirements) -> Result<Context, OpenError> {
        let candidates = self.candidates(requirements)?;
        let mut best: Option<(u32, &Device, Grant)> = None;
        let mut shortfalls = Vec::new();
        for device in candidates {
            match requirements.check(&device.attributes()) {
                Err(shortfall) => shortfalls.push(shortfall),
                Ok(grant) => {
                    let bits = grant.sets().iter().map(|set| set.bits.count_ones()).sum();
                    if best.as_ref().is_none_or(|(most, ..)| bits > *most) {
                        best = Some((bits, device, grant));
                    }
                }
            }
        }
        match best {
            Some((_, device, grant)) => device.open_granted(grant),
            None => Err(OpenError::NotMet(shortfalls)),
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

static LINKED: OnceLock<Result<Registry, RegistryError>> = OnceLock::new();

/// The registry of all that is linked, made once for the process.
///
/// # Errors
/// As [`Registry::linked`].
pub fn registry() -> Result<&'static Registry, RegistryError> {
    LINKED
        .get_or_init(Registry::linked)
        .as_ref()
        .map_err(Clone::clone)
}

/// The devices of all linked providers, sorted by name.
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

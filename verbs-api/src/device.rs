//! Devices that can be opened.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

use crate::capability::{DeviceAttributes, FeatureBits, Grant, Requirements, Shortfall};
use crate::context::Context;
use crate::contract::DeviceOps;
use crate::error::{RegistryError, VerbError};

/// Why no device was opened.
///
/// ```
/// use verbs_api::{Features, OpenError, Requirements, open};
/// match open(Requirements::new().needs(Features::BMME)) {
///     Ok(device) => println!("{} has it", device.attributes().name),
///     Err(OpenError::NotMet(shortfalls)) => {
///         for shortfall in shortfalls {
///             println!("{shortfall}"); // the device, and all that it lacks
///         }
///     }
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The device could not be opened.
    #[error("{device} could not be opened: {error}")]
    Failed {
        /// Name of the device that could not be opened.
        device: String,
        /// Why the provider could not open it.
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
        /// Names of the registered providers.
        providers: Vec<&'static str>,
    },
    /// There is no device of this name.
    #[error("no device is named {wanted}; there are {}", known.join(", "))]
    NoSuchDevice {
        /// The device name that was asked for.
        wanted: String,
        /// The names of all devices.
        known: Vec<String>,
    },
    /// No device meets the requirements: for each device, everything that it lacks.
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

/// A device that a program can open.
///
/// ```
/// use verbs_api::{Requirements, Transport, devices};
/// for device in devices()? {
///     if device.attributes().transport == Transport::InfiniBand {
///         let context = device.open(&Requirements::new())?;
///         println!("{} of {} is open", device.name(), device.provider());
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_device")]
pub struct Device {
    ops: Arc<dyn DeviceOps>,
    name: String,
    provider: &'static str,
    // Its provider no longer has it. Shared by all handles.
    is_gone: Arc<AtomicBool>,
}

impl Device {
    /// Creates a device that is in no registry, for programs that make their own devices.
    pub fn of(ops: Arc<dyn DeviceOps>) -> Self {
        let attributes = ops.attributes();
        Self {
            ops,
            name: attributes.name,
            provider: attributes.provider,
            is_gone: Arc::default(),
        }
    }

    /// Creates a device that belongs to the provider with this name.
    pub(crate) fn of_provider(provider: &'static str, ops: Arc<dyn DeviceOps>) -> Self {
        Self {
            provider,
            ..Self::of(ops)
        }
    }

    /// Marks the device as removed by its provider: it can no longer be opened.
    pub(crate) fn mark_gone(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    /// Returns the device's name, unique among the devices of a registry.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the device's provider.
    pub fn provider(&self) -> &'static str {
        self.provider
    }

    /// Returns the present attributes of the device.
    pub fn attributes(&self) -> DeviceAttributes {
        self.ops.attributes()
    }

    /// Returns names and values of the device's own counters.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.ops.counters()
    }

    /// Opens the device with exactly the features that are required, even if it has more.
    ///
    /// # Errors
    /// Everything that the device lacks, or why it could not be opened.
    pub fn open(&self, requirements: &Requirements) -> Result<Context, OpenError> {
        self.open_beyond_claims(requirements, &[])
    }

    /// Opens the device like [`open`](Self::open), and grants `beyond` as well, whether the device claims those features or
    /// not. Conformance runs use this to check that the device itself refuses features that it does not claim.
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

    /// Returns the provider's implementation of the device.
    pub fn ops(&self) -> &Arc<dyn DeviceOps> {
        &self.ops
    }

    pub(crate) fn open_granted(&self, grant: Grant) -> Result<Context, OpenError> {
        let opened = if self.is_gone.load(Ordering::Relaxed) {
            Err(VerbError::DeviceRemoved)
        } else {
            Context::open(Arc::clone(&self.ops), grant)
        };
        opened.map_err(|error| OpenError::Failed {
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

//! The configuration of the C libraries: the RDMA devices that an unmodified program sees, and what of its activity is
//! traced and captured.
//!
//! The configuration is a TOML text. A user writes it as a file, `polyverbs run` passes it to the program in the
//! environment variable [`VARIABLE`], and the C libraries read it there. Without a configuration there are the [default
//! devices](default_devices).
#![forbid(unsafe_code)]

mod addresses;
mod capture;
mod device;
mod profile;
mod report;
mod text;

pub use addresses::{addresses, interfaces};
pub use device::{Device, LimitName, LinkLayer, TransportName, default_devices, devices_as};
pub use polyverbs_profiles::{Met, Profile, ProfileDeviceError};
pub use profile::ChosenProfile;
pub use report::{complain, to_standard_error};

use std::path::PathBuf;

use polyverbs::emulated::FaultSpec;
use polyverbs_layer::Faults;
use serde::{Deserialize, Serialize};
use text::Parsed;
use thiserror::Error;
use toml::Spanned;

/// The environment variable that holds the configuration as TOML text.
pub const VARIABLE: &str = "POLYVERBS_CONFIG";

/// The environment variable that names the directory which programs see in place of `/sys/class/infiniband*` and
/// `/dev/infiniband`.
pub const ROOT_VARIABLE: &str = "POLYVERBS_ROOT";

/// The name of a trace file that means standard error.
pub const STANDARD_ERROR: &str = "-";

/// The configuration of the C libraries for one program.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Configuration {
    /// The file to which each call of a verb is traced, one per line; [`STANDARD_ERROR`] means standard error, `None` no
    /// trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// The file in the pcap format to which packets are captured; `None` for no capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcap: Option<PathBuf>,
    /// The adapter of an emulated fabric by which programs exchange management datagrams; `None` for the first adapter of the
    /// user's own fabric, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Attachment>,
    /// The script of faults of verbs; `None` for none.
    #[serde(with = "text::optional", skip_serializing_if = "Option::is_none")]
    pub fail: Option<Faults>,
    /// The file to which each fault is written when it happens; `None` for none.
    #[serde(rename = "fail-log", skip_serializing_if = "Option::is_none")]
    pub fail_log: Option<PathBuf>,
    /// The system's `libibverbs.so.1`, whose devices the program has instead of emulated ones; `None` for emulated devices.
    #[serde(rename = "over-system", skip_serializing_if = "Option::is_none")]
    pub over_system: Option<PathBuf>,
    /// The devices, in the order in which programs list them.
    #[serde(rename = "device")]
    pub devices: Vec<Device>,
}

/// The adapter that a program has in an emulated fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Attachment {
    /// The socket of the process that holds the fabric; `None` for the user's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The name of the adapter's node in the topology; empty for the first one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
}

/// The name by which programs find their adapter in an emulated fabric if it is none of their devices.
const ADAPTER: &str = "fabric0";

/// The configuration as parsed from TOML: with the positions of values for error messages, and `None` for values that are
/// not set.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Text {
    trace: Option<PathBuf>,
    pcap: Option<PathBuf>,
    fault: Option<Spanned<Parsed<FaultSpec>>>,
    link_layer: Option<Spanned<LinkLayer>>,
    fail: Option<Parsed<Faults>>,
    fail_log: Option<PathBuf>,
    over_system: Option<PathBuf>,
    fabric: Option<Attachment>,
    device: Option<Vec<Spanned<Device>>>,
}

/// The fault of a configuration, and its line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}{message}", line.map_or_else(String::new, |line| format!("line {line}: ")))]
pub struct ConfigurationError {
    /// The line of the text, counted from 1; `None` if the fault is not in one line.
    pub line: Option<usize>,
    /// The fault, in words.
    pub message: String,
}

impl ConfigurationError {
    fn new(message: impl Into<String>) -> Self {
        Self {
            line: None,
            message: message.into(),
        }
    }

    fn at(self, text: &str, place: usize) -> Self {
        let before = text.get(..place).unwrap_or(text);
        Self {
            line: Some(before.matches('\n').count() + 1),
            ..self
        }
    }
}

impl Configuration {
    /// The configuration that applies if the user gives none: the default devices, no trace and no capture.
    pub fn standard() -> Self {
        Self {
            devices: default_devices(),
            ..Self::default()
        }
    }

    /// Parses a configuration from TOML text.
    ///
    /// # Errors
    /// The text is not TOML, has unknown names or contradicts itself; the error names the line if it can.
    pub fn parse(text: &str) -> Result<Self, ConfigurationError> {
        let read: Text = toml::from_str(text).map_err(|error| {
            let told = ConfigurationError::new(error.message().replace('\n', ", "));
            match error.span() {
                Some(span) => told.at(text, span.start),
                None => told,
            }
        })?;
        let mut configuration = Self {
            trace: read.trace,
            pcap: read.pcap,
            fabric: read.fabric,
            fail: read.fail.map(|Parsed(fail)| fail),
            fail_log: read.fail_log,
            over_system: read.over_system,
            devices: Vec::new(),
        };
        match read.device {
            None => configuration.devices = default_devices(),
            Some(devices) => {
                for device in devices {
                    let place = device.span().start;
                    let added = configuration.add(device.into_inner());
                    added.map_err(|error| error.at(text, place))?;
                }
            }
        }
        // A device's own setting has priority over the one for all devices.
        let said = configuration.devices.clone();
        if let Some(link_layer) = read.link_layer {
            let place = link_layer.span().start;
            let set = configuration.set_link_layer(link_layer.into_inner());
            set.map_err(|error| error.at(text, place))?;
        }
        if let Some(fault) = read.fault {
            let place = fault.span().start;
            let Parsed(fault) = fault.into_inner();
            let set = configuration.set_fault(fault);
            set.map_err(|error| error.at(text, place))?;
        }
        for (device, said) in configuration.devices.iter_mut().zip(said) {
            device.link_layer = said.link_layer.or(device.link_layer);
            device.fault = said.fault.or(device.fault);
        }
        Ok(configuration)
    }

    /// Parses the configuration in the environment variable [`VARIABLE`]; if it is not set, returns the
    /// [standard](Self::standard) one.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse).
    pub fn from_environment() -> Result<Self, ConfigurationError> {
        match std::env::var(VARIABLE) {
            Ok(text) => Self::parse(&text),
            Err(std::env::VarError::NotPresent) => Ok(Self::standard()),
            Err(std::env::VarError::NotUnicode(_)) => Err(ConfigurationError::new("not UTF-8")),
        }
    }

    /// Has the program see the adapter of its node as its only device, as on a machine with one InfiniBand adapter.
    pub fn be_at_node(&mut self) {
        self.devices = vec![Device {
            name: format!("{}0", TransportName::Infiniband.prefix()),
            transport: TransportName::Infiniband,
            ..Device::default()
        }];
    }

    /// The name by which programs find their adapter in an emulated fabric.
    pub fn adapter(&self) -> &str {
        let mut devices = self.devices.iter();
        let adapter = devices.find(|device| device.is_in_fabric());
        adapter.map_or(ADAPTER, |device| &device.name)
    }

    /// The configuration as TOML text, which [`parse`](Self::parse) reads.
    ///
    /// # Errors
    /// A path is not UTF-8.
    pub fn to_text(&self) -> Result<String, ConfigurationError> {
        toml::to_string(self).map_err(|error| ConfigurationError::new(error.to_string()))
    }

    /// Adds a device at the end of the list. A device without a name gets the first free name of its transport, such as
    /// `ib0`.
    ///
    /// # Errors
    /// Another device has the name, or the device's settings contradict each other.
    pub fn add(&mut self, mut device: Device) -> Result<(), ConfigurationError> {
        if device.name.is_empty() {
            let names = (0..).map(|number| format!("{}{number}", device.transport.prefix()));
            let free = names.into_iter().find(|name| self.device(name).is_none());
            device.name = free.unwrap_or_default();
        }
        device.check().map_err(ConfigurationError::new)?;
        if self.device(&device.name).is_some() {
            let message = format!("there is a device named {} already", device.name);
            return Err(ConfigurationError::new(message));
        }
        self.devices.push(device);
        Ok(())
    }

    /// The device with this name; `None` if there is none.
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// The device with this name.
    ///
    /// # Errors
    /// There is none; the error lists the names that exist.
    pub fn named(&self, name: &str) -> Result<&Device, ConfigurationError> {
        self.device(name).ok_or_else(|| {
            let known: Vec<_> = self.devices.iter().map(|known| &*known.name).collect();
            let known = known.join(", ");
            ConfigurationError::new(format!("no device is named {name}; there are {known}"))
        })
    }

    /// Sets the link layer that all RoCE devices report.
    ///
    /// # Errors
    /// There is no RoCE device.
    pub fn set_link_layer(&mut self, link_layer: LinkLayer) -> Result<(), ConfigurationError> {
        let mut found = false;
        for device in &mut self.devices {
            if device.transport == TransportName::Roce {
                device.link_layer = Some(link_layer);
                found = true;
            }
        }
        if found {
            return Ok(());
        }
        let message = "a link layer is a RoCE device's, and there is none";
        Err(ConfigurationError::new(message))
    }

    /// Sets the faults, such as packet loss, that the links of the devices inject. A device whose transport does not
    /// support them stays as it is.
    ///
    /// # Errors
    /// No device supports these faults.
    pub fn set_fault(&mut self, fault: FaultSpec) -> Result<(), ConfigurationError> {
        let mut wrong = None;
        let mut found = false;
        for device in &mut self.devices {
            match device.transport.takes(&fault) {
                Ok(()) => {
                    device.fault = Some(fault);
                    found = true;
                }
                Err(error) => wrong = Some(error),
            }
        }
        match wrong {
            Some(error) if !found => Err(ConfigurationError::new(error)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;

//! Which devices an unmodified program sees, and what of its activity is recorded.
//!
//! The configuration is a text in TOML: a user writes it as a file, `polyverbs run` passes it on in [`VARIABLE`], and the C
//! libraries read it there. Without it there are the [default devices](default_devices).
#![forbid(unsafe_code)]

mod addresses;
mod capture;
mod device;
mod text;

pub use addresses::{addresses, interfaces};
pub use device::{Device, LimitName, LinkLayer, TransportName, default_devices};

use std::path::PathBuf;

use polyverbs::emulated::FaultSpec;
use serde::{Deserialize, Serialize};
use text::Parsed;
use thiserror::Error;
use toml::Spanned;

/// The environment variable that holds the text.
pub const VARIABLE: &str = "POLYVERBS_CONFIG";

/// The environment variable that names the folder which stands for paths below `/sys` and `/dev`.
pub const ROOT_VARIABLE: &str = "POLYVERBS_ROOT";

/// Name of a trace file that stands for standard error.
pub const STANDARD_ERROR: &str = "-";

/// The configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Configuration {
    /// The file to which each verb is traced; [`STANDARD_ERROR`] for standard error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// The file to which packets are captured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcap: Option<PathBuf>,
    /// The devices, in the order in which programs see them.
    #[serde(rename = "device")]
    pub devices: Vec<Device>,
}

/// The parsed text: with positions, and with unset values left open.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Text {
    trace: Option<PathBuf>,
    pcap: Option<PathBuf>,
    fault: Option<Spanned<Parsed<FaultSpec>>>,
    link_layer: Option<Spanned<LinkLayer>>,
    device: Option<Vec<Spanned<Device>>>,
}

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}{message}", line.map_or_else(String::new, |line| format!("line {line}: ")))]
pub struct ConfigurationError {
    /// The line, counted from 1, if known.
    pub line: Option<usize>,
    /// What is wrong with it.
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
    /// The configuration by default.
    pub fn standard() -> Self {
        Self {
            devices: default_devices(),
            ..Self::default()
        }
    }

    /// Parses a text.
    ///
    /// # Errors
    /// It is not TOML, has unknown names or contradicts itself; the error names the line.
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
        // The device's own setting has priority.
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

    /// The configuration in the environment, or the [standard](Self::standard) one.
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

    /// The configuration as a text.
    ///
    /// # Errors
    /// A path is not UTF-8.
    pub fn to_text(&self) -> Result<String, ConfigurationError> {
        toml::to_string(self).map_err(|error| ConfigurationError::new(error.to_string()))
    }

    /// Adds a device. Without a name it gets the next one of its kind.
    ///
    /// # Errors
    /// The name is taken, or its settings contradict each other.
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

    /// The device with this name.
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// The device with this name, to be changed.
    ///
    /// # Errors
    /// There is none; the error lists those that exist.
    pub fn named(&self, name: &str) -> Result<&Device, ConfigurationError> {
        self.device(name).ok_or_else(|| {
            let known: Vec<_> = self.devices.iter().map(|known| &*known.name).collect();
            let known = known.join(", ");
            ConfigurationError::new(format!("no device is named {name}; there are {known}"))
        })
    }

    /// Sets the link layer that every RoCE device reports.
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

    /// Sets the faults of the links of all devices that have links.
    ///
    /// # Errors
    /// No device has one.
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

//! The construction of emulated devices, which is the same for every transport.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

pub use polyverbs_engine::device::Appearance;
use polyverbs_engine::device::{Device, DeviceOptions};
use polyverbs_engine::driver::Driver;
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::network::Network;
use thiserror::Error;
use verbs_api::provider::{DeviceList, DeviceOps, Provider, errno_of};
use verbs_api::{
    ArgumentReason, Features, Limit, VerbError, capability::BaselineGaps, extension::Extensions,
    ids::LinkAddress,
};

use crate::RealHost;
use crate::sim::{Contract, FaultSpec, FaultSpecError, VirtualClock};
#[cfg(feature = "sockets")]
use crate::{JoinError, Tap};

/// Options with which an emulated device is created.
#[derive(Clone, Debug, Default)]
pub struct EmulatedOptions {
    /// The name of the device; `None` for the default name of its kind.
    pub name: Option<String>,
    /// The time that each control verb takes (creating, modifying or destroying an object).
    pub command_latency: Duration,
    /// Whether the device frees send queue slots as hardware does: only when the program polls the completion of the same
    /// or a later request. A queue pair that never signals is then full after `max_send_wr` requests.
    pub strict_signaling: bool,
    /// The faults that the device's link injects. Without faults, devices on a network of their own exchange messages
    /// without a link.
    pub faults: FaultSpec,
    /// Whether the device sends frames even on a network of its own without faults, so that messages are cut to the path
    /// MTU.
    pub framed: bool,
    /// The IP address and port of this machine at which peers reach the device; `None` for a network of its own, inside the
    /// process. A program that is built without the Cargo feature `sockets` gets an error for an address.
    pub at: Option<SocketAddr>,
    /// The virtual clock by which the device runs and which the program advances; `None` for real time. A device with an IP
    /// address (`at`) cannot have one.
    pub clock: Option<VirtualClock>,
    /// The tap that observes everything that the device sends and receives on an IP network.
    #[cfg(feature = "sockets")]
    pub tap: Option<Tap>,
    /// Whether the device sends FPDUs without CRC over streams (iWARP) unless its peer wants it. RoCEv2 always has its
    /// ICRC.
    pub without_crc: bool,
    /// Whether, over streams, the device sends the first FPDU after it has accepted a connection, for peers that wait for
    /// it, such as Linux's siw.
    pub speaks_first: bool,
    /// Whether traffic with other devices of this machine uses sockets instead of shared memory.
    pub without_shared_memory: bool,
    /// Whether the device's port is that of an InfiniBand network, which a subnet manager configures: it has no LID and carries
    /// no data until one does. Only InfiniBand devices on a network of their own can have such a port.
    pub managed: bool,
    /// The port of an emulated fabric at which the device is; `None` for a device that is in none. Only InfiniBand devices without
    /// an address and a clock of their own can be in one, in a program that is built with the Cargo feature `fabric`.
    pub fabric: Option<FabricPlace>,
    /// Features that the device does not report although it has them.
    pub without: Features,
    /// Limits that the device reports as no stronger than these values.
    pub limits: Vec<(Limit, u64)>,
    /// Abilities of the baseline that the device lacks although its kind has them, such as queue pairs of a type.
    pub gaps: BaselineGaps,
    /// What the device reports in place of what it is: its vendor and model, the scope of its atomics, the MTU and the GID
    /// table of its port.
    pub appearance: Appearance,
    /// The extensions of the device; `None` for all that are linked into the program.
    pub extensions: Option<Extensions>,
}

/// A port of an emulated fabric, which another process holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricPlace {
    /// The name of that process's socket; `None` for the user's own.
    pub socket: Option<String>,
    /// The name of an adapter; empty for the first one.
    pub node: String,
}

impl EmulatedOptions {
    /// Checks that the options fit one another, and that a link with this contract supports their faults.
    ///
    /// # Errors
    /// The link cannot have these faults, or a virtual clock is combined with an IP address, or a managed port with an IP
    /// address or with iWARP, or a place in a fabric with any of these.
    pub fn check(&self, contract: Contract) -> Result<(), EmulatedError> {
        self.faults.check(contract)?;
        if self.managed && (self.at.is_some() || contract != Contract::Datagram) {
            return Err(EmulatedError::Managed);
        }
        let is_elsewhere = self.at.is_some() || self.managed || self.clock.is_some();
        if self.fabric.is_some() && (is_elsewhere || contract != Contract::Datagram) {
            return Err(EmulatedError::Fabric);
        }
        match (&self.clock, self.at) {
            (Some(_), Some(at)) => Err(EmulatedError::ClockOnWire(at)),
            _ => Ok(()),
        }
    }

    /// Creates a network for this device alone, which runs by the clock of the options. If `link` is `None`, QPs exchange
    /// messages directly, without frames.
    pub fn network<D: Driver>(
        &self,
        link: Option<SharedLink<D::Header>>,
    ) -> Arc<Network<Device<D>>> {
        match &self.clock {
            Some(clock) => clock.network(link),
            None => RealHost::network(link),
        }
    }

    /// Returns those of the options that the engine needs.
    pub fn engine(&self) -> DeviceOptions {
        DeviceOptions {
            command_latency: self.command_latency,
            strict_signaling: self.strict_signaling,
            without: self.without,
            limits: self.limits.clone(),
            gaps: self.gaps,
            appearance: self.appearance.clone(),
            extensions: self.extensions.clone(),
            ..DeviceOptions::default()
        }
    }
}

/// The reason why an emulated device was not created.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum EmulatedError {
    /// The link of the transport cannot inject these faults.
    #[error(transparent)]
    Fault(#[from] FaultSpecError),
    /// A virtual clock is combined with an IP address: peers on an IP network do not wait for a clock that the program
    /// advances.
    #[error("a device at {0} runs in real time, not by a virtual clock: leave one of them out")]
    ClockOnWire(SocketAddr),
    /// A port that a subnet manager configures is combined with an IP address or with iWARP.
    #[error(
        "a managed port is that of an InfiniBand device on a network of its own: leave the address out, and choose InfiniBand"
    )]
    Managed,
    /// A place in a fabric is combined with an IP address, a virtual clock, a managed port or iWARP.
    #[error(
        "a device in a fabric is an InfiniBand device whose address and time are the fabric's: leave address, clock and managed port out"
    )]
    Fabric,
    /// The program is built without fabrics.
    #[error("a device in a fabric needs the Cargo feature `fabric`: build the program with it")]
    WithoutFabric,
    /// The program has no sockets for a device at an address.
    #[error(
        "a device at {0} needs sockets: build the program with the Cargo feature `sockets`, or leave the address out"
    )]
    WithoutSockets(SocketAddr),
    /// The device cannot be created at its address on an IP network.
    #[error("{reason}")]
    Wire {
        /// The reason and a remedy, in words.
        reason: String,
        /// The error number of the system.
        errno: i32,
    },
    /// The engine refused to create the device.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl EmulatedError {
    /// Returns the system's error number, or `None` if the reason is not an error of the system.
    pub const fn errno(&self) -> Option<i32> {
        match self {
            Self::Wire { errno, .. } | Self::Verb(VerbError::Os { errno, .. }) => Some(*errno),
            Self::Fault(_)
            | Self::ClockOnWire(_)
            | Self::Managed
            | Self::Fabric
            | Self::WithoutFabric
            | Self::WithoutSockets(_)
            | Self::Verb(_) => None,
        }
    }
}

impl From<io::Error> for EmulatedError {
    fn from(error: io::Error) -> Self {
        Self::Wire {
            reason: error.to_string(),
            errno: errno_of(&error),
        }
    }
}

#[cfg(feature = "sockets")]
impl From<JoinError> for EmulatedError {
    fn from(error: JoinError) -> Self {
        Self::Wire {
            reason: error.to_string(),
            errno: error.errno(),
        }
    }
}

/// A kind of emulated device, for example RoCEv2 or iWARP.
pub trait EmulatedKind: Send + Sync + 'static {
    /// Returns the default name of a device of this kind.
    fn name(&self) -> &'static str;

    /// Returns the name of the provider that offers the device of this kind.
    fn provider(&self) -> &'static str;

    /// Creates a device on a network of its own: it reaches itself, and its queue pairs reach one another.
    ///
    /// # Errors
    /// The options do not fit the transport.
    fn make(&self, options: &EmulatedOptions) -> Result<Arc<dyn DeviceOps>, EmulatedError>;
}

/// An entry by which a crate registers its kind, in every program that links the crate and names it.
pub struct LinkedKind(pub &'static dyn EmulatedKind);

verbs_api::inventory::collect!(LinkedKind);

/// Returns every kind of emulated device that is linked into the program, sorted by name.
pub fn kinds() -> Vec<&'static dyn EmulatedKind> {
    let mut kinds: Vec<_> = verbs_api::inventory::iter::<LinkedKind>
        .into_iter()
        .map(|kind| kind.0)
        .collect();
    kinds.sort_by_key(|kind| kind.name());
    kinds
}

/// Returns the kind of emulated device with this name; `None` if no such kind is linked into the program.
pub fn kind(name: &str) -> Option<&'static dyn EmulatedKind> {
    kinds().into_iter().find(|kind| kind.name() == name)
}

/// The provider of one device of a kind, with default options, at the address that [`ADDRESS_VARIABLE`] names.
pub struct EmulatedProvider<K>(pub K);

impl<K: EmulatedKind> Provider for EmulatedProvider<K> {
    fn name(&self) -> &'static str {
        self.0.provider()
    }

    fn is_fallback(&self) -> bool {
        true
    }

    fn devices(&self, extensions: &Extensions) -> Result<DeviceList, VerbError> {
        let options = EmulatedOptions {
            extensions: Some(extensions.clone()),
            at: named_address()?,
            ..EmulatedOptions::default()
        };
        match self.0.make(&options) {
            Ok(device) => Ok([device].into_iter().collect()),
            Err(EmulatedError::Verb(error)) => Err(error),
            Err(error @ (EmulatedError::Wire { .. } | EmulatedError::WithoutSockets(_))) => {
                let reason = ArgumentReason::Said(error.to_string().into());
                Err(VerbError::argument(ADDRESS_VARIABLE, reason))
            }
            Err(
                EmulatedError::Fault(_)
                | EmulatedError::ClockOnWire(_)
                | EmulatedError::Managed
                | EmulatedError::Fabric
                | EmulatedError::WithoutFabric,
            ) => Err(VerbError::Internal(
                "options without faults, clock, managed port and fabric do not fit",
            )),
        }
    }
}

/// The environment variable with the IP address of this machine at which peers reach the devices of [`EmulatedProvider`].
/// If it is not set, each device is on a network of its own.
pub const ADDRESS_VARIABLE: &str = "POLYVERBS_ADDRESS";

fn named_address() -> Result<Option<SocketAddr>, VerbError> {
    let Some(text) = std::env::var_os(ADDRESS_VARIABLE).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let wrong = || VerbError::argument(ADDRESS_VARIABLE, "is no IP address");
    let address: IpAddr = text
        .to_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(wrong)?;
    Ok(Some(SocketAddr::new(address, ROCE_PORT)))
}

/// The UDP port of RoCEv2. An iWARP device uses the TCP port of this number.
pub const ROCE_PORT: u16 = 4791;

/// The link address of the only device on a network of its own.
pub const FIRST_ADDRESS: LinkAddress = LinkAddress::InProcess(1);

//! The construction of emulated devices, which is the same for every transport.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use polyverbs_engine::device::{Device, DeviceOptions};
use polyverbs_engine::driver::Driver;
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::network::Network;
use thiserror::Error;
use verbs_api::provider::{DeviceList, DeviceOps, Provider, errno_of};
use verbs_api::{
    ArgumentReason, Features, Limit, VerbError, extension::Extensions, ids::LinkAddress,
};

use crate::{GroupOptions, JoinError, RealHost, WireTap};
use polyverbs_sim::{Contract, FaultSpec, FaultSpecError, VirtualClock};

/// Options of an emulated device.
#[derive(Clone, Debug, Default)]
pub struct EmulatedOptions {
    /// The name of the device; `None` for the default name of its kind.
    pub name: Option<String>,
    /// The time that each control verb takes.
    pub command_latency: Duration,
    /// Whether the device frees send queue slots as hardware does: only when the program polls the completion of the same
    /// or a later request. A queue pair that never signals is then full after `max_send_wr` requests.
    pub strict_signaling: bool,
    /// The faults of its link. Without any fault the network is direct.
    pub faults: FaultSpec,
    /// The device uses frames even without faults: messages are cut to the path MTU.
    pub framed: bool,
    /// The address and port of this machine at which the device is reached on an IP network; `None` for a network of its
    /// own.
    pub at: Option<SocketAddr>,
    /// The clock by which the device runs, which the program advances; `None` for real time. Only on a network of its own.
    pub clock: Option<VirtualClock>,
    /// The tap that sees everything that the device sends and receives on an IP network.
    pub tap: Option<Tap>,
    /// The device sends no checksums over streams, unless its peer wants them. RoCEv2 always has them.
    pub without_crc: bool,
    /// Over streams, the device sends first when it accepts a connection, for peers that wait for that, such as Linux's
    /// siw.
    pub speaks_first: bool,
    /// Traffic with other devices of this machine uses sockets, too, instead of shared memory.
    pub without_shared_memory: bool,
    /// Features that the device does not report although it has them.
    pub without: Features,
    /// Limits that the device reports as no larger than these values.
    pub limits: Vec<(Limit, u64)>,
    /// The extensions of the device; `None` for those that are linked.
    pub extensions: Option<Extensions>,
}

impl EmulatedOptions {
    /// Checks that the options fit one another, and a transport whose link keeps this contract.
    ///
    /// # Errors
    /// The link cannot have these faults, or an IP network is to run by a virtual clock.
    pub fn check(&self, contract: Contract) -> Result<(), EmulatedError> {
        self.faults.check(contract)?;
        match (&self.clock, self.at) {
            (Some(_), Some(at)) => Err(EmulatedError::ClockOnWire(at)),
            _ => Ok(()),
        }
    }

    /// Creates a network for this device alone, which runs by the clock of the options. Without a link it is direct.
    pub fn network<D: Driver>(
        &self,
        link: Option<SharedLink<D::Header>>,
    ) -> Arc<Network<Device<D>>> {
        match &self.clock {
            Some(clock) => clock.network(link),
            None => RealHost::network(link),
        }
    }

    /// The options of the engine.
    pub fn engine(&self) -> DeviceOptions {
        DeviceOptions {
            command_latency: self.command_latency,
            strict_signaling: self.strict_signaling,
            without: self.without,
            limits: self.limits.clone(),
            extensions: self.extensions.clone(),
            ..DeviceOptions::default()
        }
    }
}

/// A tap that sees the traffic on the wire.
#[derive(Clone)]
pub struct Tap(pub Arc<dyn WireTap>);

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tap")
    }
}

/// Why no device was made.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum EmulatedError {
    /// The faults do not fit the transport's link.
    #[error(transparent)]
    Fault(#[from] FaultSpecError),
    /// Other devices of an IP network do not wait for a clock that the program advances.
    #[error("a device at {0} runs in real time, not by a virtual clock: leave one of them out")]
    ClockOnWire(SocketAddr),
    /// The device cannot be created at its address on an IP network.
    #[error("{reason}")]
    Wire {
        /// The reason, and what to do.
        reason: String,
        /// The system's error number.
        errno: i32,
    },
    /// The engine refused.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl EmulatedError {
    /// Returns the system's error number, if the system refused.
    pub const fn errno(&self) -> Option<i32> {
        match self {
            Self::Wire { errno, .. } | Self::Verb(VerbError::Os { errno, .. }) => Some(*errno),
            Self::Fault(_) | Self::ClockOnWire(_) | Self::Verb(_) => None,
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

impl From<JoinError> for EmulatedError {
    fn from(error: JoinError) -> Self {
        Self::Wire {
            reason: error.to_string(),
            errno: error.errno(),
        }
    }
}

/// A kind of emulated device.
pub trait EmulatedKind: Send + Sync + 'static {
    /// The default name of its device.
    fn name(&self) -> &'static str;

    /// The name of the provider of that device.
    fn provider(&self) -> &'static str;

    /// Creates a device on a network of its own: it reaches itself, and its queue pairs reach one another.
    ///
    /// # Errors
    /// The options do not fit the transport.
    fn make(&self, options: &EmulatedOptions) -> Result<Arc<dyn DeviceOps>, EmulatedError>;
}

/// A kind that registers itself if its crate is linked and named.
pub struct LinkedKind(pub &'static dyn EmulatedKind);

verbs_api::inventory::collect!(LinkedKind);

/// Returns every linked kind, sorted by name.
pub fn kinds() -> Vec<&'static dyn EmulatedKind> {
    let mut kinds: Vec<_> = verbs_api::inventory::iter::<LinkedKind>
        .into_iter()
        .map(|kind| kind.0)
        .collect();
    kinds.sort_by_key(|kind| kind.name());
    kinds
}

/// Returns the linked kind with this name.
pub fn kind(name: &str) -> Option<&'static dyn EmulatedKind> {
    kinds().into_iter().find(|kind| kind.name() == name)
}

/// The provider of the one device of a kind, with default options.
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
            Err(EmulatedError::Wire { reason, .. }) => {
                let reason = ArgumentReason::Said(reason.into());
                Err(VerbError::argument(ADDRESS_VARIABLE, reason))
            }
            Err(EmulatedError::Fault(_) | EmulatedError::ClockOnWire(_)) => Err(
                VerbError::Internal("options without faults and clock do not fit"),
            ),
        }
    }
}

/// The environment variable that names the address of this machine for the registered devices. Without it each device is on
/// a network of its own.
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
    Ok(Some(SocketAddr::new(address, GroupOptions::PORT)))
}

/// The address of the only device of a network.
pub const FIRST_ADDRESS: LinkAddress = LinkAddress::InProcess(1);

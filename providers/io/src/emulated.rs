//! How a program or a command makes an emulated device: the same way for every transport.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use polyverbs_engine::device::DeviceOptions;
use thiserror::Error;
use verbs_api::provider::{DeviceList, DeviceOps, Provider};
use verbs_api::{
    ArgumentReason, Features, Limit, VerbError, extension::Extensions, ids::LinkAddress,
};

use crate::{GroupOptions, WireTap};
use polyverbs_sim::{FaultSpec, FaultSpecError};

/// What an emulated device is made with.
#[derive(Clone, Debug, Default)]
pub struct EmulatedOptions {
    /// Its name, if not the kind's own.
    pub name: Option<String>,
    /// How long each control verb takes.
    pub command_latency: Duration,
    /// Whether it frees slots of send queues as hardware does: only where the program polls a completion of the same or a later
    /// request. A queue pair that never signals is full after `max_send_wr` requests.
    pub strict_signaling: bool,
    /// What its link does to frames. Without any fault the network is direct.
    pub faults: FaultSpec,
    /// Frames even without faults: messages are cut to the path MTU.
    pub framed: bool,
    /// Address and port of this machine where it is found on an IP network; `None` for a network of its own.
    pub at: Option<SocketAddr>,
    /// Is told of all that it sends and receives where it is on an IP network.
    pub tap: Option<Tap>,
    /// No checksums in what it sends over streams, unless its peer wants them. RoCEv2 has them in any case.
    pub without_crc: bool,
    /// Over streams, where it is asked for a connection, it sends before its peer has, which may wait for that: Linux's siw.
    pub speaks_first: bool,
    /// What it and other devices of this machine send to one another leaves by sockets as well, not through memory.
    pub without_shared_memory: bool,
    /// Features that it does not claim although it could.
    pub without: Features,
    /// Numbers that are to be no larger than this, whatever it could do.
    pub limits: Vec<(Limit, u64)>,
    /// The extensions that it has; `None` for those that are linked.
    pub extensions: Option<Extensions>,
}

impl EmulatedOptions {
    /// What of it is the engine's.
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

/// Whoever is told of what is on the wire.
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
    /// It cannot be where it is to be on an IP network.
    #[error("{0}")]
    Wire(String),
    /// The engine refused.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

/// A kind of emulated device.
pub trait EmulatedKind: Send + Sync + 'static {
    /// The name of its device where nobody gives another.
    fn name(&self) -> &'static str;

    /// Name of the provider of that device.
    fn provider(&self) -> &'static str;

    /// Makes a device on a network of its own: it reaches itself, and its queue pairs one another.
    ///
    /// # Errors
    /// The options do not fit the transport.
    fn make(&self, options: &EmulatedOptions) -> Result<Arc<dyn DeviceOps>, EmulatedError>;
}

/// A kind that registers itself where its crate is linked and named.
pub struct LinkedKind(pub &'static dyn EmulatedKind);

verbs_api::inventory::collect!(LinkedKind);

/// Every kind that is linked, sorted by name.
pub fn kinds() -> Vec<&'static dyn EmulatedKind> {
    let mut kinds: Vec<_> = verbs_api::inventory::iter::<LinkedKind>
        .into_iter()
        .map(|kind| kind.0)
        .collect();
    kinds.sort_by_key(|kind| kind.name());
    kinds
}

/// The kind of this name, where it is linked.
pub fn kind(name: &str) -> Option<&'static dyn EmulatedKind> {
    kinds().into_iter().find(|kind| kind.name() == name)
}

/// The provider of the one device of a kind, as it is without options.
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
            Err(EmulatedError::Wire(error)) => {
                let reason = ArgumentReason::Said(error.into());
                Err(VerbError::argument(ADDRESS_VARIABLE, reason))
            }
            Err(EmulatedError::Fault(_)) => Err(VerbError::Internal("no faults do not fit")),
        }
    }
}

/// Names the address of this machine at which the registered devices are. Without it each is on a network of its own.
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

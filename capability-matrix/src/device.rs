//! One device as a value that can be written as JSON.

use polyverbs::{
    Limit,
    capability::{AtomicScope, DeviceAttributes, Limits, PortAttributes, feature_names},
    ids::LinkAddress,
};
use serde::{Serialize, Serializer};

/// Everything that a device reports about itself, by its verbs names.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct DeviceReport {
    /// Unique among the devices.
    pub name: String,
    /// `"infiniband"` or `"iwarp"`.
    pub transport: &'static str,
    /// The name of its provider.
    pub provider: &'static str,
    /// Names of the opt-in abilities; those of an extension as `set::NAME`.
    pub features: Vec<String>,
    /// Names of the baseline abilities that this device lacks.
    pub gaps: Vec<&'static str>,
    /// Numbers by attribute name.
    #[serde(serialize_with = "limits")]
    pub limits: Limits,
    /// `"none"`, `"hca"` or `"global"`.
    pub atomic_cap: &'static str,
    /// The scope of masked atomics: `"none"`, `"hca"` or `"global"`.
    pub masked_atomic_cap: &'static str,
    /// One entry per port.
    pub ports: Vec<PortReport>,
}

/// Everything that a port reports about itself.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PortReport {
    /// Counted from 1.
    pub port: u8,
    /// As in verbs: `"active"`, `"down"` ….
    pub state: &'static str,
    /// Names of its capabilities.
    pub caps: Vec<&'static str>,
    /// The largest payload of a packet, in bytes.
    pub max_mtu: u32,
    /// The payload of a packet that is in force, in bytes.
    pub active_mtu: u32,
    /// Its address on its link.
    pub address: String,
    /// Global identifiers, by index.
    pub gids: Vec<String>,
    /// Partition keys, by index.
    pub pkeys: Vec<u16>,
    /// How many datagrams were refused because of a wrong Q_Key.
    pub qkey_viol_cntr: u32,
}

impl DeviceReport {
    /// The report of a device with these attributes.
    pub fn of(device: &DeviceAttributes) -> Self {
        let mut features: Vec<_> = feature_names(device.features)
            .into_iter()
            .map(String::from)
            .collect();
        for set in &device.extensions {
            features.extend(set.names.iter().map(|name| format!("{}::{name}", set.set)));
        }
        Self {
            name: device.name.clone(),
            transport: device.transport.name(),
            provider: device.provider,
            features,
            gaps: device.gaps.iter_names().map(|(name, _)| name).collect(),
            limits: device.limits,
            atomic_cap: scope(device.atomic_cap),
            masked_atomic_cap: scope(device.masked_atomic_cap),
            ports: device.ports.iter().map(PortReport::of).collect(),
        }
    }
}

impl PortReport {
    fn of(port: &PortAttributes) -> Self {
        Self {
            port: port.port,
            state: port.state.name(),
            caps: port.caps.iter_names().map(|(name, _)| name).collect(),
            max_mtu: port.max_mtu.octets(),
            active_mtu: port.active_mtu.octets(),
            address: address(port.address),
            gids: port
                .gids
                .iter()
                .map(|entry| entry.gid.to_string())
                .collect(),
            pkeys: port.pkeys.clone(),
            qkey_viol_cntr: port.qkey_viol_cntr,
        }
    }
}

pub(crate) fn scope(scope: AtomicScope) -> &'static str {
    match scope {
        AtomicScope::None => "none",
        AtomicScope::Hca => "hca",
        AtomicScope::Global => "global",
    }
}

fn address(address: LinkAddress) -> String {
    match address {
        LinkAddress::InProcess(number) => format!("in-process {number}"),
        LinkAddress::Ip(address) => address.to_string(),
        LinkAddress::Lid(lid) => format!("lid {lid}"),
        LinkAddress::Mac(octets) => octets.map(|octet| format!("{octet:02x}")).join(":"),
        other => format!("{other:?}"),
    }
}

fn limits<S: Serializer>(limits: &Limits, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(
        Limit::ALL
            .iter()
            .map(|&limit| (limit.name(), limits.value(limit))),
    )
}

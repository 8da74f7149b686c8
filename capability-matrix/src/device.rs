//! The attributes of one device in a form that can be written as JSON.

use polyverbs::{
    Limit,
    capability::{AtomicScope, DeviceAttributes, Limits, PortAttributes, feature_names},
    ids::LinkAddress,
};
use serde::{Serialize, Serializer};

/// All that a device reports about itself, under the names of verbs.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct DeviceReport {
    /// The name of the device, which no other device has.
    pub name: String,
    /// The transport of the device: `"infiniband"` or `"iwarp"`.
    pub transport: &'static str,
    /// The name of the provider that the device comes from.
    pub provider: &'static str,
    /// The vendor and the model of the device.
    pub identity: IdentityReport,
    /// The names of the device's opt-in features; those of an extension have the form `set::NAME`.
    pub features: Vec<String>,
    /// The names of the gaps: abilities of the baseline that this device lacks.
    pub gaps: Vec<&'static str>,
    /// The limits of the device, each under the name of its verbs attribute.
    #[serde(serialize_with = "limits")]
    pub limits: Limits,
    /// The scope of atomics: `"none"`, `"hca"` or `"global"`.
    pub atomic_cap: &'static str,
    /// The scope of masked atomics: `"none"`, `"hca"` or `"global"`.
    pub masked_atomic_cap: &'static str,
    /// The ports of the device.
    pub ports: Vec<PortReport>,
}

/// The vendor and the model of a device.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct IdentityReport {
    /// The vendor's number.
    pub vendor_id: u32,
    /// The vendor's number of the model.
    pub vendor_part_id: u32,
    /// The version of the hardware.
    pub hw_ver: u32,
    /// The version of the firmware.
    pub fw_ver: String,
}

/// All that a port reports about itself.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PortReport {
    /// The number of the port, counted from 1.
    pub port: u8,
    /// The state of the port, named as in verbs: `"active"`, `"down"` ….
    pub state: &'static str,
    /// The names of the port's capability flags.
    pub caps: Vec<&'static str>,
    /// The largest MTU that the port supports: the payload of a packet, in bytes.
    pub max_mtu: u32,
    /// The MTU in use: the payload of a packet, in bytes.
    pub active_mtu: u32,
    /// The address of the port on its link: an IP address, a MAC address, a LID, or a number within the process.
    pub address: String,
    /// The GID table of the port, by index.
    pub gids: Vec<String>,
    /// The P_Key table of the port, by index.
    pub pkeys: Vec<u16>,
    /// The number of datagrams that the port dropped because of a wrong Q_Key.
    pub qkey_viol_cntr: u32,
}

impl DeviceReport {
    /// Makes the report of a device from its attributes.
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
            identity: IdentityReport {
                vendor_id: device.identity.vendor_id,
                vendor_part_id: device.identity.vendor_part_id,
                hw_ver: device.identity.hw_ver,
                fw_ver: device.identity.fw_ver.clone(),
            },
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

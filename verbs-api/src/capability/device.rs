//! What a device tells about itself and its ports.

use bitflags::bitflags;

use super::{Baseline, BaselineGaps, FeatureSet, Features, Limit, Limits, feature_names};
use crate::extension::FeatureInfo;
use crate::ids::{Gid, LinkAddress, Port};

/// The family of protocols that a device speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// InfiniBand's transport: InfiniBand and RoCE.
    InfiniBand,
    /// RDMA over TCP: RFC 5040 to 5044.
    Iwarp,
}

impl Transport {
    /// `"infiniband"` or `"iwarp"`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "infiniband",
            Self::Iwarp => "iwarp",
        }
    }
}

/// With respect to whom an atomic operation is atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[doc(alias = "ibv_atomic_cap")]
pub enum AtomicScope {
    /// There are no such operations.
    #[default]
    None,
    /// With respect to other queue pairs of the same device only.
    Hca,
    /// With respect to every device and the processors.
    Global,
}

bitflags! {
    /// What a port offers: a property of each port, because one device may have ports of different kinds.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct PortCaps: u32 {
        /// Management datagrams.
        const MAD = 1;
        /// Subnet management: queue pair 0.
        const SMI = 1 << 1;
        /// InfiniBand's connection manager.
        const IB_CM = 1 << 2;
        /// iWARP's connection manager.
        const IW_CM = 1 << 3;
        /// Subnet administration.
        const SA = 1 << 4;
        /// Address handles carry Ethernet addresses.
        const ETH_AH = 1 << 5;
        /// Speaks native InfiniBand.
        const PROTOCOL_IB = 1 << 8;
        /// Speaks RoCE version 1.
        const PROTOCOL_ROCE_V1 = 1 << 9;
        /// Speaks RoCE version 2.
        const PROTOCOL_ROCE_V2 = 1 << 10;
        /// Speaks iWARP.
        const PROTOCOL_IWARP = 1 << 11;
    }
}

impl PortCaps {
    /// A RoCEv2 port: management datagrams and connection manager, but neither SMI nor SA.
    pub const ROCE_V2: Self = Self::MAD
        .union(Self::IB_CM)
        .union(Self::ETH_AH)
        .union(Self::PROTOCOL_ROCE_V2);
    /// A native InfiniBand port.
    pub const INFINIBAND: Self = Self::MAD
        .union(Self::SMI)
        .union(Self::IB_CM)
        .union(Self::SA)
        .union(Self::PROTOCOL_IB);
    /// An iWARP port: its own connection manager and nothing else.
    pub const IWARP: Self = Self::IW_CM.union(Self::PROTOCOL_IWARP);
}

/// Whether a port can carry traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[doc(alias = "ibv_port_state")]
pub enum PortState {
    /// No traffic.
    Down,
    /// Traffic.
    #[default]
    Active,
}

/// Payload octets of one packet: 256 to 4096, headers not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[doc(alias = "ibv_mtu")]
pub enum Mtu {
    /// 256 octets.
    Mtu256 = 1,
    /// 512 octets.
    Mtu512 = 2,
    /// 1024 octets.
    #[default]
    Mtu1024 = 3,
    /// 2048 octets.
    Mtu2048 = 4,
    /// 4096 octets.
    Mtu4096 = 5,
}

impl Mtu {
    /// Payload octets.
    pub const fn octets(self) -> u32 {
        128 << self as u32
    }

    /// The verbs' code: 1 for 256 octets … 5 for 4096; 0 and 6 and above are nothing.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Mtu256,
            2 => Self::Mtu512,
            3 => Self::Mtu1024,
            4 => Self::Mtu2048,
            5 => Self::Mtu4096,
            _ => return None,
        })
    }
}

/// What a port tells about itself.
#[derive(Clone, Debug, PartialEq)]
#[doc(alias = "ibv_port_attr")]
pub struct PortAttributes {
    /// Counted from 1.
    pub port: Port,
    /// Whether it carries traffic.
    pub state: PortState,
    /// What it offers.
    pub caps: PortCaps,
    /// Largest packet payload that the port can carry.
    pub max_mtu: Mtu,
    /// Largest packet payload that is in force.
    pub active_mtu: Mtu,
    /// Where it is found on its link.
    pub address: LinkAddress,
    /// Its global identifiers, by index. RoCE has the link-local one at 0 and that of its IP address behind it.
    pub gids: Vec<Gid>,
    /// Its partition keys, by index.
    pub pkeys: Vec<u16>,
    /// Datagrams refused for a wrong Q_Key.
    pub qkey_viol_cntr: u32,
}

impl PortAttributes {
    /// Index of the GID of the port's IP address, which peers of every kind reach; 0 where it has no such.
    pub fn address_gid_index(&self) -> u8 {
        let LinkAddress::Ip(ip) = self.address else {
            return 0;
        };
        let found = self.gids.iter().position(|&gid| gid == Gid::from(ip));
        found.map_or(0, |index| index as u8)
    }
}

/// The feature bits of an extension as a device offers them: the set's name and the names of its bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionFeatures {
    /// Name of the set ([`FeatureSet::SET`]).
    pub set: &'static str,
    /// The bits.
    pub bits: u64,
    /// Names of the bits that are set.
    pub names: Vec<&'static str>,
    /// Names and values of its numbers.
    pub limits: Vec<(&'static str, u64)>,
}

/// What a device tells about itself.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_query_device_ex")]
pub struct DeviceAttributes {
    /// Unique among the devices of a registry.
    pub name: String,
    /// Name of the provider that made it.
    pub provider: &'static str,
    /// The family of protocols.
    pub transport: Transport,
    /// Opt-in abilities.
    pub features: Features,
    /// Opt-in abilities of extensions.
    pub extensions: Vec<ExtensionFeatures>,
    /// What the baseline promises and this device lacks.
    pub gaps: BaselineGaps,
    /// Numbers.
    pub limits: Limits,
    /// Scope of compare-and-swap and fetch-and-add.
    pub atomic_cap: AtomicScope,
    /// Scope of masked atomics; independent of `atomic_cap`.
    pub masked_atomic_cap: AtomicScope,
    /// One entry per port; never empty.
    pub ports: Vec<PortAttributes>,
}

impl DeviceAttributes {
    /// Whether the device claims a feature, of the core or of an extension.
    pub fn claims(&self, feature: &FeatureInfo) -> bool {
        self.bits_of(feature.set) & feature.bits == feature.bits
    }

    /// The number that `limit` names, of the core or of an extension; 0 where the device does not have it.
    pub fn limit(&self, limit: Limit) -> u64 {
        let Limit::Extension(wanted) = limit else {
            return self.limits.value(limit);
        };
        let set = self.extensions.iter().find(|known| known.set == wanted.set);
        let mut numbers = set.into_iter().flat_map(|set| &set.limits);
        let found = numbers.find(|(name, _)| *name == wanted.name);
        found.map_or(0, |&(_, value)| value)
    }

    pub(crate) fn bits_of(&self, set: &str) -> u64 {
        if set == Features::SET {
            return self.features.bits();
        }
        if set == Baseline::SET {
            return Baseline::of(self).bits();
        }
        let known = self.extensions.iter().find(|known| known.set == set);
        known.map_or(0, |known| known.bits)
    }

    /// What does not fit together in these attributes, if anything does not.
    ///
    /// A device has at most one kind of type-2 windows; iWARP devices have what their transport makes
    /// mandatory, or list it as a gap.
    pub fn inconsistency(&self) -> Option<String> {
        if self.ports.is_empty() {
            return Some("has no port".into());
        }
        if self.features.contains(Features::WINDOW_2) {
            return Some("claims both WINDOW_2A and WINDOW_2B; a device has at most one".into());
        }
        if self.transport != Transport::Iwarp {
            return None;
        }
        let excused = [
            (BaselineGaps::NO_BMME, Features::BMME),
            (
                BaselineGaps::NO_LOCAL_INVALIDATE_FENCE,
                Features::LOCAL_INVALIDATE_FENCE,
            ),
            (BaselineGaps::NO_WINDOW_2B, Features::WINDOW_2B),
            (BaselineGaps::NO_ZBVA, Features::ZBVA),
            (
                BaselineGaps::NO_READ_WITH_INVALIDATE,
                Features::READ_WITH_INVALIDATE,
            ),
        ];
        let absent = excused
            .into_iter()
            .filter(|&(gap, feature)| !self.gaps.contains(gap) && !self.features.contains(feature))
            .fold(Features::empty(), |all, (_, feature)| all | feature);
        if absent.is_empty() {
            return None;
        }
        let names = feature_names(absent).join(", ");
        Some(format!(
            "an iWARP device must have {names}, or list the gap"
        ))
    }
}

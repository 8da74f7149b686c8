//! The attributes of a device and of its ports.

use std::net::IpAddr;

use bitflags::bitflags;

use super::{
    Baseline, BaselineGaps, FeatureInfo, FeatureSet, Features, Limit, Limits, feature_names,
};
use crate::ids::{Gid, Guid, LinkAddress, Port};
use crate::transport::Transport;

/// The scope within which an atomic operation is atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[doc(alias = "ibv_atomic_cap")]
pub enum AtomicScope {
    /// The device has no such atomic operations.
    #[default]
    None,
    /// Atomic with respect to other queue pairs of the same device only.
    Hca,
    /// Atomic with respect to all devices and to the processors.
    Global,
}

bitflags! {
    /// Services and protocols of a port. Each port has its own, because one device may have ports of different kinds.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct PortCaps: u32 {
        /// The port sends and receives management datagrams (MADs).
        const MAD = 1;
        /// The port has a subnet management interface (SMI), which is queue pair 0.
        const SMI = 1 << 1;
        /// Connections are made by InfiniBand's connection manager.
        const IB_CM = 1 << 2;
        /// Connections are made by iWARP's connection manager.
        const IW_CM = 1 << 3;
        /// The port has access to subnet administration (SA).
        const SA = 1 << 4;
        /// Address handles contain Ethernet addresses.
        const ETH_AH = 1 << 5;
        /// The port speaks native InfiniBand.
        const PROTOCOL_IB = 1 << 8;
        /// The port speaks RoCE version 1.
        const PROTOCOL_ROCE_V1 = 1 << 9;
        /// The port speaks RoCE version 2.
        const PROTOCOL_ROCE_V2 = 1 << 10;
        /// The port speaks iWARP.
        const PROTOCOL_IWARP = 1 << 11;
    }
}

impl PortCaps {
    /// A RoCEv2 port: management datagrams and connection manager, but neither SMI nor SA.
    pub const ROCE_V2: Self = Self::MAD
        .union(Self::IB_CM)
        .union(Self::ETH_AH)
        .union(Self::PROTOCOL_ROCE_V2);
    /// All services and protocols of a native InfiniBand port.
    pub const INFINIBAND: Self = Self::MAD
        .union(Self::SMI)
        .union(Self::IB_CM)
        .union(Self::SA)
        .union(Self::PROTOCOL_IB);
    /// An iWARP port: its own connection manager and nothing else.
    pub const IWARP: Self = Self::IW_CM.union(Self::PROTOCOL_IWARP);
}

/// The logical state of a port, which determines whether it carries traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[doc(alias = "ibv_port_state")]
pub enum PortState {
    /// The device does not report a state, or the port has none.
    Nop = 0,
    /// The link is down: no traffic.
    Down = 1,
    /// The link is up; only subnet management passes.
    Init = 2,
    /// The subnet manager has configured the port but not yet activated it.
    Armed = 3,
    /// The link carries traffic.
    #[default]
    Active = 4,
    /// The link carries traffic, although it has failed for a moment.
    ActiveDefer = 5,
}

impl PortState {
    /// Converts the state's code in verbs, 0 for NOP … 5 for ACTIVE_DEFER; `None` for larger ones.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Nop,
            1 => Self::Down,
            2 => Self::Init,
            3 => Self::Armed,
            4 => Self::Active,
            5 => Self::ActiveDefer,
            _ => return None,
        })
    }

    /// The state's name as in verbs, in lower case, such as `"active_defer"`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nop => "nop",
            Self::Down => "down",
            Self::Init => "init",
            Self::Armed => "armed",
            Self::Active => "active",
            Self::ActiveDefer => "active_defer",
        }
    }

    /// Whether the port carries traffic in this state.
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Active | Self::ActiveDefer)
    }
}

/// The state of a port's physical link, independent of the logical [`PortState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PhysState {
    /// The link sends nothing and waits for a signal.
    Sleep = 1,
    /// The link searches for a link partner.
    Polling = 2,
    /// The link is switched off.
    Disabled = 3,
    /// The two ends of the link negotiate its width and speed.
    PortConfigurationTraining = 4,
    /// The link carries packets.
    #[default]
    LinkUp = 5,
    /// The link is being retrained after errors.
    LinkErrorRecovery = 6,
    /// The link is being tested.
    PhyTest = 7,
}

impl PhysState {
    /// Converts the link state's code in verbs, 1 for SLEEP … 7 for PHY_TEST; `None` for others.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Sleep,
            2 => Self::Polling,
            3 => Self::Disabled,
            4 => Self::PortConfigurationTraining,
            5 => Self::LinkUp,
            6 => Self::LinkErrorRecovery,
            7 => Self::PhyTest,
            _ => return None,
        })
    }
}

/// The kind of a GID, which determines the packet format of a path that starts from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_gid_type")]
pub enum GidType {
    /// InfiniBand: the GID consists of a subnet prefix and a port GUID.
    Ib,
    /// RoCE version 1: packets have a routing header directly on Ethernet, and stay within one broadcast domain.
    RoceV1,
    /// RoCE version 2: the GID is an IP address, and packets are UDP datagrams.
    RoceV2,
    /// iWARP: the GID contains an Ethernet address; connections are made by IP address.
    Iwarp,
}

impl GidType {
    /// Returns the name that Linux shows for this kind in the port's `gid_attrs/types` below `/sys`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ib => "IB",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Iwarp => "iWARP",
        }
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_gid_entry")]
pub struct GidEntry {
    /// The GID; zero where this entry of the table is empty.
    pub gid: Gid,
    /// The kind of the GID, which determines the packet format.
    pub gid_type: GidType,
    /// The IP address that the GID belongs to; `None` where it is not known.
    pub ip: Option<IpAddr>,
    /// The name of the network interface that the GID belongs to; `None` where it is not known.
    pub interface: Option<String>,
}

impl GidEntry {
    /// Creates an entry without a network interface. For RoCE version 2 the IP address follows from the GID.
    pub fn new(gid: Gid, gid_type: GidType) -> Self {
        let is_ip = gid_type == GidType::RoceV2 && gid != Gid::default();
        Self {
            gid,
            gid_type,
            ip: is_ip.then(|| gid.as_ip()),
            interface: None,
        }
    }

    /// Whether this entry of the table is empty.
    pub fn is_empty(&self) -> bool {
        self.gid == Gid::default()
    }

    // A path from it leaves the link.
    fn is_routable(&self) -> bool {
        self.ip.is_some_and(|ip| match ip {
            IpAddr::V4(ip) => !ip.is_link_local() && !ip.is_unspecified(),
            IpAddr::V6(ip) => !ip.is_unicast_link_local() && !ip.is_unspecified(),
        })
    }
}

/// An entry of a GID table as a device lays it out, whatever addresses it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidSlot {
    /// The entry is empty.
    Empty,
    /// The entry has the link-local GID, with this type.
    LinkLocal(GidType),
    /// The entry has the GID of the IP address, with this type.
    Address(GidType),
}

impl GidSlot {
    /// Lays out a GID table anew: each entry of `slots` is filled from `table`, in which the first entry that is not empty is
    /// the link-local one and the last one is that of the IP address.
    pub fn lay_out(slots: &[Self], table: &[GidEntry]) -> Vec<GidEntry> {
        let mut filled = table.iter().filter(|entry| !entry.is_empty());
        let first = filled.next();
        let last = filled.next_back().or(first);
        let of = |entry: Option<&GidEntry>, gid_type| GidEntry {
            gid: entry.map_or_else(Gid::default, |entry| entry.gid),
            gid_type,
            ip: entry.and_then(|entry| entry.ip),
            interface: entry.and_then(|entry| entry.interface.clone()),
        };
        let entries = slots.iter().map(|slot| match *slot {
            Self::Empty => GidEntry::new(Gid::default(), GidType::RoceV2),
            Self::LinkLocal(gid_type) => of(first, gid_type),
            Self::Address(gid_type) => of(last, gid_type),
        });
        entries.collect()
    }
}

/// What a subnet manager has assigned to a port. All fields are zero where there is no subnet manager, as on Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Subnet {
    /// How many low bits of the LID the port ignores, 0 to 7: it answers to 2^lmc LIDs.
    pub lmc: u8,
    /// The LID of the subnet manager.
    pub sm_lid: u16,
    /// The service level for packets to the subnet manager, 0 to 15.
    pub sm_sl: u8,
    /// The upper half of the subnet's GIDs, as a number.
    pub prefix: u64,
}

/// The largest payload of one packet: 256 to 4096 bytes, headers not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[doc(alias = "ibv_mtu")]
pub enum Mtu {
    /// Packets with at most 256 bytes of payload.
    Mtu256 = 1,
    /// Packets with at most 512 bytes of payload.
    Mtu512 = 2,
    /// Packets with at most 1024 bytes of payload.
    #[default]
    Mtu1024 = 3,
    /// Packets with at most 2048 bytes of payload.
    Mtu2048 = 4,
    /// Packets with at most 4096 bytes of payload.
    Mtu4096 = 5,
}

impl Mtu {
    /// Returns the number of payload bytes of a packet.
    pub const fn octets(self) -> u32 {
        128 << self as u32
    }

    /// Converts the MTU's code in verbs, 1 for 256 bytes … 5 for 4096; `None` for others.
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

/// The attributes that a port reports (`ibv_query_port`).
#[derive(Clone, Debug, PartialEq)]
#[doc(alias = "ibv_port_attr")]
pub struct PortAttributes {
    /// The port's number, counted from 1.
    pub port: Port,
    /// Whether the port carries traffic.
    pub state: PortState,
    /// The state of the port's physical link.
    pub phys_state: PhysState,
    /// The port's GUID; zero where it has none.
    pub port_guid: Guid,
    /// Services and protocols of the port.
    pub caps: PortCaps,
    /// The largest packet payload that the port can carry.
    pub max_mtu: Mtu,
    /// The largest packet payload that the port carries at present.
    pub active_mtu: Mtu,
    /// The port's address on its link: its LID on InfiniBand, its IP address on RoCEv2 and iWARP.
    pub address: LinkAddress,
    /// What a subnet manager has assigned to the port.
    pub subnet: Subnet,
    /// The port's GID table; entries may be empty. RoCE has the link-local GID at index 0 and the GID of its IP address
    /// after it.
    pub gids: Vec<GidEntry>,
    /// The port's partition keys, by index.
    pub pkeys: Vec<u16>,
    /// How many datagrams the port has refused for a wrong Q_Key.
    pub qkey_viol_cntr: u32,
    /// The effective bandwidth of the port in Mb/s (`ibv_query_port_speed`, which reports it in units of 100 Mb/s). A change is
    /// [reported](crate::event::EventType::DeviceSpeedChange).
    #[doc(alias = "ibv_query_port_speed")]
    pub speed: u64,
}

/// The bandwidth of a link of one lane at the lowest rate of InfiniBand, in Mb/s.
const SINGLE_RATE: u64 = 2_500;

impl PortAttributes {
    /// Creates the attributes of an active port with an empty name: 4096-byte packets, one full-membership partition key,
    /// no GIDs, no subnet manager, the speed of one lane at the lowest rate.
    pub fn new(port: Port, caps: PortCaps, address: LinkAddress) -> Self {
        Self {
            port,
            state: PortState::Active,
            phys_state: PhysState::LinkUp,
            port_guid: Guid::default(),
            caps,
            max_mtu: Mtu::Mtu4096,
            active_mtu: Mtu::Mtu4096,
            address,
            subnet: Subnet::default(),
            gids: Vec::new(),
            pkeys: vec![0xffff],
            qkey_viol_cntr: 0,
            speed: SINGLE_RATE,
        }
    }

    /// Returns the index of the GID to use where a program names none: one of RoCE version 2 with the port's own IP
    /// address, else a routable one of RoCE version 2, else the first entry that is not empty; 0 where all are.
    pub fn default_gid_index(&self) -> u8 {
        let position = |wanted: &dyn Fn(&GidEntry) -> bool| self.gids.iter().position(wanted);
        let is_own = |entry: &GidEntry| {
            entry.gid_type == GidType::RoceV2
                && entry
                    .ip
                    .is_some_and(|ip| self.address == LinkAddress::Ip(ip))
        };
        let found = position(&is_own)
            .or_else(|| position(&|entry| entry.gid_type == GidType::RoceV2 && entry.is_routable()))
            .or_else(|| position(&|entry| !entry.is_empty()));
        found.map_or(0, |index| index as u8)
    }

    /// Returns the GID at this index; `None` if the table is shorter or the entry empty.
    pub fn gid(&self, index: u8) -> Option<Gid> {
        let entry = self.gids.get(usize::from(index));
        entry
            .filter(|entry| !entry.is_empty())
            .map(|entry| entry.gid)
    }

    /// Whether the port has this IP address, as its link address or in its GID table.
    pub fn is_at(&self, ip: IpAddr) -> bool {
        self.address == LinkAddress::Ip(ip) || self.gids.iter().any(|entry| entry.ip == Some(ip))
    }

    /// Returns the port's LID; `None` where its link address is of another kind.
    pub const fn lid(&self) -> Option<u16> {
        match self.address {
            LinkAddress::Lid(lid) => Some(lid),
            _ => None,
        }
    }
}

/// What a device offers of one extension: the extension's feature bits and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionFeatures {
    /// Name of the feature set ([`FeatureSet::SET`]).
    pub set: &'static str,
    /// The feature bits that the device offers.
    pub bits: u64,
    /// Names of the bits in `bits`.
    pub names: Vec<&'static str>,
    /// Names and values of the extension's limits on this device.
    pub limits: Vec<(&'static str, u64)>,
}

/// The identity of a model of devices: its vendor, and the versions of its hardware and firmware.
///
/// A program should ask for features and limits rather than for a model. Its bug reports should state the model.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Identity {
    /// The vendor's number: 24 bits, by which its Ethernet addresses begin. A reseller may have set its own.
    pub vendor_id: u32,
    /// The vendor's number of the model.
    pub vendor_part_id: u32,
    /// The version of the hardware; 0 where the device has none.
    pub hw_ver: u32,
    /// The version of the firmware; for an emulated device, of the software.
    pub fw_ver: String,
}

/// The attributes that a device reports (`ibv_query_device`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_query_device_ex")]
pub struct DeviceAttributes {
    /// The device's name, unique among the devices of a registry.
    pub name: String,
    /// Name of the provider that made the device.
    pub provider: &'static str,
    /// The family of protocols that the device speaks.
    pub transport: Transport,
    /// The vendor and the model of the device.
    pub identity: Identity,
    /// GUID of the node; zero where it has none.
    pub node_guid: Guid,
    /// GUID of the system that the node is a part of; zero where it has none.
    pub sys_image_guid: Guid,
    /// The core's opt-in features that the device offers.
    pub features: Features,
    /// The features and limits of extensions that the device offers.
    pub extensions: Vec<ExtensionFeatures>,
    /// The baseline abilities that this device lacks.
    pub gaps: BaselineGaps,
    /// The device's limits, such as the largest number of queue pairs.
    pub limits: Limits,
    /// With respect to what compare-and-swap and fetch-and-add are atomic.
    pub atomic_cap: AtomicScope,
    /// With respect to what masked atomics are atomic; independent of `atomic_cap`.
    pub masked_atomic_cap: AtomicScope,
    /// The attributes of the device's ports, at least one.
    pub ports: Vec<PortAttributes>,
}

impl DeviceAttributes {
    /// Whether the device claims a feature of the core or of an extension.
    pub fn claims(&self, feature: &FeatureInfo) -> bool {
        self.bits_of(feature.set) & feature.bits == feature.bits
    }

    /// Returns the value of a limit of the core or of an extension; 0 where the device does not have the limit.
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

    /// Describes a contradiction in these attributes; `None` if there is none.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn port(address: &str, gids: &[(&str, GidType)]) -> PortAttributes {
        let entry = |&(gid, of_type): &(&str, GidType)| {
            let gid: IpAddr = gid.parse().unwrap();
            GidEntry::new(gid.into(), of_type)
        };
        let address = LinkAddress::Ip(address.parse().unwrap());
        PortAttributes {
            gids: gids.iter().map(entry).collect(),
            ..PortAttributes::new(1, PortCaps::ROCE_V2, address)
        }
    }

    // covers 7.51
    #[test]
    fn the_default_gid_is_of_roce_v2_and_routable() {
        use GidType::{Ib, Iwarp, RoceV1, RoceV2};
        let cases: [(&[(&str, GidType)], u8); 6] = [
            (
                &[
                    ("fe80::1", RoceV1),
                    ("fe80::1", RoceV2),
                    ("10.0.0.2", RoceV1),
                    ("10.0.0.2", RoceV2),
                ],
                3,
            ),
            // The port's own address comes before another address of its interface.
            (&[("10.0.0.9", RoceV2), ("10.0.0.1", RoceV2)], 1),
            (&[("169.254.0.1", RoceV2), ("2001:db8::1", RoceV2)], 1),
            // Without a routable GID, the first entry that is not empty.
            (&[("::", RoceV2), ("fe80::1", RoceV2)], 1),
            (&[("fe80::1", Ib), ("fe80::2", Ib)], 0),
            (&[("270:a00:1::", Iwarp)], 0),
        ];
        for (gids, expected) in cases {
            assert_eq!(
                port("10.0.0.1", gids).default_gid_index(),
                expected,
                "{gids:?}"
            );
        }
        assert_eq!(port("10.0.0.1", &[]).default_gid_index(), 0);
    }

    #[test]
    fn a_port_is_at_the_addresses_of_its_gids_too() {
        let mut port = port("10.0.0.1", &[("10.0.0.2", GidType::RoceV2)]);
        port.address = LinkAddress::Mac([2; 6]);
        assert!(port.is_at(IpAddr::from([10, 0, 0, 2])));
        assert!(!port.is_at(IpAddr::from([10, 0, 0, 1])));
        assert_eq!(port.gid(1), None);
    }

    #[test]
    fn states_are_the_numbers_of_verbs() {
        for code in 0..=6 {
            let state = PortState::from_code(code);
            assert_eq!(state.map(|state| state as u8), (code < 6).then_some(code));
        }
        let active = (0..6)
            .filter_map(PortState::from_code)
            .filter(|state| state.is_active());
        let names: Vec<_> = active.map(PortState::name).collect();
        assert_eq!(names, ["active", "active_defer"]);
        for code in 0..=8 {
            let state = PhysState::from_code(code);
            let expected = (1..8).contains(&code).then_some(code);
            assert_eq!(state.map(|state| state as u8), expected);
        }
    }
}

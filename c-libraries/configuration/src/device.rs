//! The configuration of one emulated RDMA device.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use polyverbs::emulated::{
    self, Contract, EmulatedOptions, FabricPlace, FaultSpec, ROCE_PORT, Tap,
};
use polyverbs_profiles::rule::Rule;
use polyverbs_profiles::{Met, Profile, ProfileDeviceError, Quirk};
use polyverbs_wire::layout::Octets;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use verbs_api::{
    Limit, Transport,
    capability::{Direction, GidEntry, GidSlot, GidType, Identity},
    ids::{Gid, Guid},
};

use crate::profile::ChosenProfile;
use crate::{Attachment, addresses, text};

/// The transport of an emulated device, as named in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportName {
    /// RoCEv2: InfiniBand's transport over UDP.
    #[default]
    Roce,
    /// iWARP: RDMA over TCP.
    Iwarp,
    /// InfiniBand: the adapter of the program's node in an emulated fabric.
    Infiniband,
}

impl TransportName {
    const ALL: [Self; 3] = [Self::Roce, Self::Iwarp, Self::Infiniband];

    /// The prefix of the names of devices with this transport; a number follows it.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Roce | Self::Infiniband => "ib",
            Self::Iwarp => "iw",
        }
    }

    /// The transport of the devices that take on a profile.
    pub fn of(profile: &Profile) -> Self {
        match profile.transport {
            Transport::Iwarp => Self::Iwarp,
            _ => Self::Roce,
        }
    }

    pub(crate) fn takes(self, fault: &FaultSpec) -> Result<(), String> {
        let link = match self {
            Self::Roce | Self::Infiniband => Contract::Datagram,
            Self::Iwarp => Contract::Stream,
        };
        fault.check(link).map_err(|error| error.to_string())
    }
}

impl fmt::Display for TransportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Roce => "roce",
            Self::Iwarp => "iwarp",
            Self::Infiniband => "infiniband",
        })
    }
}

impl FromStr for TransportName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        all.find(|known| known.to_string() == text)
            .ok_or_else(|| format!("transport is roce, iwarp or infiniband, not {text}"))
    }
}

/// The link layer that a device's port reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkLayer {
    /// Ethernet: peers are addressed by GIDs.
    #[default]
    Ethernet,
    /// InfiniBand: peers may also be addressed by LIDs.
    Infiniband,
}

impl FromStr for LinkLayer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ethernet" => Ok(Self::Ethernet),
            "infiniband" => Ok(Self::Infiniband),
            _ => Err(format!("link-layer is ethernet or infiniband, not {text}")),
        }
    }
}

/// A limit of a device that the configuration can lower, by the name that verbs give it, such as `max_qp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitName(pub Limit);

fn lowerable() -> impl Iterator<Item = Limit> {
    let all = Limit::ALL.iter().copied();
    all.filter(|limit| {
        limit.direction() == Direction::LargerIsStronger && *limit != Limit::PhysPortCnt
    })
}

impl FromStr for LimitName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = lowerable().find(|limit| limit.name() == text);
        found.map(Self).ok_or_else(|| {
            let known: Vec<_> = lowerable().map(Limit::name).collect();
            format!("no limit is called {text}; there are {}", known.join(", "))
        })
    }
}

impl Ord for LimitName {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.name().cmp(other.0.name())
    }
}

impl PartialOrd for LimitName {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Serialize for LimitName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.0.name())
    }
}

impl<'de> Deserialize<'de> for LimitName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// The configuration of one emulated RDMA device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Device {
    /// The name by which programs find the device.
    pub name: String,
    /// The transport of the device.
    pub transport: TransportName,
    /// The IP address of the device, one of this machine's. A device in a fabric is not found by it.
    pub address: IpAddr,
    /// The GUID of a device in a fabric, which `polyverbs run` finds out; `None` for one that is derived from the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guid: Option<Octets<8>>,
    /// Whether the device can connect to other processes and machines. If not, it connects only QPs of one process and
    /// sends no packet.
    #[serde(skip_serializing_if = "Clone::clone")]
    pub wire: bool,
    /// Whether the device may exchange data with processes of this machine through shared memory. If not, all traffic goes
    /// over sockets, where it can be captured.
    #[serde(skip_serializing_if = "Clone::clone")]
    pub shared_memory: bool,
    /// Only iWARP: whether the device requests CRCs of FPDUs when it connects. If the peer requests them, they are used in
    /// any case.
    #[serde(skip_serializing_if = "Clone::clone")]
    pub crc: bool,
    /// Only iWARP: whether the passive side of a connection may send before the active side has. MPA forbids it, but
    /// clients on Linux's siw need it when their server sends first.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub speaks_first: bool,
    /// Whether a send queue entry becomes free only when the program polls the completion of the same or a later request,
    /// as with hardware. If not, it becomes free when the request completes.
    #[serde(skip_serializing_if = "Clone::clone")]
    pub strict_signaling: bool,
    /// Only RoCE: the link layer that the device's port reports; `None` for Ethernet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_layer: Option<LinkLayer>,
    /// The faults, such as packet loss, that the device's link injects; `None` for none.
    #[serde(with = "text::optional", skip_serializing_if = "Option::is_none")]
    pub fault: Option<FaultSpec>,
    /// The profile that the device takes on; `None` for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<ChosenProfile>,
    /// The names of quirks of the profile that are turned off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<String>,
    /// The limits of the device that are lowered, each with its new value.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<LimitName, u64>,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            name: String::new(),
            transport: TransportName::default(),
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            guid: None,
            wire: true,
            shared_memory: true,
            crc: true,
            speaks_first: false,
            strict_signaling: true,
            link_layer: None,
            fault: None,
            profile: None,
            except: Vec::new(),
            limits: BTreeMap::new(),
        }
    }
}

// The length of a device name in `struct ibv_device`, with its terminating zero.
const NAME: usize = 64;

impl Device {
    /// Creates the emulated device in this process. `tap`, if any, captures its packets, `fabric` is the place of a device in a
    /// fabric, and `met` is called for each quirk that the program meets.
    ///
    /// # Errors
    /// The address belongs to another user's device, or is not one of this machine; or there is no such place in a fabric.
    pub fn make(
        &self,
        tap: Option<Tap>,
        fabric: Option<&Attachment>,
        met: Met,
    ) -> Result<verbs_api::Device, ProfileDeviceError> {
        let options = EmulatedOptions {
            name: Some(self.name.clone()),
            faults: self.fault.unwrap_or_default(),
            limits: self
                .limits
                .iter()
                .map(|(name, most)| (name.0, *most))
                .collect(),
            tap,
            without_crc: !self.crc,
            speaks_first: self.speaks_first,
            strict_signaling: self.strict_signaling,
            without_shared_memory: !self.shared_memory,
            ..EmulatedOptions::default()
        };
        let kind = match self.transport {
            TransportName::Roce => "ib0",
            TransportName::Iwarp => "iw0",
            TransportName::Infiniband => {
                let place = fabric.cloned().unwrap_or_default();
                let fabric = Some(FabricPlace {
                    socket: place.socket,
                    node: place.node,
                });
                return Ok(emulated::device(
                    "ib0",
                    &EmulatedOptions { fabric, ..options },
                )?);
            }
        };
        if let Some(chosen) = &self.profile {
            let options = EmulatedOptions {
                at: self.wire.then(|| SocketAddr::new(self.address, ROCE_PORT)),
                ..options
            };
            return chosen.profile().device_telling(&options, &self.except, met);
        }
        Ok(match self.wire {
            true => emulated::device_at(kind, self.address, &options),
            false => emulated::device(kind, &options),
        }?)
    }

    /// The vendor and the model that the device has by its profile; `None` for those of this project.
    pub fn identity(&self) -> Option<Identity> {
        self.taken_on()?.identity()
    }

    /// The profile that the device takes on; `None` for none.
    pub fn taken_on(&self) -> Option<&Profile> {
        self.profile.as_ref().map(ChosenProfile::profile)
    }

    /// The quirks of the profile that the device has.
    fn quirks(&self) -> impl Iterator<Item = &Quirk> {
        let all = self.taken_on().into_iter();
        let all = all.flat_map(|profile| &profile.quirks);
        all.filter(|quirk| !self.except.contains(&quirk.name()))
    }

    /// The error number and the name of the quirk with which a query of a queue pair for these attributes is refused.
    pub fn query_refusal(&self, mask: u32) -> Option<(i32, String)> {
        self.quirks().find_map(|quirk| match quirk.rule {
            Rule::QueryQpMask { attributes, errno } if mask & !attributes != 0 => {
                Some((errno as i32, quirk.name()))
            }
            _ => None,
        })
    }

    /// What a C program's request for a queue pair meets by the profile, before the device is asked: the error number and the
    /// name of the quirk.
    pub fn qp_refusal(
        &self,
        has_type: bool,
        has_srq: bool,
        max_recv_wr: u32,
    ) -> Option<(i32, String)> {
        let profile = self.taken_on()?;
        let max_qp_wr = profile
            .limit(Limit::MaxQpWr)
            .map_or(u64::MAX, |(most, _)| most);
        self.quirks().find_map(|quirk| {
            let errno = match quirk.rule {
                Rule::QpTypeRefused { errno } if !has_type => errno,
                Rule::ChecksUnused { errno } if has_srq && u64::from(max_recv_wr) > max_qp_wr => {
                    errno
                }
                _ => return None,
            };
            Some((errno as i32, quirk.name()))
        })
    }

    /// The link layer that the device's port reports.
    pub fn link_layer(&self) -> LinkLayer {
        let of_profile = || {
            let profile = self.taken_on()?;
            profile.is_infiniband()?.then_some(LinkLayer::Infiniband)
        };
        match self.is_in_fabric() {
            true => LinkLayer::Infiniband,
            false => self.link_layer.or_else(of_profile).unwrap_or_default(),
        }
    }

    /// Whether the device is the adapter of a node in a fabric.
    pub fn is_in_fabric(&self) -> bool {
        self.transport == TransportName::Infiniband
    }

    /// The GUID of the device: that of its node in a fabric, or else locally administered and derived from its address.
    pub fn guid(&self) -> [u8; 8] {
        let transport = match self.transport {
            TransportName::Roce | TransportName::Infiniband => Transport::InfiniBand,
            TransportName::Iwarp => Transport::Iwarp,
        };
        match self.guid {
            Some(guid) => guid.0,
            None => Guid::software(transport, self.address).0,
        }
    }

    /// The GID table of the device's port, by index.
    pub fn gids(&self) -> Vec<GidEntry> {
        let (gids, gid_type) = match self.transport {
            TransportName::Roce => (Gid::roce_table(self.address).to_vec(), GidType::RoceV2),
            TransportName::Iwarp => (vec![Gid::iwarp(self.address)], GidType::Iwarp),
            // A subnet manager assigns them.
            TransportName::Infiniband => return Vec::new(),
        };
        let gids = gids.into_iter().map(|gid| GidEntry::new(gid, gid_type));
        let gids: Vec<_> = gids.collect();
        let layout = self
            .profile
            .as_ref()
            .and_then(|chosen| chosen.profile().gids());
        match layout {
            Some(slots) => GidSlot::lay_out(&slots, &gids),
            None => gids,
        }
    }

    /// The LID of the device's port, the last 16 bits of its address; `None` if its port does not report InfiniBand, or a
    /// subnet manager assigns its LID.
    pub fn lid(&self) -> Option<u16> {
        let infiniband = self.link_layer() == LinkLayer::Infiniband && !self.is_in_fabric();
        infiniband.then(|| match self.address {
            IpAddr::V4(ip) => u16::from_be_bytes([ip.octets()[2], ip.octets()[3]]),
            IpAddr::V6(ip) => ip.segments()[7],
        })
    }

    /// The address of the peer with this LID: the device's own address with the last 16 bits replaced by the LID.
    pub fn neighbour(&self, lid: u16) -> IpAddr {
        match self.address {
            IpAddr::V4(ip) => {
                let [first, second, ..] = ip.octets();
                let [third, fourth] = lid.to_be_bytes();
                IpAddr::from([first, second, third, fourth])
            }
            IpAddr::V6(ip) => {
                let mut segments = ip.segments();
                segments[7] = lid;
                IpAddr::from(segments)
            }
        }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let Self {
            name, transport, ..
        } = self;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if name.is_empty() || name.starts_with('.') || !name.bytes().all(plain) {
            return Err(format!(
                "a device's name has letters, digits, _, - and ., not {name:?}"
            ));
        }
        if name.len() >= NAME {
            return Err(format!("{name}: a name has less than {NAME} letters"));
        }
        let address = self.address;
        if address.is_unspecified() || address.is_multicast() {
            return Err(format!("{name}: {address} is no address of one machine"));
        }
        if matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
            return Err(format!("{name}: {address} is an address of one link only"));
        }
        if let Some(chosen) = &self.profile {
            let profile = chosen.profile();
            if TransportName::of(profile) != *transport {
                return Err(format!(
                    "{name}: {} is the profile of {} devices",
                    profile.name,
                    TransportName::of(profile)
                ));
            }
            profile
                .check_except(&self.except)
                .map_err(|error| error.to_string())?;
        } else if !self.except.is_empty() {
            return Err(format!(
                "{name}: `except` is for the quirks of a profile, and there is none"
            ));
        }
        if self.link_layer.is_some() && *transport != TransportName::Roce {
            return Err(format!("{name}: a link layer is a RoCE device's"));
        }
        if self.is_in_fabric() && !self.wire {
            return Err(format!("{name}: a device in a fabric has a wire"));
        }
        if !self.crc && *transport != TransportName::Iwarp {
            return Err(format!("{name}: only iWARP devices do without checksums"));
        }
        if self.speaks_first && *transport != TransportName::Iwarp {
            return Err(format!(
                "{name}: only iWARP devices have to be told to speak first"
            ));
        }
        match &self.fault {
            Some(fault) => transport
                .takes(fault)
                .map_err(|error| format!("{name}: {error}")),
            None => Ok(()),
        }
    }
}

impl FromStr for Device {
    type Err = String;

    /// Parses `name=…,transport=…,address=…,wire=no,shared-memory=no,crc=no,speaks-first=yes,strict-signaling=no,profile=…,
    /// except=…`, all optional. Lowered limits follow by their names. A profile determines the transport.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut device = Self::default();
        let mut transport = None;
        for clause in text.split(',').map(str::trim) {
            let (key, value) = clause
                .split_once('=')
                .ok_or_else(|| format!("{clause:?} is not of the form key=value"))?;
            let key = key.trim();
            match key {
                "name" => value.clone_into(&mut device.name),
                "transport" => transport = Some(value.parse()?),
                "profile" => {
                    let chosen = value.parse::<ChosenProfile>();
                    device.profile = Some(chosen.map_err(|error| error.to_string())?);
                }
                "except" => device.except.push(value.to_owned()),
                "address" => {
                    device.address = value.parse().map_err(|_| match value.contains('%') {
                        true => format!(
                            "{value} has a scope, and devices are not at addresses of one link"
                        ),
                        false => format!("{value} is no IP address"),
                    })?;
                }
                "wire" => device.wire = yes_or_no(key, value)?,
                "shared-memory" => device.shared_memory = yes_or_no(key, value)?,
                "crc" => device.crc = yes_or_no(key, value)?,
                "speaks-first" => device.speaks_first = yes_or_no(key, value)?,
                "strict-signaling" => device.strict_signaling = yes_or_no(key, value)?,
                "link-layer" => device.link_layer = Some(value.parse()?),
                "fault" => {
                    let fault = value.parse::<FaultSpec>();
                    device.fault = Some(fault.map_err(|error| error.to_string())?);
                }
                limit => {
                    let name = limit.parse::<LimitName>().map_err(|_| {
                        format!(
                            "{limit} is none of name, transport, address, wire, shared-memory, crc, speaks-first, strict-signaling, link-layer, fault, profile, except, and no limit"
                        )
                    })?;
                    let number = value.parse();
                    let number = number.map_err(|_| format!("{limit}: {value} is no number"))?;
                    device.limits.insert(name, number);
                }
            }
        }
        let of_profile = device
            .profile
            .as_ref()
            .map(|it| TransportName::of(it.profile()));
        device.transport = transport.or(of_profile).unwrap_or_default();
        Ok(device)
    }
}

fn yes_or_no(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("{key} is yes or no, not {value}")),
    }
}

/// A device that takes on this profile, without these quirks, at each of the [`addresses()`] of this machine.
pub fn devices_as(chosen: &ChosenProfile, except: &[String]) -> Vec<Device> {
    let transport = TransportName::of(chosen.profile());
    let numbered = addresses().into_iter().enumerate();
    let devices = numbered.map(|(number, address)| Device {
        name: format!("{}{number}", transport.prefix()),
        transport,
        address,
        profile: Some(chosen.clone()),
        except: except.to_vec(),
        ..Device::default()
    });
    devices.collect()
}

/// One RoCE and one iWARP device at each of the [`addresses()`] of this machine.
pub fn default_devices() -> Vec<Device> {
    let numbered = addresses().into_iter().enumerate();
    numbered
        .flat_map(|(number, address)| {
            [TransportName::Roce, TransportName::Iwarp].map(|transport| Device {
                name: format!("{}{number}", transport.prefix()),
                transport,
                address,
                ..Device::default()
            })
        })
        .collect()
}

//! Identifiers with rules of their own: queue pair numbers, packet sequence numbers, memory keys, addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::transport::Transport;

const MASK_24: u32 = 0x00ff_ffff;

/// A queue pair number: 24 bits, stored in host byte order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The destination queue pair number of every multicast datagram.
    pub const MULTICAST: Self = Self(MASK_24);

    /// Makes a queue pair number of the low 24 bits of `number`.
    pub const fn new(number: u32) -> Self {
        Self(number & MASK_24)
    }

    /// Returns the number, 0 to 2^24 - 1.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#08x})", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A packet sequence number: 24 bits, compared only modulo 2^24, so it has no `Ord`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Makes a PSN of the low 24 bits of `number`.
    pub const fn new(number: u32) -> Self {
        Self(number & MASK_24)
    }

    /// Returns the number, 0 to 2^24 - 1.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns the PSN that is `packets` after this one, modulo 2^24.
    #[must_use]
    pub const fn plus(self, packets: u32) -> Self {
        Self(self.0.wrapping_add(packets) & MASK_24)
    }

    /// Returns the PSN that is `packets` before this one, modulo 2^24.
    #[must_use]
    pub const fn minus(self, packets: u32) -> Self {
        Self(self.0.wrapping_sub(packets) & MASK_24)
    }

    /// Returns how many packets `self` is after `earlier`; negative if it is before. Distances are below 2^23 in either
    /// direction.
    pub const fn distance_from(self, earlier: Self) -> i32 {
        ((self.0.wrapping_sub(earlier.0) << 8) as i32) >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

macro_rules! memory_key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// 32 bits: a 24-bit index that the device owns (high bits) and an 8-bit key that the consumer owns (low bits).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[doc(alias = "ibv_inc_rkey")]
        #[repr(transparent)]
        pub struct $name(u32);

        impl $name {
            /// Makes the key with exactly these 32 bits.
            pub const fn new(bits: u32) -> Self {
                Self(bits)
            }

            /// Returns all 32 bits of the key.
            pub const fn value(self) -> u32 {
                self.0
            }

            /// Returns the 24-bit index of the key, owned by the device.
            pub const fn index(self) -> u32 {
                self.0 >> 8
            }

            /// Returns the 8-bit consumer part of the key, owned by the program.
            pub const fn key_byte(self) -> u8 {
                self.0 as u8
            }

            /// Returns the key with the same index and this consumer key.
            #[must_use]
            pub const fn with_key_byte(self, key: u8) -> Self {
                Self((self.0 & !0xff) | key as u32)
            }

            /// Returns the key with the next consumer key, which wraps within the low byte.
            #[must_use]
            pub const fn next(self) -> Self {
                self.with_key_byte(self.key_byte().wrapping_add(1))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#010x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#010x}", self.0)
            }
        }
    };
}

memory_key! {
    /// The key by which a local work request names registered memory (L_Key).
    LKey
}
memory_key! {
    /// The key by which a peer names registered memory or a window (R_Key).
    ///
    /// ```
    /// use verbs_api::RKey;
    /// let rkey = RKey::new(0x1234_5601);
    /// assert_eq!((rkey.index(), rkey.key_byte()), (0x12_3456, 1));
    /// assert_eq!(rkey.next(), RKey::new(0x1234_5602), "of the same index, for the next use");
    /// ```
    RKey
}
memory_key! {
    /// iWARP's steering tag: one key for local and remote use.
    STag
}

impl From<STag> for LKey {
    fn from(stag: STag) -> Self {
        Self::new(stag.value())
    }
}

impl From<STag> for RKey {
    fn from(stag: STag) -> Self {
        Self::new(stag.value())
    }
}

impl From<RKey> for STag {
    fn from(rkey: RKey) -> Self {
        Self::new(rkey.value())
    }
}

/// A port of a device, counted from 1.
pub type Port = u8;

/// A global identifier (GID): 16 bytes in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[doc(alias = "ibv_gid")]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether the GID names a multicast group: its first byte is 0xff, or it is an IPv4 group as IPv6 maps it
    /// (`::ffff:239.1.1.1`).
    pub fn is_multicast(self) -> bool {
        self.group_address().is_some()
    }

    /// Returns the IP address of the multicast group that the GID names; `None` if it names none. An IPv4 group has two
    /// GIDs: RoCEv2 maps it as IPv6 does, and Linux's connection manager uses `ff0e::ffff:a.b.c.d` elsewhere.
    pub fn group_address(self) -> Option<IpAddr> {
        let ip = match self.0 {
            [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] if a & 0xf0 == 0xe0 => {
                IpAddr::from([a, b, c, d])
            }
            _ => self.as_ip(),
        };
        ip.is_multicast().then_some(ip)
    }

    /// Returns the GID table of the software RoCE device at `address`, as Linux fills it: the
    /// [link-local](Self::link_local) GID, and then that of the address.
    pub fn roce_table(address: IpAddr) -> [Self; 2] {
        [Self::link_local(address), address.into()]
    }

    /// Returns the GID of the software iWARP device at `address`: its Ethernet address, then zeros.
    pub fn iwarp(address: IpAddr) -> Self {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&software_mac(address));
        Self(bytes)
    }

    /// Returns the link-local GID of the software RoCE device at `address`.
    ///
    /// For IPv4 it contains the EUI-64 of an Ethernet address that is made of the IPv4 address, for IPv6 the interface
    /// identifier. [`to_ip`](Self::to_ip) converts it back.
    pub fn link_local(address: IpAddr) -> Self {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&LINK_LOCAL);
        bytes[8..].copy_from_slice(&match address {
            IpAddr::V4(_) => eui_64(software_mac(address)),
            IpAddr::V6(ip) => interface_identifier(ip),
        });
        Self(bytes)
    }

    /// Returns the IP address of the RoCEv2 device with this GID. `own` is the address of the device that asks: a
    /// [link-local](Self::link_local) GID of an IPv6 address is that of a neighbour with the same prefix.
    pub fn to_ip(self, own: IpAddr) -> IpAddr {
        let ip = Ipv6Addr::from(self.0);
        let [.., a, b, c, d, e, f, g, h] = self.0;
        match own {
            IpAddr::V4(_) if self == Self::link_local(IpAddr::from([c, f, g, h])) => {
                IpAddr::from([c, f, g, h])
            }
            IpAddr::V6(own) if ip.is_unicast_link_local() && !own.is_unicast_link_local() => {
                let mut bytes = own.octets();
                bytes[8..].copy_from_slice(&[a, b, c, d, e, f, g, h]);
                IpAddr::from(bytes)
            }
            _ => self.as_ip(),
        }
    }

    /// Returns the 16 bytes as an IP address: IPv4 if they are an IPv4-mapped IPv6 address.
    pub fn as_ip(self) -> IpAddr {
        let ip = Ipv6Addr::from(self.0);
        ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
    }
}

/// A globally unique identifier (GUID) of a node, a port or a system: 8 bytes in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[doc(alias = "ibv_get_device_guid")]
pub struct Guid(pub [u8; 8]);

impl Guid {
    /// Returns the GUID of the software device at `address`: locally administered, and containing the end of the address.
    pub fn software(transport: Transport, address: IpAddr) -> Self {
        let [a, b, c, d] = last_four(address);
        Self([0x02, 0x70, 0x76, transport as u8, a, b, c, d])
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

const LINK_LOCAL: [u8; 2] = [0xfe, 0x80];

// A software device has no Ethernet address: this one is locally administered, with the end of its IP address.
fn software_mac(address: IpAddr) -> [u8; 6] {
    let [a, b, c, d] = last_four(address);
    [0x02, 0x70, a, b, c, d]
}

fn last_four(address: IpAddr) -> [u8; 4] {
    match address {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            [a, b, c, d]
        }
    }
}

// RFC 4291, appendix A: the bit for universal addresses is inverted.
const fn eui_64([a, b, c, d, e, f]: [u8; 6]) -> [u8; 8] {
    [a ^ 0x02, b, c, 0xff, 0xfe, d, e, f]
}

const fn interface_identifier(ip: Ipv6Addr) -> [u8; 8] {
    let [.., a, b, c, d, e, f, g, h] = ip.octets();
    [a, b, c, d, e, f, g, h]
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Self(ip.to_ipv6_mapped().octets())
    }
}

/// Converts an IP address to the GID that RoCEv2 uses, also for a multicast group: an IPv4 address is IPv4-mapped.
impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) => Self(ip.octets()),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// The address of a port on its link, whose kind depends on the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LinkAddress {
    /// The number of a port of an in-process network.
    InProcess(u64),
    /// An IP address, the link address of RoCEv2 and iWARP ports.
    Ip(IpAddr),
    /// A local identifier (LID), the link address of InfiniBand ports.
    Lid(u16),
    /// An Ethernet address, of ports whose IP address is not known.
    Mac([u8; 6]),
}

impl LinkAddress {
    /// Returns the IP address, or a stand-in where a software device derives identifiers from it: an in-process port's
    /// number as an IPv4 address, otherwise the unspecified address.
    pub fn ip_or_stand_in(self) -> IpAddr {
        match self {
            Self::Ip(ip) => ip,
            Self::InProcess(number) => Ipv4Addr::from_bits(number as u32).into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        }
    }

    /// Returns the link address of the peer with this GID, as seen from a port with this address. On an in-process network
    /// GIDs name a port by an IPv4 address: 127, and the low 24 bits of its number.
    #[must_use]
    pub fn peer(self, gid: Gid) -> Self {
        match self {
            Self::Ip(own) => Self::Ip(gid.group_address().unwrap_or_else(|| gid.to_ip(own))),
            Self::InProcess(_) => match gid.as_ip() {
                IpAddr::V4(ip) => Self::InProcess(u64::from(ip.to_bits() & MASK_24)),
                IpAddr::V6(_) => self,
            },
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers 2.01
    #[test]
    fn the_consumer_key_wraps_within_the_low_byte() {
        assert_eq!(RKey::new(0x1234_56ff).next(), RKey::new(0x1234_5600));
        let mut key = RKey::new(0xabcd_ef42);
        for _ in 0..256 {
            key = key.next();
            assert_eq!(key.index(), 0xab_cdef);
        }
        assert_eq!(key, RKey::new(0xabcd_ef42));
    }

    #[test]
    fn psn_distance_is_modulo_2_24() {
        assert_eq!(Psn::new(1).distance_from(Psn::new(0xff_ffff)), 2);
        assert_eq!(Psn::new(0xff_fffe).distance_from(Psn::new(3)), -5);
        assert_eq!(Psn::new(0x80_0000).distance_from(Psn::new(0)), -(1 << 23));
        assert_eq!(Psn::new(0xff_fffe).plus(4), Psn::new(2));
        assert_eq!(Psn::new(2).minus(4), Psn::new(0xff_fffe));
    }

    // covers 7.51
    #[test]
    fn a_link_local_gid_tells_the_address_of_its_device() {
        for (address, gid, own) in [
            ("10.1.2.3", "fe80::70:aff:fe01:203", "192.0.2.1"),
            ("127.0.0.1", "fe80::70:7fff:fe00:1", "127.0.0.1"),
            (
                "2001:db8::70:7fff:fe00:1",
                "fe80::70:7fff:fe00:1",
                "2001:db8::5",
            ),
            ("::1", "fe80::1", "::1"),
        ] {
            let (address, own) = (address.parse().unwrap(), own.parse().unwrap());
            let link_local = Gid::link_local(address);
            assert_eq!(link_local.to_string(), gid);
            assert_eq!(link_local.to_ip(own), address);
            assert_eq!(Gid::from(address).to_ip(own), address);
        }
        // A device at an IPv4 address cannot derive an address from the GID of a port that is not a software device's.
        let foreign: Ipv6Addr = "fe80::42:aff:fe01:203".parse().unwrap();
        let own = IpAddr::from([10, 1, 2, 4]);
        assert_eq!(Gid(foreign.octets()).to_ip(own), IpAddr::V6(foreign));
    }
}

//! Numbers that have rules of their own: queue pair numbers, packet sequence numbers, memory keys, addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::transport::Transport;

const MASK_24: u32 = 0x00ff_ffff;

/// A queue pair number: 24 bits, host order here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The destination of every multicast datagram.
    pub const MULTICAST: Self = Self(MASK_24);

    /// The low 24 bits of `number`.
    pub const fn new(number: u32) -> Self {
        Self(number & MASK_24)
    }

    /// The number, 0 to 2^24 - 1.
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
    /// The low 24 bits of `number`.
    pub const fn new(number: u32) -> Self {
        Self(number & MASK_24)
    }

    /// The number, 0 to 2^24 - 1.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// This number advanced by `packets`, modulo 2^24.
    #[must_use]
    pub const fn plus(self, packets: u32) -> Self {
        Self(self.0.wrapping_add(packets) & MASK_24)
    }

    /// This number taken back by `packets`, modulo 2^24.
    #[must_use]
    pub const fn minus(self, packets: u32) -> Self {
        Self(self.0.wrapping_sub(packets) & MASK_24)
    }

    /// How far `self` lies ahead of `earlier`: negative when it lies behind. Half-window 2^23.
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
            /// The key with exactly these 32 bits.
            pub const fn new(bits: u32) -> Self {
                Self(bits)
            }

            /// All 32 bits.
            pub const fn value(self) -> u32 {
                self.0
            }

            /// The 24-bit index, owned by the device.
            pub const fn index(self) -> u32 {
                self.0 >> 8
            }

            /// The 8-bit key, owned by the consumer.
            pub const fn key_byte(self) -> u8 {
                self.0 as u8
            }

            /// The same index with another consumer key.
            #[must_use]
            pub const fn with_key_byte(self, key: u8) -> Self {
                Self((self.0 & !0xff) | key as u32)
            }

            /// The next consumer key; wraps within the low byte.
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

/// A global identifier: 16 bytes, network order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[doc(alias = "ibv_gid")]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether this names a multicast group: its first byte is 0xff, or it is an IPv4 group as IPv6 maps it
    /// (`::ffff:239.1.1.1`).
    pub fn is_multicast(self) -> bool {
        self.group_address().is_some()
    }

    /// The IP address of the multicast group that this names. A group of IPv4 has two names: as IPv6 maps it, which is that of
    /// RoCEv2, and `ff0e::ffff:a.b.c.d`, which Linux's connection manager uses elsewhere.
    pub fn group_address(self) -> Option<IpAddr> {
        let ip = match self.0 {
            [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] if a & 0xf0 == 0xe0 => {
                IpAddr::from([a, b, c, d])
            }
            _ => self.as_ip(),
        };
        ip.is_multicast().then_some(ip)
    }

    /// The GID table of the software RoCE device at `address`, as Linux fills it: the [link-local](Self::link_local) one,
    /// and behind it that of the address.
    pub fn roce_table(address: IpAddr) -> [Self; 2] {
        [Self::link_local(address), address.into()]
    }

    /// The GID of the software iWARP device at `address`: its Ethernet address, zeros behind it.
    pub fn iwarp(address: IpAddr) -> Self {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&software_mac(address));
        Self(bytes)
    }

    /// The link-local GID of the software RoCE device at `address`.
    ///
    /// Of IPv4 it is the EUI-64 of an Ethernet address that has the IPv4 address in it, of IPv6 the interface identifier:
    /// the GID [tells the address](Self::to_ip).
    pub fn link_local(address: IpAddr) -> Self {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&LINK_LOCAL);
        bytes[8..].copy_from_slice(&match address {
            IpAddr::V4(_) => eui_64(software_mac(address)),
            IpAddr::V6(ip) => interface_identifier(ip),
        });
        Self(bytes)
    }

    /// The IP address of the RoCEv2 device with this GID, asked by a device at `own`: a [link-local](Self::link_local) GID
    /// of an IPv6 address names a neighbour, with the same prefix.
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

    /// The IP address that these bytes are: of IPv4 where they are one that IPv6 maps.
    pub fn as_ip(self) -> IpAddr {
        let ip = Ipv6Addr::from(self.0);
        ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
    }
}

/// A GUID of a node, a port or a system: 8 bytes, network order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[doc(alias = "ibv_get_device_guid")]
pub struct Guid(pub [u8; 8]);

impl Guid {
    /// The GUID of the software device at `address`: locally administered, with the end of the address.
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

/// That of RoCEv2, also of a multicast group: IPv4 as IPv6 maps it.
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

/// Where a port is found on its link: each transport has its own kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LinkAddress {
    /// A port of an in-process network.
    InProcess(u64),
    /// An IP address: RoCEv2 and iWARP.
    Ip(IpAddr),
    /// A local identifier of an InfiniBand subnet.
    Lid(u16),
    /// An Ethernet address.
    Mac([u8; 6]),
}

impl LinkAddress {
    /// The IP address, or one that stands for it where a software device derives numbers from its address: of a port of an
    /// in-process network its number as IPv4, else the unspecified one.
    pub fn ip_or_stand_in(self) -> IpAddr {
        match self {
            Self::Ip(ip) => ip,
            Self::InProcess(number) => Ipv4Addr::from_bits(number as u32).into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        }
    }

    /// The peer's address that `gid` stands for, as seen by a port with this address. On an in-process network routing headers name a
    /// port by an IPv4 address: 127, and 24 bits of its number.
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
        // That of somebody else's port tells nothing to a device at an IPv4 address.
        let foreign: Ipv6Addr = "fe80::42:aff:fe01:203".parse().unwrap();
        let own = IpAddr::from([10, 1, 2, 4]);
        assert_eq!(Gid(foreign.octets()).to_ip(own), IpAddr::V6(foreign));
    }
}

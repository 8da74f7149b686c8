use core::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    byteorder::big_endian::{U16, U32, U64},
};

/// A version of the RDS protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub struct Version {
    /// The major version number.
    pub major: u8,
    /// The minor version number.
    pub minor: u8,
}

impl Version {
    /// Version 3.1.
    pub const V3_1: Self = Self { major: 3, minor: 1 };
    /// Version 4.0.
    pub const V4_0: Self = Self { major: 4, minor: 0 };
    /// Version 4.1.
    pub const V4_1: Self = Self { major: 4, minor: 1 };
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The minor versions of major version 4 that Linux and this project speak: bit n for version 4.n.
pub const MINOR_MASK: u16 = 3;

/// The private data of an RDS connection: of the request, which proposes a version, and of the reply, which states the
/// agreed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub struct ConnectData {
    /// The IP address of the end that sends the private data.
    pub source: IpAddr,
    /// The IP address of the end that receives it.
    pub destination: IpAddr,
    /// The proposed or the agreed version.
    pub version: Version,
    /// The minor versions of major version 4 that the sender speaks: bit n for version 4.n.
    pub minor_mask: u16,
    /// The class of service (TOS). Each class has a connection of its own.
    pub tos: u8,
    /// The number of the sending process among the processes of this project at one address; 0 is the process to which
    /// peers connect. Linux sends 0 in these bytes and ignores them.
    #[cfg_attr(feature = "serde", serde(default))]
    pub member: u16,
    /// The highest sequence number that has arrived over earlier connections; 0 if the sender does not state it.
    pub ack_sequence: u64,
    /// The number of receives that the sender has posted, if it offers flow control; otherwise 0.
    pub credit: u32,
    /// A random number that a host chooses when it starts, so that the peer notices a restart. 0 if it is not stated: Linux
    /// sends 0, because these bytes are padding there.
    #[cfg_attr(feature = "serde", serde(default))]
    pub incarnation: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout<Address> {
    source: Address,
    destination: Address,
    major: u8,
    minor: u8,
    minor_mask: U16,
    tos: u8,
    reserved: u8,
    member: U16,
    ack_sequence: U64,
    credit: U32,
    incarnation: U32,
}

const _: () = assert!(size_of::<Layout<[u8; 4]>>() == 32);
const _: () = assert!(size_of::<Layout<[u8; 16]>>() == 56);

impl ConnectData {
    /// Decodes the private data of a connection between IPv6 addresses if `is_v6`, otherwise between IPv4 addresses.
    /// Padding of the connection manager may follow it. Returns `None` if it is too short.
    pub fn parse(private_data: &[u8], is_v6: bool) -> Option<Self> {
        if is_v6 {
            Self::of::<[u8; 16]>(private_data, |address| Ipv6Addr::from(address).into())
        } else {
            Self::of::<[u8; 4]>(private_data, |address| Ipv4Addr::from(address).into())
        }
    }

    fn of<Address>(bytes: &[u8], address: impl Fn(Address) -> IpAddr) -> Option<Self>
    where
        Address: FromBytes + Copy,
        Layout<Address>: FromBytes,
    {
        let (layout, _) = Layout::<Address>::read_from_prefix(bytes).ok()?;
        Some(Self {
            source: address(layout.source),
            destination: address(layout.destination),
            version: Version {
                major: layout.major,
                minor: layout.minor,
            },
            minor_mask: layout.minor_mask.get(),
            tos: layout.tos,
            member: layout.member.get(),
            ack_sequence: layout.ack_sequence.get(),
            credit: layout.credit.get(),
            incarnation: layout.incarnation.get(),
        })
    }

    /// Encodes the private data: 32 bytes if both addresses are IPv4, otherwise 56.
    pub fn to_bytes(&self) -> Vec<u8> {
        if let (IpAddr::V4(source), IpAddr::V4(destination)) = (self.source, self.destination) {
            self.layout(source.octets(), destination.octets())
                .as_bytes()
                .to_vec()
        } else {
            let octets = |address| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            self.layout(octets(self.source), octets(self.destination))
                .as_bytes()
                .to_vec()
        }
    }

    fn layout<Address>(&self, source: Address, destination: Address) -> Layout<Address> {
        Layout {
            source,
            destination,
            major: self.version.major,
            minor: self.version.minor,
            minor_mask: self.minor_mask.into(),
            tos: self.tos,
            reserved: 0,
            member: self.member.into(),
            ack_sequence: self.ack_sequence.into(),
            credit: self.credit.into(),
            incarnation: self.incarnation.into(),
        }
    }

    /// Returns the version with which to answer this proposal, by the rules of Linux; `None` if the connection must be
    /// refused.
    ///
    /// Major version 0 comes from an old peer, which has left these bytes at zero. It is answered with 4.0.
    pub fn agreed(&self) -> Option<Version> {
        let common = self.minor_mask & MINOR_MASK;
        match self.version {
            Version { major: 0, .. } => Some(Version::V4_0),
            Version { major: 4, .. } if common != 0 => Some(Version {
                major: 4,
                minor: common.ilog2() as u8,
            }),
            Version::V3_1 => Some(Version::V3_1),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;

    fn proposal(version: Version, minor_mask: u16) -> ConnectData {
        ConnectData {
            source: [192, 0, 2, 1].into(),
            destination: [192, 0, 2, 2].into(),
            version,
            minor_mask,
            tos: 6,
            member: 0,
            ack_sequence: 0x0102_0304_0506_0708,
            credit: 0x0a0b_0c0d,
            incarnation: 0x0e0f_1011,
        }
    }

    // covers 8.28
    #[test]
    fn private_data_between_ipv4_addresses_is_32_bytes() {
        let data = proposal(Version::V4_1, 3);
        let bytes =
            hex!("c0000201 c0000202 04 01 0003 06 000000 0102030405060708 0a0b0c0d 0e0f1011");
        assert_eq!(data.to_bytes(), bytes);
        assert_eq!(ConnectData::parse(&bytes, false), Some(data));
        assert_eq!(ConnectData::parse(&bytes[..31], false), None);
        let padded = [&bytes[..], &[0; 24]].concat();
        assert_eq!(ConnectData::parse(&padded, false), Some(data));
    }

    // covers 8.28
    #[test]
    fn private_data_between_ipv6_addresses_is_56_bytes() {
        let data = ConnectData {
            source: "2001:db8::1".parse().unwrap(),
            destination: "2001:db8::2".parse().unwrap(),
            ..proposal(Version::V3_1, 3)
        };
        let bytes = hex!(
            "20010db8000000000000000000000001 20010db8000000000000000000000002"
            "03 01 0003 06 000000 0102030405060708 0a0b0c0d 0e0f1011"
        );
        assert_eq!(data.to_bytes(), bytes);
        assert_eq!(ConnectData::parse(&bytes, true), Some(data));
        assert_eq!(ConnectData::parse(&bytes[..55], true), None);
    }

    // covers 8.28
    #[test]
    fn the_answer_is_the_highest_minor_of_4_that_both_speak() {
        let of_4 = |minor_mask| proposal(Version::V4_1, minor_mask).agreed();
        assert_eq!(of_4(1), Some(Version::V4_0));
        assert_eq!(of_4(2), Some(Version::V4_1));
        assert_eq!(of_4(3), Some(Version::V4_1));
        assert_eq!(of_4(0xffff), Some(Version::V4_1));
        assert_eq!(of_4(0xfffd), Some(Version::V4_0));
        assert_eq!(of_4(0xfffc), None);
    }

    // covers 8.28
    #[test]
    fn of_major_version_3_only_3_1_is_accepted() {
        let of = |major, minor| proposal(Version { major, minor }, 3).agreed();
        assert_eq!(of(3, 1), Some(Version::V3_1));
        assert_eq!(of(3, 0), None);
        assert_eq!(of(3, 2), None);
        assert_eq!(of(5, 0), None);
        assert_eq!(of(0, 0), Some(Version::V4_0));
    }

    #[test]
    fn versions_have_an_order() {
        assert!(Version::V3_1 < Version::V4_0 && Version::V4_0 < Version::V4_1);
    }
}

//! The header that the RDMA connection manager puts in front of the private data of programs (IBTA
//! annex A11).
//!
//! REQ and SIDR_REQ messages carry it. It has the IP addresses of both ends and the source port.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::layout::{Octets, Reserved, header};

header! {
    /// The header that the RDMA connection manager puts in front of the private data of a REQ or SIDR_REQ.
    RdmaCm, RdmaCmView: 36 octets {
        version: u8 = 8, "Version of the header: 0.";
        ip_version: u8 = 4, "The version of IP of both addresses: 4 or 6.";
        reserved: Reserved = 4, "Zero.";
        source_port: u16 = 16, "The sender's port.";
        source: Octets<16> = 128, "The sender's address; an IPv4 address is in the last four bytes.";
        destination: Octets<16> = 128, "The receiver's address; an IPv4 address is in the last four bytes.";
    }
}

/// The port spaces of the RDMA connection manager, which are part of service IDs.
pub mod port_space {
    /// The port space of connections.
    pub const TCP: u16 = 0x0106;
    /// The port space of datagram services.
    pub const UDP: u16 = 0x0111;
    /// The port space of InfiniBand, of connections and datagram services alike.
    pub const IB: u16 = 0x013f;
}

/// Returns the service ID of a port in a port space.
pub const fn service_id(port_space: u16, port: u16) -> u64 {
    (port_space as u64) << 16 | port as u64
}

/// Returns the port space and the port of a service ID; `None` if the service ID is not one of the RDMA connection manager.
pub const fn port_of(service_id: u64) -> Option<(u16, u16)> {
    let port_space = (service_id >> 16) as u16;
    let is_known = matches!(
        port_space,
        port_space::TCP | port_space::UDP | port_space::IB
    );
    let is_ours = is_known && service_id >> 32 == 0;
    if is_ours {
        Some((port_space, service_id as u16))
    } else {
        None
    }
}

impl RdmaCm {
    /// Creates the header for a connection from `source` to `destination`; `None` if one address is IPv4 and the other
    /// IPv6.
    pub fn new(source: IpAddr, source_port: u16, destination: IpAddr) -> Option<Self> {
        let ip_version = match (source, destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) => 4,
            (IpAddr::V6(_), IpAddr::V6(_)) => 6,
            _ => return None,
        };
        Some(Self {
            ip_version,
            source_port,
            source: octets(source),
            destination: octets(destination),
            ..Self::default()
        })
    }

    /// Returns the IP addresses of sender and receiver; `None` if the header's version is not 0, or the IP version is
    /// neither 4 nor 6.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        if self.version != 0 {
            return None;
        }
        let address = |octets| address(octets, self.ip_version);
        Some((address(self.source)?, address(self.destination)?))
    }
}

fn octets(address: IpAddr) -> Octets<16> {
    let mut octets = [0; 16];
    match address {
        IpAddr::V4(address) => octets[12..].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => octets = address.octets(),
    }
    Octets(octets)
}

fn address(Octets(octets): Octets<16>, ip_version: u8) -> Option<IpAddr> {
    match ip_version {
        4 => {
            let [.., a, b, c, d] = octets;
            Some(Ipv4Addr::new(a, b, c, d).into())
        }
        6 => Some(Ipv6Addr::from(octets).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;
    use crate::layout::Header;

    // concerns 7.53
    #[test]
    fn the_header_carries_the_addresses_of_both_ends() {
        let octets = hex!(
            "00 40 8a92"
            "000000000000000000000000 0a4d0002"
            "000000000000000000000000 0a4d0001"
        );
        let (header, _) = RdmaCm::split(&octets).unwrap();
        let (source, destination) = ([10, 77, 0, 2].into(), [10, 77, 0, 1].into());
        assert_eq!(header.addresses(), Some((source, destination)));
        assert_eq!(header.source_port, 0x8a92);
        assert_eq!(RdmaCm::new(source, 0x8a92, destination), Some(header));
        assert_eq!(header.to_view().0, octets);

        let six: IpAddr = "fe80::1".parse().unwrap();
        let header = RdmaCm::new(six, 7, six).unwrap();
        assert_eq!(header.addresses(), Some((six, six)));
        assert_eq!(RdmaCm::new(six, 7, source), None);
    }

    #[test]
    fn other_versions_give_no_addresses() {
        let one: IpAddr = [10, 0, 0, 1].into();
        let mut header = RdmaCm::new(one, 7, one).unwrap();
        header.ip_version = 5;
        assert_eq!(header.addresses(), None);
        (header.ip_version, header.version) = (4, 1);
        assert_eq!(header.addresses(), None);
    }

    // concerns 7.17
    #[test]
    fn a_service_id_combines_port_space_and_port() {
        assert_eq!(service_id(port_space::TCP, 4420), 0x0000_0000_0106_1144);
        assert_eq!(port_of(0x0106_1144), Some((port_space::TCP, 4420)));
        assert_eq!(port_of(0x013f_1144), Some((port_space::IB, 4420)));
        assert_eq!(port_of(0x0200_0000_0000_0000), None);
        assert_eq!(port_of(0x0001_0106_1144), None);
    }
}

//! Network interfaces of this machine and their addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

/// Returns the IP addresses of this machine, without link-local ones, which are valid on one link only.
pub(crate) fn addresses() -> Vec<IpAddr> {
    let addresses = of_all().filter_map(|(_, address)| ip_of(&address));
    addresses.collect()
}

/// Returns name and first IP address of the network interface with this index, or, if `index` is 0, of the one with this
/// Ethernet address.
pub(crate) fn found(index: u32, mac: &[u8]) -> Option<(String, Option<IpAddr>)> {
    let is_it = |(_, address): &(String, SockaddrStorage)| {
        address.as_link_addr().is_some_and(|link| match index {
            0 => link.addr().is_some_and(|own| own == mac),
            index => link.ifindex() == index as usize,
        })
    };
    let (name, _) = of_all().find(is_it)?;
    let mut own = of_all().filter(|(of, _)| *of == name);
    let ip = own.find_map(|(_, address)| ip_of(&address));
    Some((name, ip))
}

/// Returns the source address of the route to a destination; `None` if there is no route.
pub(crate) fn source_of(to: IpAddr) -> Option<IpAddr> {
    const DISCARD: u16 = 9;
    let any = match to {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
    // Connecting a UDP socket sends nothing.
    socket.connect(SocketAddr::new(to, DISCARD)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Iterates over all addresses with the names of their interfaces; empty if the system does not report them.
fn of_all() -> impl Iterator<Item = (String, SockaddrStorage)> {
    let entries = getifaddrs().into_iter().flatten();
    entries.filter_map(|entry| Some((entry.interface_name, entry.address?)))
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
    let v6 = || address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip()));
    v4.or_else(v6).filter(|ip| match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    })
}

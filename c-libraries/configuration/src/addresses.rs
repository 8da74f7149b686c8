//! The IP addresses of this machine.

use std::net::{IpAddr, Ipv4Addr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

/// The addresses of all interfaces that are up, each with the name of its interface. Empty if the system does not report
/// them.
pub fn interfaces() -> Vec<(String, IpAddr)> {
    let Ok(entries) = getifaddrs() else {
        return Vec::new();
    };
    entries
        .filter(|entry| entry.flags.contains(InterfaceFlags::IFF_UP))
        .filter_map(|entry| Some((entry.interface_name, ip_of(entry.address.as_ref()?)?)))
        .collect()
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))
}

/// The addresses at which there are devices by default: the IPv4 loopback address, and the addresses of interfaces that
/// other machines can reach, without link-local ones.
pub fn addresses() -> Vec<IpAddr> {
    let mut found = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
    for (_, address) in interfaces() {
        if reachable(address) && !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

fn reachable(address: IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

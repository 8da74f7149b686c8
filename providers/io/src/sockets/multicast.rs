//! Multicast groups: every member of a group receives a copy of a datagram to the group's address.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use rustix::net::sockopt;

use crate::sockets::interface::interface_of;
use crate::sockets::sys;
use crate::sockets::udp::{UdpOptions, UdpSocket};

/// Joins the multicast group `group` on the interface that has the address of `local`. Returns a socket bound to the
/// group's address and port, which receives a copy of each datagram to the group. The membership ends with the socket.
///
/// # Errors
/// `group` is no multicast address or is of another address family than `local`, or a socket that does not share the port
/// is bound to it.
pub fn join_group(
    group: SocketAddr,
    local: SocketAddr,
    options: &UdpOptions,
) -> io::Result<UdpSocket> {
    if !group.ip().is_multicast() || group.is_ipv4() != local.is_ipv4() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let interface = interface_of(local)?;
    let mut bound = group;
    if let SocketAddr::V6(v6) = &mut bound {
        v6.set_scope_id(interface);
    }
    let socket = UdpSocket::bind_group(bound, options)?;
    let fd = socket.as_fd();
    // Without this, memberships of other sockets of the machine apply to this one, too.
    let only_own = |level, option| sys::set_number(fd, level, option, 0);
    match (group.ip(), local.ip()) {
        (IpAddr::V4(group), IpAddr::V4(local)) => {
            only_own(libc::IPPROTO_IP, libc::IP_MULTICAST_ALL)?;
            sockopt::set_ip_add_membership(fd, &group, &local)?;
        }
        (IpAddr::V6(group), _) => {
            only_own(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL)?;
            sockopt::set_ipv6_add_membership(fd, &group, interface)?;
        }
        _ => {}
    }
    Ok(socket)
}

/// Returns the multicast address that stands for `group` on a socket with the address `local`: `group` itself if the
/// families are the same, and otherwise an address that is derived from it.
///
/// An IPv4 group has an IPv6 address of its own, `ff1e::ffff:a.b.c.d`. IPv6 groups have 24 bits of a hash in 239.0.0.0/8, so
/// that two of 16 million may share an address. Members then receive the datagrams of both groups, because a RoCEv2 packet has
/// no other identifier of its group than its IP address.
pub fn in_family_of(group: IpAddr, local: SocketAddr) -> IpAddr {
    match (group, local) {
        (IpAddr::V4(group), SocketAddr::V6(_)) => {
            Ipv6Addr::from_bits(MAPPED_GROUPS | u128::from(group.to_bits())).into()
        }
        (IpAddr::V6(group), SocketAddr::V4(_)) => {
            let hash = fnv1a(&group.octets());
            let [a, b, c] = [hash >> 16, hash >> 8, hash].map(|shifted| shifted as u8);
            IpAddr::from([239, a, b, c])
        }
        _ => group,
    }
}

/// `ff1e::ffff:0.0.0.0`: a transient group of global scope, so that no device takes it for Linux's `ff0e::ffff:a.b.c.d`.
const MAPPED_GROUPS: u128 = 0xff1e_0000_0000_0000_0000_ffff_0000_0000;

/// The FNV-1a hash of 32 bits.
fn fnv1a(bytes: &[u8]) -> u32 {
    let mixed = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, mixed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use test_kit::waiting::until_some;

    use super::*;
    use crate::sockets::{FlowSockets, ReceiveBatch, Transmit};

    fn wait(member: &UdpSocket) -> Vec<u8> {
        let mut batch = ReceiveBatch::new(1, 65_535).unwrap();
        until_some(|| {
            let any = member.receive(&mut batch).unwrap() > 0;
            any.then(|| batch.messages().next().unwrap().bytes.to_vec())
        })
    }

    fn nothing(member: &UdpSocket) -> bool {
        let mut batch = ReceiveBatch::new(1, 65_535).unwrap();
        member.receive(&mut batch).unwrap() == 0
    }

    #[test]
    fn every_member_gets_a_copy_until_it_leaves() {
        let groups = ["239.255.47.91:47910", "239.255.47.92:47910"];
        members_get_copies("127.0.3.20:0".parse().unwrap(), groups);
    }

    // The kernel routes no IPv6 group over loopback, so this needs another interface with an address.
    #[test]
    fn every_member_of_an_ipv6_group_gets_a_copy() {
        let Some(local) = crate::sockets::interface::outside() else {
            eprintln!("skipped: no interface but loopback has an IPv6 address");
            return;
        };
        members_get_copies(local, ["[ff11::4791]:47910", "[ff11::4792]:47910"]);
    }

    fn members_get_copies(local: SocketAddr, groups: [&str; 2]) {
        let [group, other] = groups.map(|text| text.parse().unwrap());
        let options = UdpOptions::default();
        let join = |group| join_group(group, local, &options).unwrap();
        let (one, two, elsewhere) = (join(group), join(group), join(other));
        let flows = FlowSockets::new(local, 1, options);
        let send = |bytes: &[u8]| {
            let sent = flows.of(0).unwrap().send(&[Transmit::new(group, bytes)]);
            assert_eq!(sent.unwrap(), 1);
        };
        send(b"to all");
        for member in [&one, &two] {
            assert_eq!(wait(member), b"to all");
        }
        assert!(nothing(&elsewhere));
        drop(one);
        send(b"to one");
        assert_eq!(wait(&two), b"to one");
        drop(two);
        send(b"to nobody");
        assert!(nothing(&elsewhere));
    }

    #[test]
    fn a_group_of_the_other_family_has_an_address_of_its_own() {
        let (v4, v6) = ("127.0.0.1:1".parse().unwrap(), "[::1]:1".parse().unwrap());
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for group in ["239.1.2.3", "224.0.0.9"] {
            assert_eq!(in_family_of(ip(group), v4), ip(group));
        }
        let carried = in_family_of(ip("239.1.2.3"), v6);
        assert_eq!(carried, ip("ff1e::ffff:239.1.2.3"));
        // These are groups that perftest joins.
        let groups = ["ff01:0:2:c985::", "ff01:0:2:c985::1", "ff12::7"].map(ip);
        let carried = groups.map(|group| in_family_of(group, v4));
        for (group, carried) in groups.into_iter().zip(carried) {
            assert!(carried.is_ipv4() && carried.is_multicast(), "{carried}");
            assert_eq!(in_family_of(group, v6), group);
        }
        let distinct: BTreeSet<_> = carried.into_iter().collect();
        assert_eq!(distinct.len(), groups.len());
    }

    #[test]
    fn an_address_that_is_no_group_is_refused() {
        let join = |group: &str, local: &str| {
            let (group, local) = (group.parse().unwrap(), local.parse().unwrap());
            join_group(group, local, &UdpOptions::default())
        };
        for (group, local) in [
            ("127.0.0.1:9", "127.0.0.1:0"),
            ("[ff11::1]:9", "127.0.0.1:0"),
        ] {
            let error = join(group, local).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        let error = join("239.1.1.1:0", "203.0.113.1:0").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}

//! Socket addresses in the kernel's format.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Bytes of the longest `sockaddr` of a UDP socket.
pub(crate) const LONGEST: usize = 28;

/// A `sockaddr_in` or `sockaddr_in6`, as the kernel reads it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Name {
    pub(crate) fn of(address: SocketAddr) -> Self {
        let mut bytes = [0; LONGEST];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(2, &address.port().to_be_bytes());
        let length = match address {
            SocketAddr::V4(v4) => {
                put(0, &(libc::AF_INET as u16).to_ne_bytes());
                put(4, &v4.ip().octets());
                16
            }
            SocketAddr::V6(v6) => {
                put(0, &(libc::AF_INET6 as u16).to_ne_bytes());
                put(4, &v6.flowinfo().to_be_bytes());
                put(8, &v6.ip().octets());
                put(24, &v6.scope_id().to_ne_bytes());
                28
            }
        };
        Self { bytes, length }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Parses a `sockaddr`; `None` if it is of another address family or too short.
pub(crate) fn read(name: &[u8]) -> Option<SocketAddr> {
    fn field<const N: usize>(name: &[u8], at: usize) -> Option<[u8; N]> {
        name.get(at..)?.first_chunk().copied()
    }
    let port = u16::from_be_bytes(field(name, 2)?);
    match i32::from(u16::from_ne_bytes(field(name, 0)?)) {
        libc::AF_INET => {
            let ip = Ipv4Addr::from(field::<4>(name, 4)?);
            Some(SocketAddrV4::new(ip, port).into())
        }
        libc::AF_INET6 => {
            let flow = u32::from_be_bytes(field(name, 4)?);
            let ip = Ipv6Addr::from(field::<16>(name, 8)?);
            let scope = u32::from_ne_bytes(field(name, 24)?);
            Some(SocketAddrV6::new(ip, port, flow, scope).into())
        }
        _ => None,
    }
}

/// Returns `address` with the IPv6 scope of `from`, if it is link-local or a narrow multicast group and has no scope.
pub(crate) fn scoped(address: SocketAddr, from: SocketAddr) -> SocketAddr {
    match (address, from) {
        (SocketAddr::V6(to), SocketAddr::V6(from))
            if to.scope_id() == 0 && needs_scope(to.ip()) =>
        {
            SocketAddrV6::new(*to.ip(), to.port(), to.flowinfo(), from.scope_id()).into()
        }
        _ => address,
    }
}

fn needs_scope(ip: &Ipv6Addr) -> bool {
    let is_narrow_group = ip.is_multicast() && matches!(ip.segments()[0] & 0xf, 1 | 2);
    ip.is_unicast_link_local() || is_narrow_group
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written() {
        for text in ["127.0.0.3:4791", "[::1]:4791", "[fe80::17%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let name = Name::of(address);
            assert_eq!(read(name.bytes()), Some(address));
            for length in 0..name.bytes().len().min(8) {
                assert_eq!(read(&name.bytes()[..length]), None);
            }
        }
        let local = [&(libc::AF_UNIX as u16).to_ne_bytes()[..], b"\0name"].concat();
        assert_eq!(read(&local), None);
    }

    #[test]
    fn an_address_that_needs_a_scope_gets_the_senders() {
        let from: SocketAddr = "[fe80::1%7]:1".parse().unwrap();
        let of = |text: &str| scoped(text.parse().unwrap(), from).to_string();
        assert_eq!(of("[fe80::2]:5"), "[fe80::2%7]:5");
        assert_eq!(of("[fe80::2%9]:5"), "[fe80::2%9]:5");
        assert_eq!(of("[ff02::1]:5"), "[ff02::1%7]:5");
        assert_eq!(of("[ff05::1]:5"), "[ff05::1]:5");
        assert_eq!(of("10.0.0.1:5"), "10.0.0.1:5");
    }
}

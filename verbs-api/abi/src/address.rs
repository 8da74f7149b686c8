//! Socket addresses in the structures of C.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::rdmacm::Address;

/// Converts a C socket address; returns `None` where its family is neither IPv4 nor IPv6.
pub fn read(address: &Address) -> Option<SocketAddr> {
    // SAFETY: all of it is initialised, and of numbers: each part of the union is a value.
    let (any, v4, v6) = unsafe { (&address.any, &address.v4, &address.v6) };
    match c_int::from(any.sa_family) {
        libc::AF_INET => {
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some((ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Returns a C socket address that is all zero, so its family is `AF_UNSPEC`.
pub const fn none() -> Address {
    // SAFETY: numbers only, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// Converts an address to the `sockaddr_in` or `sockaddr_in6` that C programs read.
pub fn write(address: SocketAddr) -> Address {
    let mut written = none();
    match address {
        SocketAddr::V4(v4) => {
            written.v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
        }
        SocketAddr::V6(v6) => {
            written.v6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
        }
    }
    written
}

/// Returns the number of bytes of the `sockaddr_in` or `sockaddr_in6` of an address, as C's `socklen_t` counts it.
pub const fn length(address: SocketAddr) -> usize {
    match address {
        SocketAddr::V4(_) => size_of::<libc::sockaddr_in>(),
        SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_conversion_and_unknown_families_are_none() {
        for address in ["192.0.2.1:7471", "[2001:db8::1%3]:18515"] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(read(&write(address)), Some(address));
        }
        assert_eq!(read(&none()), None);
    }
}

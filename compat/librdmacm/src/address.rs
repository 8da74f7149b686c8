//! Addresses of sockets as programs write them.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use polyverbs_libibverbs::errno::Errno;

use crate::abi::Address;

/// The address behind a pointer of the program.
///
/// # Errors
/// It is null, or of no family of the internet.
///
/// # Safety
/// It is null or an address, as long as its family says.
pub unsafe fn read(address: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: as the caller promises.
    let family = unsafe { address.as_ref() }.ok_or(Errno::INVAL)?.sa_family;
    match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says so.
            let found = unsafe { &*address.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(found.sin_addr.s_addr.to_ne_bytes());
            Ok((ip, u16::from_be(found.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says so.
            let found = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(found.sin6_addr.s6_addr);
            let port = u16::from_be(found.sin6_port);
            Ok(SocketAddrV6::new(ip, port, found.sin6_flowinfo, found.sin6_scope_id).into())
        }
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Nothing: of no family.
pub const fn none() -> Address {
    // SAFETY: numbers only, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// As programs read it.
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

/// How long it is.
pub const fn length(address: SocketAddr) -> usize {
    match address {
        SocketAddr::V4(_) => size_of::<libc::sockaddr_in>(),
        SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>(),
    }
}

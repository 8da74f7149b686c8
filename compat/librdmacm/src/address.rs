//! Addresses of sockets as programs write them.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use polyverbs_libibverbs::errno::Errno;

pub use polyverbs_abi::address::{length, none, write};

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

//! Addresses of C and ours.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use polyverbs_libibverbs::errno::Errno;

/// An address of C.
#[repr(C)]
pub(crate) union Raw {
    v4: sockaddr_in,
    v6: sockaddr_in6,
}

impl Raw {
    pub(crate) fn new(address: SocketAddr) -> (Self, socklen_t) {
        match address {
            SocketAddr::V4(address) => {
                let v4 = sockaddr_in {
                    sin_family: libc::AF_INET as sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(address.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                (Self { v4 }, size_of::<sockaddr_in>() as socklen_t)
            }
            SocketAddr::V6(address) => {
                let v6 = sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: address.ip().octets(),
                    },
                    sin6_scope_id: address.scope_id(),
                };
                (Self { v6 }, size_of::<sockaddr_in6>() as socklen_t)
            }
        }
    }
}

/// What a program names.
///
/// # Errors
/// It is none, shorter than its family says, or of another one.
///
/// # Safety
/// `address` is null, or `length` octets are readable there.
pub(crate) unsafe fn read(
    address: *const sockaddr,
    length: socklen_t,
) -> Result<SocketAddr, Errno> {
    if address.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let length = length as usize;
    if length < size_of::<sa_family_t>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: as long as that, wherever it lies.
    let family = unsafe { ptr::read_unaligned(address.cast::<sa_family_t>()) };
    match c_int::from(family) {
        libc::AF_INET if length >= size_of::<sockaddr_in>() => {
            // SAFETY: as long as that, as was seen.
            let v4 = unsafe { ptr::read_unaligned(address.cast::<sockaddr_in>()) };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 if length >= size_of::<sockaddr_in6>() => {
            // SAFETY: as long as that, as was seen.
            let v6 = unsafe { ptr::read_unaligned(address.cast::<sockaddr_in6>()) };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        libc::AF_INET | libc::AF_INET6 => Err(Errno::INVAL),
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Tells a program an address: as much as there is room for, and how long it is.
///
/// # Errors
/// The length is null, or there is no room at all.
///
/// # Safety
/// `length` is null or writable, and as many octets as it says are writable at `target`.
pub(crate) unsafe fn write(
    address: SocketAddr,
    target: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    let length = unsafe { length.as_mut() }.ok_or(Errno(libc::EFAULT))?;
    if target.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let (raw, size) = Raw::new(address);
    // SAFETY: no more than there is room for, and no more than was made.
    unsafe {
        ptr::copy_nonoverlapping(
            (&raw const raw).cast::<u8>(),
            target.cast::<u8>(),
            (*length).min(size) as usize,
        );
    }
    *length = size;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(address: &str) {
        let address: SocketAddr = address.parse().unwrap();
        let (mut raw, mut length) = Raw::new(address);
        // SAFETY: as long as it says.
        unsafe {
            assert_eq!(read((&raw const raw).cast(), length), Ok(address));
            assert_eq!(read((&raw const raw).cast(), length - 1), Err(Errno::INVAL));
            write(address, (&raw mut raw).cast(), &raw mut length).unwrap();
            assert_eq!(read((&raw const raw).cast(), length), Ok(address));
        }
    }

    #[test]
    fn addresses_are_what_they_were() {
        there_and_back("10.1.2.3:7471");
        there_and_back("[fe80::1%3]:7471");
    }

    #[test]
    fn what_is_no_address_is_an_error() {
        let unix: sa_family_t = libc::AF_UNIX as sa_family_t;
        // SAFETY: as long as it says.
        unsafe {
            assert_eq!(read(ptr::null(), 16), Err(Errno(libc::EFAULT)));
            assert_eq!(read((&raw const unix).cast(), 1), Err(Errno::INVAL));
            assert_eq!(
                read((&raw const unix).cast(), 2),
                Err(Errno(libc::EAFNOSUPPORT))
            );
        }
    }
}

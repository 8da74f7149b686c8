//! Conversion of socket addresses between C and Rust.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::SocketAddr;
use std::ptr;

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use polyverbs_libibverbs::errno::Errno;

use crate::address::{length as length_of, none, read as read_raw, write as write_raw};

/// Reads an address that a program passes.
///
/// # Errors
/// The address is null, too short, or neither IPv4 nor IPv6.
///
/// # Safety
/// `address` is null, or `length` bytes are readable there.
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
    let least = match c_int::from(family) {
        libc::AF_INET => size_of::<sockaddr_in>(),
        libc::AF_INET6 => size_of::<sockaddr_in6>(),
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    };
    if length < least {
        return Err(Errno::INVAL);
    }
    let mut raw = none();
    // SAFETY: as long as that, as was seen, and there is room for either.
    unsafe {
        ptr::copy_nonoverlapping(address.cast::<u8>(), (&raw mut raw).cast(), least);
        read_raw((&raw const raw).cast())
    }
}

/// Writes an address to a program's buffer, truncated to the room there, and its full length to `length`.
///
/// # Errors
/// The length is null, or the target is null although it has room.
///
/// # Safety
/// `length` is null or writable, and as many bytes as it says are writable at `target`.
pub(crate) unsafe fn write(
    address: SocketAddr,
    target: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    let length = unsafe { length.as_mut() }.ok_or(Errno(libc::EFAULT))?;
    // If the room is 0 only the length is written, as librspreload expects.
    if target.is_null() && *length > 0 {
        return Err(Errno(libc::EFAULT));
    }
    let (raw, size) = (write_raw(address), length_of(address) as socklen_t);
    let room = (*length).min(size) as usize;
    if room > 0 {
        // SAFETY: no more than there is room for, and no more than was made.
        unsafe {
            ptr::copy_nonoverlapping((&raw const raw).cast::<u8>(), target.cast::<u8>(), room);
        }
    }
    *length = size;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(address: &str) {
        let address: SocketAddr = address.parse().unwrap();
        let (mut raw, mut length) = (write_raw(address), length_of(address) as socklen_t);
        // SAFETY: as long as it says.
        unsafe {
            assert_eq!(read((&raw const raw).cast(), length), Ok(address));
            assert_eq!(read((&raw const raw).cast(), length - 1), Err(Errno::INVAL));
            write(address, (&raw mut raw).cast(), &raw mut length).unwrap();
            assert_eq!(read((&raw const raw).cast(), length), Ok(address));
        }
    }

    #[test]
    fn addresses_survive_encoding() {
        there_and_back("10.1.2.3:7471");
        there_and_back("[fe80::1%3]:7471");
    }

    #[test]
    fn invalid_addresses_are_errors() {
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

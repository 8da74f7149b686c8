//! Socket addresses in the form that C programs use.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::SocketAddr;

use polyverbs_libibverbs::errno::Errno;

pub use polyverbs_abi::address::{length, none, write};

/// Reads the address at a program's pointer.
///
/// # Errors
/// The pointer is null, or the address is neither IPv4 nor IPv6: `EINVAL`, with which rdma-core's library refuses it. One of
/// InfiniBand (`AF_IB`) is `ENODEV`, as with Linux where no port is InfiniBand's.
///
/// # Safety
/// The pointer is null, or an address of its family's length is readable there.
pub unsafe fn read(address: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: as the caller promises.
    let family = unsafe { address.as_ref() }.ok_or(Errno::INVAL)?.sa_family;
    let mut copied = none();
    match c_int::from(family) {
        // SAFETY: the family says so.
        libc::AF_INET => copied.v4 = unsafe { *address.cast() },
        // SAFETY: the family says so.
        libc::AF_INET6 => copied.v6 = unsafe { *address.cast() },
        libc::AF_IB => return Err(Errno(libc::ENODEV)),
        _ => {}
    }
    polyverbs_abi::address::read(&copied).ok_or(Errno::INVAL)
}

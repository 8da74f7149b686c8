//! The network interface that has an IP address.
#![allow(unsafe_code)]

use std::net::IpAddr;
use std::ptr;

/// The index of the network interface with this address; 0 if there is none.
pub(crate) fn index_of(address: IpAddr) -> u32 {
    let mut first = ptr::null_mut();
    // SAFETY: the list is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return 0;
    }
    let mut next = first.cast_const();
    let mut found = 0;
    // SAFETY: entries of the list, which lives until it is freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        if address_of(entry.ifa_addr) == Some(address) {
            // SAFETY: the name is a text.
            found = unsafe { libc::if_nametoindex(entry.ifa_name) };
            break;
        }
        next = entry.ifa_next;
    }
    // SAFETY: what `getifaddrs` made, once.
    unsafe { libc::freeifaddrs(first) };
    found
}

fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: null or an address, as long as its family says.
    match i32::from(unsafe { address.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: the family says so.
            let address = unsafe { &*address.cast::<libc::sockaddr_in>() };
            Some(IpAddr::from(address.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says so.
            let address = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            Some(IpAddr::from(address.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

//! Resolution of names to addresses (`rdma_getaddrinfo`).
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::net::SocketAddr;
use std::ptr;

use polyverbs_libibverbs::abi::qp_type;
use polyverbs_libibverbs::errno::Errno;
use verbs_api::ids::Gid;

use crate::abi::{RdmaAddrinfo, SockaddrIb, port_space};
use crate::errno::done;

/// The flag `RAI_PASSIVE`: the program wants an address to listen at.
pub const PASSIVE: c_int = 1;
const NUMERICHOST: c_int = 1 << 1;
const NOROUTE: c_int = 1 << 2;
const FAMILY: c_int = 1 << 3;
/// The flag `RAI_SA`: a subnet manager resolves the service, of which there is none.
pub(crate) const SA: c_int = 1 << 4;
/// The flag `RAI_DNS`: names are resolved by the system, as without it.
pub(crate) const DNS: c_int = 1 << 5;
/// The flags that `rdma_getaddrinfo` of rdma-core 44 has.
pub(crate) const FLAGS: c_int = PASSIVE | NUMERICHOST | NOROUTE | FAMILY;

const fn nothing() -> RdmaAddrinfo {
    RdmaAddrinfo {
        ai_flags: 0,
        ai_family: 0,
        ai_qp_type: 0,
        ai_port_space: 0,
        ai_src_len: 0,
        ai_dst_len: 0,
        ai_src_addr: ptr::null_mut(),
        ai_dst_addr: ptr::null_mut(),
        ai_src_canonname: ptr::null_mut(),
        ai_dst_canonname: ptr::null_mut(),
        ai_route_len: 0,
        ai_route: ptr::null_mut(),
        ai_connect_len: 0,
        ai_connect: ptr::null_mut(),
        ai_next: ptr::null_mut(),
    }
}

/// Implements `rdma_getaddrinfo`.
///
/// # Safety
/// `node` and `service` are null or strings, `hints` is null or readable, and `result` null or writable.
pub unsafe extern "C-unwind" fn get(
    node: *const c_char,
    service: *const c_char,
    hints: *const RdmaAddrinfo,
    result: *mut *mut RdmaAddrinfo,
) -> c_int {
    // SAFETY: as the caller promises.
    done(
        unsafe { result.as_mut() }
            .ok_or(Errno::INVAL)
            .and_then(|place| {
                // SAFETY: as the caller promises.
                *place = unsafe { resolve(node, service, hints.as_ref()) }?.into_raw();
                Ok(())
            }),
    )
}

/// Resolves a name, or a service, or copies the address of the hints.
///
/// # Errors
/// There is nothing to resolve, the flags are unknown, or the name has no address.
///
/// # Safety
/// `node` and `service` are null or strings, and what the hints point to is readable.
pub(crate) unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&RdmaAddrinfo>,
) -> Result<Resolved, Errno> {
    if node.is_null() && service.is_null() && hints.is_none() {
        return Err(Errno::INVAL);
    }
    let none = nothing();
    let hints = hints.unwrap_or(&none);
    match hints.ai_flags & !FLAGS {
        0 | DNS => {}
        flags if flags & !(SA | DNS) == 0 => return Err(Errno::OPNOTSUPP),
        _ => return Err(Errno::INVAL),
    }
    let mut found = Resolved(Box::into_raw(Box::new(nothing())));
    let info = found.get();
    if node.is_null() && service.is_null() {
        info.ai_flags = hints.ai_flags;
        info.ai_family = hints.ai_family;
        info.ai_qp_type = hints.ai_qp_type;
        info.ai_port_space = hints.ai_port_space;
        // SAFETY: as the caller promises.
        (info.ai_dst_addr, info.ai_dst_len) =
            unsafe { copied(hints.ai_dst_addr, hints.ai_dst_len) }?;
    } else {
        // SAFETY: as the caller promises.
        unsafe { look_up(node, service, hints, info) }?;
    }
    if info.ai_src_len == 0 && hints.ai_src_len > 0 {
        // SAFETY: as the caller promises.
        (info.ai_src_addr, info.ai_src_len) =
            unsafe { copied(hints.ai_src_addr, hints.ai_src_len) }?;
    }
    Ok(found)
}

/// Resolved addresses that the program does not have yet.
pub struct Resolved(*mut RdmaAddrinfo);

// SAFETY: the addresses belong to this value only.
unsafe impl Send for Resolved {}

impl Resolved {
    fn get(&mut self) -> &mut RdmaAddrinfo {
        // SAFETY: made by this module, and nobody else has it.
        unsafe { &mut *self.0 }
    }

    /// Hands the addresses out, which [`free`] frees.
    pub(crate) fn into_raw(self) -> *mut RdmaAddrinfo {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Resolved {
    fn drop(&mut self) {
        // SAFETY: made by this module, and not handed out.
        unsafe { free(self.0) };
    }
}

/// A copy of hints, whose addresses it owns.
pub(crate) struct Hints(RdmaAddrinfo);

// SAFETY: the addresses belong to this value only.
unsafe impl Send for Hints {}

impl Hints {
    /// Copies hints and the addresses that they point to; `None` if there are none.
    ///
    /// # Errors
    /// An address is too long, or there is no memory.
    ///
    /// # Safety
    /// `hints` is null or readable, and so are its addresses.
    pub(crate) unsafe fn copy(hints: *const RdmaAddrinfo) -> Result<Option<Self>, Errno> {
        // SAFETY: as the caller promises.
        let Some(hints) = (unsafe { hints.as_ref() }) else {
            return Ok(None);
        };
        let mut copy = Self(nothing());
        copy.0.ai_flags = hints.ai_flags;
        copy.0.ai_family = hints.ai_family;
        copy.0.ai_qp_type = hints.ai_qp_type;
        copy.0.ai_port_space = hints.ai_port_space;
        // SAFETY: as the caller promises.
        unsafe {
            (copy.0.ai_dst_addr, copy.0.ai_dst_len) = copied(hints.ai_dst_addr, hints.ai_dst_len)?;
            (copy.0.ai_src_addr, copy.0.ai_src_len) = copied(hints.ai_src_addr, hints.ai_src_len)?;
        }
        Ok(Some(copy))
    }

    pub(crate) const fn get(&self) -> &RdmaAddrinfo {
        &self.0
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        // SAFETY: copies of this value's own.
        unsafe { release(&mut self.0) };
    }
}

unsafe fn copied(
    address: *const libc::sockaddr,
    length: libc::socklen_t,
) -> Result<(*mut libc::sockaddr, libc::socklen_t), Errno> {
    const MOST: usize = size_of::<libc::sockaddr_storage>();
    if length == 0 {
        return Ok((ptr::null_mut(), 0));
    }
    if address.is_null() || length as usize > MOST {
        return Err(Errno::INVAL);
    }
    // SAFETY: room for any address, zeroed.
    let copy = unsafe { libc::calloc(1, MOST) };
    if copy.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: so many bytes are readable, as the caller promises, and fit.
    unsafe { ptr::copy_nonoverlapping(address.cast::<u8>(), copy.cast(), length as usize) };
    Ok((copy.cast(), length))
}

unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: &RdmaAddrinfo,
    found: &mut RdmaAddrinfo,
) -> Result<(), Errno> {
    let is_passive = hints.ai_flags & PASSIVE != 0;
    // SAFETY: numbers and pointers, for which zero is a value.
    let mut wanted: libc::addrinfo = unsafe { std::mem::zeroed() };
    if is_passive {
        wanted.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & NUMERICHOST != 0 {
        wanted.ai_flags |= libc::AI_NUMERICHOST;
    }
    // Names have IP addresses, also where the program wants one of InfiniBand.
    if hints.ai_family != libc::AF_IB {
        wanted.ai_family = hints.ai_family;
    }
    wanted.ai_socktype = match (hints.ai_qp_type, hints.ai_port_space) {
        (qp_type::UD, _) | (0, port_space::UDP | port_space::IPOIB) => libc::SOCK_DGRAM,
        (0, 0) => 0,
        _ => libc::SOCK_STREAM,
    };
    let mut first = ptr::null_mut();
    // SAFETY: as the caller promises.
    let answer = unsafe { libc::getaddrinfo(node, service, &raw const wanted, &raw mut first) };
    // SAFETY: what was answered, or null.
    let Some(entry) = (unsafe { first.as_ref() }).filter(|_| answer == 0) else {
        return Err(match answer {
            libc::EAI_SYSTEM => Errno::last(),
            libc::EAI_MEMORY => Errno::NOMEM,
            libc::EAI_AGAIN => Errno(libc::EAGAIN),
            libc::EAI_FAMILY => Errno(libc::EAFNOSUPPORT),
            libc::EAI_NONAME | libc::EAI_SERVICE => Errno(libc::ENODATA),
            _ => Errno::INVAL,
        });
    };
    let is_datagrams = entry.ai_socktype == libc::SOCK_DGRAM;
    found.ai_qp_type = match hints.ai_qp_type {
        0 if is_datagrams => qp_type::UD,
        0 => qp_type::RC,
        chosen => chosen,
    };
    found.ai_port_space = match hints.ai_port_space {
        0 if is_datagrams => port_space::UDP,
        0 => port_space::TCP,
        chosen => chosen,
    };
    let copy = match wants_gid(hints) {
        true => {
            found.ai_family = libc::AF_IB;
            // SAFETY: the entry's own address.
            unsafe { gid_at(entry.ai_addr, found.ai_port_space) }
        }
        false => {
            found.ai_family = entry.ai_family;
            // SAFETY: the entry's own address.
            unsafe { copied(entry.ai_addr, entry.ai_addrlen) }
        }
    };
    // SAFETY: what `getaddrinfo` made, once.
    unsafe { libc::freeaddrinfo(first) };
    let copy = copy?;
    if is_passive {
        found.ai_flags = PASSIVE;
        (found.ai_src_addr, found.ai_src_len) = copy;
    } else {
        (found.ai_dst_addr, found.ai_dst_len) = copy;
    }
    Ok(())
}

/// Whether the program wants a numeric address as a GID of InfiniBand.
const fn wants_gid(hints: &RdmaAddrinfo) -> bool {
    const NUMERIC: c_int = FAMILY | NUMERICHOST;
    hints.ai_family == libc::AF_IB && hints.ai_flags & NUMERIC == NUMERIC
}

/// A copy of an IP address as the address of InfiniBand with the same GID, whose service ID has the port.
///
/// # Safety
/// An IP address is readable there.
unsafe fn gid_at(
    address: *const libc::sockaddr,
    space: c_int,
) -> Result<(*mut libc::sockaddr, libc::socklen_t), Errno> {
    // SAFETY: as the caller promises.
    let address = unsafe { crate::address::read(address) }?;
    let port = u64::from(address.port());
    let port_mask: u64 = if port == 0 { 0 } else { 0xffff };
    let (flowinfo, scope_id) = match address {
        SocketAddr::V4(_) => (0, 0),
        SocketAddr::V6(v6) => (v6.flowinfo(), v6.scope_id()),
    };
    let ib = SockaddrIb {
        sib_family: libc::AF_IB as libc::sa_family_t,
        sib_pkey: u16::MAX,
        sib_flowinfo: flowinfo,
        sib_addr: Gid::from(address.ip()).0,
        sib_sid: ((space as u64) << 16 | port).to_be(),
        sib_sid_mask: (!0xffff | port_mask).to_be(),
        sib_scope_id: scope_id.into(),
    };
    // SAFETY: all bytes of the structure are readable.
    unsafe { copied((&raw const ib).cast(), size_of_val(&ib) as libc::socklen_t) }
}

unsafe fn release(info: &mut RdmaAddrinfo) {
    for address in [&mut info.ai_src_addr, &mut info.ai_dst_addr] {
        // SAFETY: `calloc` made them, as the caller promises.
        unsafe { libc::free(std::mem::replace(address, ptr::null_mut()).cast()) };
    }
}

/// Implements `rdma_freeaddrinfo`.
///
/// # Safety
/// `info` is null or was returned by [`get`], and the program does not use it after this call.
pub unsafe extern "C-unwind" fn free(info: *mut RdmaAddrinfo) {
    let mut next = info;
    while !next.is_null() {
        // SAFETY: as the caller promises.
        let mut info = unsafe { Box::from_raw(next) };
        // SAFETY: as above.
        unsafe { release(&mut info) };
        next = info.ai_next;
    }
}

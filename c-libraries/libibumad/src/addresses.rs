//! The functions that read and write the front of a MAD in a program's buffer.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;

use polyverbs_libibverbs::errno::Errno;

use crate::abi::{IbMadAddr, IbUserMad};

/// The front of the MAD at a program's pointer; `None` if it is null.
///
/// # Safety
/// The pointer is null, or that of a buffer with room for a front.
unsafe fn front<'a>(umad: *mut c_void) -> Option<&'a mut IbUserMad> {
    // SAFETY: as the caller promises.
    unsafe { umad.cast::<IbUserMad>().as_mut() }
}

/// What a function returns to which a program has given no buffer.
fn no_buffer() -> c_int {
    -Errno::INVAL.set()
}

/// Implements `umad_get_mad`.
///
/// # Safety
/// The pointer is null, or that of a buffer with a MAD.
pub unsafe extern "C-unwind" fn get_mad(umad: *mut c_void) -> *mut c_void {
    umad.wrapping_byte_add(size_of::<IbUserMad>())
}

/// Implements `umad_size`.
pub extern "C-unwind" fn size() -> usize {
    size_of::<IbUserMad>()
}

/// Implements `umad_status`.
///
/// # Safety
/// The pointer is null, or that of a buffer with a MAD.
pub unsafe extern "C-unwind" fn status(umad: *mut c_void) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { front(umad) }.map_or_else(no_buffer, |it| it.status as c_int)
}

/// Implements `umad_get_mad_addr`.
///
/// # Safety
/// The pointer is null, or that of a buffer with a MAD.
pub unsafe extern "C-unwind" fn get_mad_addr(umad: *mut c_void) -> *mut IbMadAddr {
    // SAFETY: as the caller promises.
    unsafe { front(umad) }.map_or(ptr::null_mut(), |it| &raw mut it.addr)
}

/// Implements `umad_set_grh`: the global route is that of another address, whose flow label has the host's order, or none.
///
/// # Safety
/// Each pointer is null, or that of a buffer with a MAD, and of an address.
pub unsafe extern "C-unwind" fn set_grh(umad: *mut c_void, mad_addr: *const IbMadAddr) -> c_int {
    // SAFETY: as the caller promises.
    let (front, route) = unsafe { (front(umad), mad_addr.as_ref()) };
    let Some(IbUserMad { addr: address, .. }) = front else {
        return no_buffer();
    };
    address.grh_present = u8::from(route.is_some());
    if let Some(route) = route {
        address.gid = route.gid;
        address.flow_label = route.flow_label.to_be();
        address.hop_limit = route.hop_limit;
        address.traffic_class = route.traffic_class;
    }
    0
}

/// Implements `umad_set_pkey`.
///
/// # Safety
/// The pointer is null, or that of a buffer with a MAD.
pub unsafe extern "C-unwind" fn set_pkey(umad: *mut c_void, index: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let Some(front) = (unsafe { front(umad) }) else {
        return no_buffer();
    };
    front.addr.pkey_index = index as u16;
    0
}

/// Implements `umad_get_pkey`.
///
/// # Safety
/// The pointer is null, or that of a buffer with a MAD.
pub unsafe extern "C-unwind" fn get_pkey(umad: *mut c_void) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { front(umad) }.map_or_else(no_buffer, |it| it.addr.pkey_index.into())
}

/// Implements `umad_set_addr`: the numbers have the host's order.
///
/// # Safety
/// The pointer is null, or that of a buffer with a MAD.
pub unsafe extern "C-unwind" fn set_addr(
    umad: *mut c_void,
    dlid: c_int,
    dqp: c_int,
    sl: c_int,
    qkey: c_int,
) -> c_int {
    let (dlid, dqp, qkey) = (dlid as u16, dqp as u32, qkey as u32);
    // SAFETY: as the caller promises.
    unsafe { set_addr_net(umad, dlid.to_be(), dqp.to_be(), sl, qkey.to_be()) }
}

/// Implements `umad_set_addr_net`: the numbers are big-endian.
///
/// # Safety
/// The pointer is null, or that of a buffer with a MAD.
pub unsafe extern "C-unwind" fn set_addr_net(
    umad: *mut c_void,
    dlid: u16,
    dqp: u32,
    sl: c_int,
    qkey: u32,
) -> c_int {
    // SAFETY: as the caller promises.
    let Some(IbUserMad { addr: address, .. }) = (unsafe { front(umad) }) else {
        return no_buffer();
    };
    address.lid = dlid;
    address.qpn = dqp;
    address.sl = sl as u8;
    address.qkey = qkey;
    0
}

/// Implements `umad_addr_dump`.
///
/// # Safety
/// The pointer is null, or that of an address.
pub unsafe extern "C-unwind" fn addr_dump(address: *const IbMadAddr) {
    // SAFETY: as the caller promises.
    let Some(it) = (unsafe { address.as_ref() }) else {
        return;
    };
    eprintln!(
        "qpn {} qkey 0x{:x} lid {} sl {} grh_present {} gid_index {} hop_limit {} traffic_class {} flow_label 0x{:x} pkey_index 0x{:x} gid {:02x?}",
        u32::from_be(it.qpn),
        u32::from_be(it.qkey),
        u16::from_be(it.lid),
        it.sl,
        it.grh_present,
        it.gid_index,
        it.hop_limit,
        it.traffic_class,
        u32::from_be(it.flow_label),
        it.pkey_index,
        it.gid,
    );
}

/// Implements `umad_dump`.
///
/// # Safety
/// The pointer is null, or that of a buffer with a MAD.
pub unsafe extern "C-unwind" fn dump(umad: *mut c_void) {
    // SAFETY: as the caller promises.
    let Some(front) = (unsafe { front(umad) }) else {
        return;
    };
    eprintln!(
        "agent id {} status {:x} timeout {}",
        front.agent_id, front.status, front.timeout_ms
    );
    // SAFETY: an address that exists.
    unsafe { addr_dump(&raw const front.addr) };
}

//! The functions that register agents, and send and receive MADs.
//!
//! A program may cancel a thread that waits in [`recv`] or [`poll`]: opensm ends its receiver so. The wait is a system call in
//! [`sleep_in`], which stops the unwinding there, and no lock is held meanwhile.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;

use polyverbs_fabric::client;
use polyverbs_fabric::members::{Outgoing, Registration};
use polyverbs_fabric::protocol::{Front, LONGEST, Request};
use polyverbs_libibverbs::cancel::sleep_in;
use polyverbs_libibverbs::errno::Errno;
use polyverbs_management::agent_table::{OUI_CLASSES, has_rmpp};
use polyverbs_management::{Address, GlobalRoute};
use polyverbs_wire::mad::MAD_LEN;
use verbs_api::provider::ForkLock;

use crate::abi::{IbMadAddr, IbUserMad, UmadRegAttr};
use crate::setup::errno_of;

/// The flag of [`register2`] by which a program makes and takes segments itself.
const USER_RMPP: u32 = 1;
/// The vendor of a class that needs one, if a program does not name one.
const OPENIB: [u8; 3] = [0x00, 0x14, 0x05];

/// Whether the MADs of a class name their vendor.
fn needs_oui(class: c_int) -> bool {
    u8::try_from(class).is_ok_and(|class| OUI_CLASSES.contains(&class))
}

fn borrowed<'a>(port: c_int) -> Result<BorrowedFd<'a>, Errno> {
    if port < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: the program does not close the descriptor while it calls, and -1 is excluded.
    Ok(unsafe { BorrowedFd::borrow_raw(port) })
}

/// Returns a number below zero on failure, and sets `errno`.
fn negative(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| -errno.set())
}

/// Implements `umad_get_fd`.
pub extern "C-unwind" fn get_fd(port: c_int) -> c_int {
    port
}

/// Implements `umad_register`. Every failure is EPERM.
///
/// # Safety
/// The mask is null, or that of 16 bytes.
pub unsafe extern "C-unwind" fn register(
    port: c_int,
    class: c_int,
    version: c_int,
    rmpp_version: u8,
    mask: *const c_long,
) -> c_int {
    let oui = if needs_oui(class) { OPENIB } else { [0; 3] };
    // SAFETY: as the caller promises.
    let methods = unsafe { methods_of(mask) };
    let registered = registration(class, version, rmpp_version, oui, methods)
        .and_then(|it| register_at(port, it));
    negative(registered.map_err(|_| Errno(libc::EPERM)))
}

/// Implements `umad_register_oui`.
///
/// # Safety
/// `oui` is null or three bytes, and the mask null or 16 bytes.
pub unsafe extern "C-unwind" fn register_oui(
    port: c_int,
    class: c_int,
    rmpp_version: u8,
    oui: *const [u8; 3],
    mask: *const c_long,
) -> c_int {
    if !needs_oui(class) {
        return negative(Err(Errno::INVAL));
    }
    // SAFETY: as the caller promises.
    let (methods, oui) = unsafe { (methods_of(mask), oui.as_ref()) };
    let Some(&oui) = oui else {
        return negative(Err(Errno::INVAL));
    };
    let registered =
        registration(class, 1, rmpp_version, oui, methods).and_then(|it| register_at(port, it));
    negative(registered.map_err(|_| Errno(libc::EPERM)))
}

/// Implements `umad_register2`.
///
/// # Safety
/// The pointers are those of a registration and of a number.
pub unsafe extern "C-unwind" fn register2(
    port: c_int,
    attr: *mut UmadRegAttr,
    agent_id: *mut u32,
) -> c_int {
    // SAFETY: as the caller promises.
    let (Some(attr), Some(agent_id)) = (unsafe { attr.as_mut() }, unsafe { agent_id.as_mut() })
    else {
        return Errno::INVAL.set();
    };
    match register_by(port, attr) {
        Ok(agent) => {
            *agent_id = agent as u32;
            0
        }
        Err(errno) => errno.set(),
    }
}

fn register_by(port: c_int, attr: &mut UmadRegAttr) -> Result<c_int, Errno> {
    let class = attr.mgmt_class.into();
    if attr.flags & !USER_RMPP != 0 {
        attr.flags = USER_RMPP;
        return Err(Errno::INVAL);
    }
    if needs_oui(class) && (attr.oui == 0 || attr.oui > 0xff_ffff) {
        return Err(Errno::INVAL);
    }
    let [_, oui @ ..] = attr.oui.to_be_bytes();
    let [low, high] = attr.method_mask.map(u128::from);
    let version = attr.mgmt_class_version.into();
    let mut registration = registration(class, version, attr.rmpp_version, oui, low | high << 64)?;
    registration.is_segmented_here &= attr.flags & USER_RMPP == 0;
    register_at(port, registration)
}

/// # Safety
/// The mask is null, or that of 16 bytes.
unsafe fn methods_of(mask: *const c_long) -> u128 {
    // SAFETY: as the caller promises.
    match unsafe { mask.cast::<[c_long; 2]>().as_ref() } {
        Some(&[low, high]) => u128::from(low as u64) | u128::from(high as u64) << 64,
        None => 0,
    }
}

fn registration(
    class: c_int,
    version: c_int,
    rmpp_version: u8,
    oui: [u8; 3],
    methods: u128,
) -> Result<Registration, Errno> {
    let byte = |number: c_int| u8::try_from(number).map_err(|_| Errno::INVAL);
    let class = byte(class)?;
    if rmpp_version > 1 || (rmpp_version == 1 && !has_rmpp(class)) {
        return Err(Errno::INVAL);
    }
    Ok(Registration {
        class,
        class_version: byte(version)?,
        oui,
        methods,
        is_segmented_here: rmpp_version == 1,
    })
}

fn register_at(port: c_int, registration: Registration) -> Result<c_int, Errno> {
    let agent = client::register(borrowed(port)?, registration);
    agent
        .map(|agent| agent as c_int)
        .map_err(|error| errno_of(&error))
}

/// Implements `umad_unregister`.
pub extern "C-unwind" fn unregister(port: c_int, agent: c_int) -> c_int {
    let request = Request::Unregister {
        agent: agent as u32,
    };
    let unregistered = borrowed(port)
        .and_then(|port| client::ask(port, &request).map_err(|error| errno_of(&error)));
    match unregistered {
        Ok(_) => 0,
        Err(errno) => {
            errno.set();
            -1
        }
    }
}

/// Implements `umad_send`.
///
/// # Safety
/// The buffer has a front and `length` bytes.
pub unsafe extern "C-unwind" fn send(
    port: c_int,
    agent: c_int,
    umad: *mut c_void,
    length: c_int,
    timeout_ms: c_int,
    retries: c_int,
) -> c_int {
    let front = umad.cast::<IbUserMad>();
    let is_possible = |length: &usize| *length <= LONGEST && !umad.is_null();
    let Some(length) = usize::try_from(length).ok().filter(is_possible) else {
        Errno::INVAL.set();
        return -libc::EIO;
    };
    // SAFETY: as the caller promises.
    let (address, data) = unsafe {
        (*front).agent_id = agent as u32;
        (*front).timeout_ms = timeout_ms as u32;
        (*front).retries = retries as u32;
        let data = std::slice::from_raw_parts(front.add(1).cast::<u8>(), length);
        ((*front).addr, data)
    };
    let sent = Outgoing {
        agent: agent as u32,
        // A program that waits for ever waits for the longest time that there is.
        timeout_ms: timeout_ms as u32,
        retries: retries.max(0) as u32,
        to: from_c(&address),
        data: data.to_vec(),
    };
    let outcome =
        borrowed(port).and_then(|port| client::send(port, &sent).map_err(|error| errno_of(&error)));
    match outcome {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            -libc::EIO
        }
    }
}

/// Implements `umad_poll`.
pub extern "C-unwind" fn poll(port: c_int, timeout_ms: c_int) -> c_int {
    negative(wait(port, timeout_ms).map(|()| 0))
}

/// Waits until a MAD has arrived. The thread may be cancelled meanwhile.
fn wait(port: c_int, timeout_ms: c_int) -> Result<(), Errno> {
    let mut entry = libc::pollfd {
        fd: port,
        events: libc::POLLIN,
        revents: 0,
    };
    let arguments = [
        (&raw mut entry).expose_provenance(),
        1,
        timeout_ms as isize as usize,
        0,
    ];
    // SAFETY: one entry.
    match unsafe { sleep_in(libc::poll as *const c_void, arguments) } {
        Ok(0) => Err(Errno(libc::ETIMEDOUT)),
        Ok(_) if entry.revents & libc::POLLIN != 0 => Ok(()),
        Ok(_) => Err(Errno(libc::EIO)),
        Err(Errno(libc::ECANCELED)) => Err(Errno(libc::ECANCELED)),
        Err(_) => Err(Errno(libc::EIO)),
    }
}

/// Implements `umad_recv`.
///
/// # Safety
/// The buffer has room for a front and `*length` bytes.
pub unsafe extern "C-unwind" fn recv(
    port: c_int,
    umad: *mut c_void,
    length: *mut c_int,
    timeout_ms: c_int,
) -> c_int {
    if umad.is_null() || length.is_null() {
        return -Errno::INVAL.set();
    }
    if timeout_ms != 0
        && let Err(errno) = wait(port, timeout_ms)
    {
        return -errno.set();
    }
    // SAFETY: as the caller promises.
    let room = usize::try_from(unsafe { *length }).unwrap_or(0);
    match take(port, room) {
        Ok(taken) => {
            // SAFETY: as the caller promises; what `take` returns has room.
            unsafe {
                store(umad, taken.front, &taken.data);
                *length = taken.front.length as c_int;
            }
            match taken.errno {
                None => taken.front.agent as c_int,
                Some(errno) => -errno.set(),
            }
        }
        Err(errno) => -errno.set(),
    }
}

/// What a program gets.
struct Taken {
    front: Front,
    data: Vec<u8>,
    /// Set if the buffer was too small for the whole message.
    errno: Option<Errno>,
}

/// Takes the next message if there is room for it. Otherwise the message stays, and its beginning is returned.
fn take(port: c_int, room: usize) -> Result<Taken, Errno> {
    /// Another thread might otherwise take the message whose length this one has seen. Neither waits here.
    static TAKING: ForkLock<()> = ForkLock::new(());
    let port = borrowed(port)?;
    let taking = TAKING.lock();
    let (front, first) = client::peek(port).map_err(|error| errno_of(&error))?;
    if front.length as usize <= room {
        let taken = client::receive(port).map_err(|error| errno_of(&error))?;
        drop(taking);
        let (front, data) = (taken.front(), taken.data);
        let errno = None;
        return Ok(Taken { front, data, errno });
    }
    // The beginning of a longer message says how long it is.
    if front.length as usize <= MAD_LEN || room < MAD_LEN {
        return Err(Errno::INVAL);
    }
    Ok(Taken {
        front,
        data: first,
        errno: Some(Errno(libc::ENOSPC)),
    })
}

/// # Safety
/// The buffer has room for a front and the data.
unsafe fn store(umad: *mut c_void, front: Front, data: &[u8]) {
    let to = IbUserMad {
        agent_id: front.agent,
        status: front.status,
        timeout_ms: 0,
        retries: 0,
        length: size_of::<IbUserMad>() as u32 + front.length,
        addr: to_c(&front.peer),
    };
    let place = umad.cast::<IbUserMad>();
    // SAFETY: as the caller promises. The buffer need not be aligned.
    unsafe {
        place.write_unaligned(to);
        ptr::copy_nonoverlapping(data.as_ptr(), place.add(1).cast(), data.len());
    }
}

fn from_c(address: &IbMadAddr) -> Address {
    let route = || GlobalRoute {
        gid: address.gid,
        gid_index: address.gid_index,
        flow_label: u32::from_be(address.flow_label),
        hop_limit: address.hop_limit,
        traffic_class: address.traffic_class,
    };
    Address {
        qpn: u32::from_be(address.qpn),
        q_key: u32::from_be(address.qkey),
        lid: u16::from_be(address.lid),
        sl: address.sl,
        path_bits: address.path_bits,
        pkey_index: address.pkey_index,
        global: (address.grh_present != 0).then(route),
    }
}

fn to_c(address: &Address) -> IbMadAddr {
    let route = address.global.unwrap_or_default();
    IbMadAddr {
        qpn: address.qpn.to_be(),
        qkey: address.q_key.to_be(),
        lid: address.lid.to_be(),
        sl: address.sl,
        path_bits: address.path_bits,
        grh_present: u8::from(address.global.is_some()),
        gid_index: route.gid_index,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
        gid: route.gid,
        flow_label: route.flow_label.to_be(),
        pkey_index: address.pkey_index,
        reserved: [0; 6],
    }
}

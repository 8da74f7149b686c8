//! The functions that describe devices and open their ports. Each asks the fabric, so that a program sees the current state.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsFd as _, IntoRawFd as _};
use std::ptr;

use polyverbs_fabric::client;
use polyverbs_fabric::protocol::{NodeReport, PortReport};
use polyverbs_libibverbs::errno::{Errno, pointer};
use polyverbs_wire::mad::smp::{PhysicalState, PortInfo, PortState};

use crate::abi::{self, NAME, PORTS, UmadCa, UmadCaPair, UmadDeviceNode, UmadPort, fill};
use crate::setup::{self, adapter, errno_of};

fn negative(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| -errno.set())
}

/// Implements `umad_init` and `umad_done`.
pub extern "C-unwind" fn succeed() -> c_int {
    0
}

/// Implements `umad_close_port`. The end of the descriptor ends what the program has registered.
pub extern "C-unwind" fn close_port(port: c_int) -> c_int {
    // SAFETY: the program's own descriptor.
    unsafe { libc::close(port) };
    0
}

/// Implements `umad_debug`, which has nothing to show.
pub extern "C-unwind" fn debug(_level: c_int) -> c_int {
    0
}

/// Whether a program means this device: by its name, or by none.
///
/// # Safety
/// The name is null or a text.
unsafe fn is_meant(name: *const c_char) -> bool {
    // SAFETY: as the caller promises.
    name.is_null() || unsafe { CStr::from_ptr(name) }.to_bytes() == adapter().as_bytes()
}

/// # Safety
/// The name is null or a text.
unsafe fn device(name: *const c_char) -> Result<NodeReport, Errno> {
    // SAFETY: as the caller promises.
    if unsafe { is_meant(name) } {
        setup::report()
    } else {
        Err(Errno(libc::ENODEV))
    }
}

/// Implements `umad_get_cas_names`.
///
/// # Safety
/// There is room for `max` names.
pub unsafe extern "C-unwind" fn get_cas_names(names: *mut [c_char; NAME], max: c_int) -> c_int {
    if names.is_null() || max < 1 || setup::report().is_err() {
        return 0;
    }
    // SAFETY: as the caller promises.
    fill(unsafe { &mut *names }, adapter());
    1
}

/// Implements `umad_get_ca_device_list`.
pub extern "C-unwind" fn get_ca_device_list() -> *mut UmadDeviceNode {
    if setup::report().is_err() {
        Errno(0).set();
        return ptr::null_mut();
    }
    pointer(listed(adapter()))
}

fn listed(name: &str) -> Result<*mut UmadDeviceNode, Errno> {
    let size = size_of::<UmadDeviceNode>() + name.len() + 1;
    let node = abi::allocated::<u8>(size).cast::<UmadDeviceNode>();
    if node.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: there is room for the node and the name, whose last zero is there.
    unsafe {
        let text = node.add(1).cast::<u8>();
        ptr::copy_nonoverlapping(name.as_ptr(), text, name.len());
        (*node).ca_name = text.cast();
    }
    Ok(node)
}

/// Implements `umad_free_ca_device_list`.
///
/// # Safety
/// The list is one of [`get_ca_device_list`].
pub unsafe extern "C-unwind" fn free_ca_device_list(head: *mut UmadDeviceNode) {
    let mut next = head;
    while !next.is_null() {
        // SAFETY: as the caller promises.
        unsafe {
            let node = next;
            next = (*node).next;
            abi::free(node);
        }
    }
}

/// Implements `umad_sort_ca_device_list`: by the names.
///
/// # Safety
/// `head` is that of a list with `size` nodes, or with any number if it is 0.
pub unsafe extern "C-unwind" fn sort_ca_device_list(
    head: *mut *mut UmadDeviceNode,
    size: usize,
) -> c_int {
    let mut nodes = Vec::new();
    if head.is_null() {
        return Errno::INVAL.set();
    }
    // SAFETY: as the caller promises.
    unsafe {
        let mut next = *head;
        while !next.is_null() {
            nodes.push(next);
            next = (*next).next;
        }
        if size != 0 && size != nodes.len() {
            return Errno::INVAL.set();
        }
        nodes.sort_by_key(|node| CStr::from_ptr((**node).ca_name).to_bytes());
        let mut next = ptr::null_mut();
        for node in nodes.into_iter().rev() {
            (*node).next = next;
            next = node;
        }
        *head = next;
    }
    0
}

/// Implements `umad_get_ca`.
///
/// # Safety
/// The name is null or a text, and there is room for a device.
pub unsafe extern "C-unwind" fn get_ca(name: *const c_char, ca: *mut UmadCa) -> c_int {
    // SAFETY: as the caller promises.
    match unsafe { device(name) } {
        _ if ca.is_null() => negative(Err(Errno::INVAL)),
        Ok(report) => negative(described(&report).map(|made| {
            // SAFETY: as the caller promises.
            unsafe { ca.write(made) };
            0
        })),
        Err(errno) => negative(Err(errno)),
    }
}

fn described(report: &NodeReport) -> Result<UmadCa, Errno> {
    let info = report.info();
    let mut ca = UmadCa {
        ca_name: [0; NAME],
        node_type: info.node_type.into(),
        numports: report.ports.len().min(PORTS - 1) as c_int,
        fw_ver: [0; 20],
        ca_type: [0; 40],
        hw_ver: [0; 20],
        node_guid: info.node_guid.to_be(),
        system_guid: info.system_image_guid.to_be(),
        ports: [ptr::null_mut(); PORTS],
    };
    fill(&mut ca.ca_name, adapter());
    fill(&mut ca.fw_ver, env!("CARGO_PKG_VERSION"));
    fill(&mut ca.ca_type, "polyverbs");
    fill(&mut ca.hw_ver, "0x0");
    for (place, (port, number)) in ca.ports[1..].iter_mut().zip(report.ports.iter().zip(1..)) {
        let made = abi::allocated::<UmadPort>(1);
        if made.is_null() {
            return Err(Errno::NOMEM);
        }
        // SAFETY: room for a port.
        unsafe { made.write(port_of(port, number)?) };
        *place = made;
    }
    Ok(ca)
}

fn port_of(port: &PortReport, number: c_int) -> Result<UmadPort, Errno> {
    let info = port.info();
    let pkeys = abi::allocated::<u16>(port.p_keys.len());
    if pkeys.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: there is room for so many.
    unsafe { ptr::copy_nonoverlapping(port.p_keys.as_ptr(), pkeys, port.p_keys.len()) };
    let guid = port.guids.first().copied().unwrap_or_default();
    let rate = port.rate();
    let mut made = UmadPort {
        ca_name: [0; NAME],
        portnum: number,
        base_lid: info.lid.into(),
        lmc: info.lmc.into(),
        sm_lid: info.sm_lid.into(),
        sm_sl: info.sm_sl.into(),
        state: info.port_state.0.into(),
        phys_state: info.physical_state.0.into(),
        // In Gb/s, rounded down.
        rate: u32::from(rate.lanes) * u32::from(rate.speed) / 10,
        capmask: info.capability_mask.to_be(),
        gid_prefix: info.gid_prefix.to_be(),
        port_guid: guid.to_be(),
        pkeys_size: port.p_keys.len() as u32,
        pkeys,
        link_layer: [0; NAME],
    };
    fill(&mut made.ca_name, adapter());
    fill(&mut made.link_layer, "InfiniBand");
    Ok(made)
}

/// Implements `umad_release_ca`.
///
/// # Safety
/// The device is one that [`get_ca`] has described.
pub unsafe extern "C-unwind" fn release_ca(ca: *mut UmadCa) -> c_int {
    // SAFETY: as the caller promises.
    let Some(ca) = (unsafe { ca.as_mut() }) else {
        return -libc::ENODEV;
    };
    for port in &mut ca.ports {
        let port = std::mem::replace(port, ptr::null_mut());
        if !port.is_null() {
            // SAFETY: `described` has made both.
            unsafe {
                release_port(port);
                abi::free(port);
            }
        }
    }
    0
}

/// Implements `umad_release_port`.
///
/// # Safety
/// The port is one that [`get_port`] or [`get_ca`] has described.
pub unsafe extern "C-unwind" fn release_port(port: *mut UmadPort) -> c_int {
    // SAFETY: as the caller promises.
    let Some(port) = (unsafe { port.as_mut() }) else {
        return -libc::ENODEV;
    };
    let pkeys = std::mem::replace(&mut port.pkeys, ptr::null_mut());
    // SAFETY: `port_of` has made it.
    unsafe { abi::free(pkeys) };
    0
}

/// The number of the port that a program means: of port 0, the best one.
fn chosen(report: &NodeReport, port: c_int) -> Result<u8, Errno> {
    if port != 0 {
        let port = u8::try_from(port).map_err(|_| Errno(libc::ENODEV))?;
        let exists = port > 0 && usize::from(port) <= report.ports.len();
        return exists.then_some(port).ok_or(Errno(libc::ENODEV));
    }
    let tests: [fn(&PortInfo) -> bool; 3] = [
        |it| it.port_state == PortState::ACTIVE,
        |it| it.physical_state == PhysicalState::LINK_UP,
        |it| it.physical_state != PhysicalState::DISABLED,
    ];
    let best = tests.iter().find_map(|test| {
        let mut ports = report.ports.iter().zip(1..);
        let (_, number) = ports.find(|(port, _)| test(&port.info()))?;
        Some(number)
    });
    best.ok_or(Errno(libc::ENODEV))
}

/// Implements `umad_get_port`.
///
/// # Safety
/// The name is null or a text, and there is room for a port.
pub unsafe extern "C-unwind" fn get_port(
    name: *const c_char,
    port: c_int,
    target: *mut UmadPort,
) -> c_int {
    // SAFETY: as the caller promises.
    let report = unsafe { device(name) };
    let made = report.and_then(|report| {
        if target.is_null() {
            return Err(Errno::INVAL);
        }
        let number = chosen(&report, port)?;
        port_of(&report.ports[usize::from(number) - 1], number.into())
    });
    negative(made.map(|made| {
        // SAFETY: as the caller promises.
        unsafe { target.write(made) };
        0
    }))
}

/// Implements `umad_get_ca_portguids`.
///
/// # Safety
/// The name is null or a text, and there is room for `max` GUIDs.
pub unsafe extern "C-unwind" fn get_ca_portguids(
    name: *const c_char,
    guids: *mut u64,
    max: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    let report = match unsafe { device(name) } {
        Ok(report) => report,
        Err(errno) => return negative(Err(errno)),
    };
    let ports = report.ports.iter();
    let known = ports.map(|port| port.guids.first().copied().unwrap_or_default());
    let known: Vec<u64> = [0].into_iter().chain(known).collect();
    if guids.is_null() {
        return known.len() as c_int;
    }
    if usize::try_from(max).unwrap_or(0) < known.len() {
        return negative(Err(Errno::NOMEM));
    }
    for (index, guid) in known.iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { guids.add(index).write(guid.to_be()) };
    }
    known.len() as c_int
}

/// Implements `umad_get_issm_path`. To open that file makes the program the subnet manager of its port.
///
/// # Safety
/// The name is null or a text, and there is room for `max` characters.
pub unsafe extern "C-unwind" fn get_issm_path(
    name: *const c_char,
    port: c_int,
    path: *mut c_char,
    max: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    let report = unsafe { device(name) };
    let number = report.and_then(|report| chosen(&report, port));
    let number = match number {
        Ok(number) => number - 1,
        Err(errno) => return negative(Err(errno)),
    };
    let text = format!("/dev/infiniband/issm{number}");
    let room = usize::try_from(max).unwrap_or(0);
    if !path.is_null() && room > 0 {
        // SAFETY: as the caller promises.
        fill(unsafe { std::slice::from_raw_parts_mut(path, room) }, &text);
    }
    0
}

/// Implements `umad_open_port` and `umad_open_smi_port`.
///
/// # Safety
/// The name is null or a text.
pub unsafe extern "C-unwind" fn open_port(name: *const c_char, port: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let report = unsafe { device(name) };
    negative(report.and_then(|report| {
        let number = chosen(&report, port)?;
        let opened = || {
            let connection = setup::connect()?;
            client::attach(connection.as_fd(), setup::node(), number)?;
            Ok(connection.into_fd().into_raw_fd())
        };
        opened().map_err(|error| errno_of(&error))
    }))
}

/// Implements `umad_get_smi_gsi_pairs`: both queue pairs are those of one device.
///
/// # Safety
/// There is room for `max` pairs.
pub unsafe extern "C-unwind" fn get_smi_gsi_pairs(pairs: *mut UmadCaPair, max: usize) -> c_int {
    let Ok(report) = setup::report() else {
        return 0;
    };
    let Ok(port) = chosen(&report, 0) else {
        return 0;
    };
    if max == 0 || pairs.is_null() {
        return 0;
    }
    // SAFETY: as the caller promises.
    unsafe { pairs.write(pair(port)) };
    1
}

/// Implements `umad_get_smi_gsi_pair_by_ca_name`.
///
/// # Safety
/// The name is null or a text, and there is room for a pair.
pub unsafe extern "C-unwind" fn get_smi_gsi_pair_by_ca_name(
    name: *const c_char,
    port: u8,
    target: *mut UmadCaPair,
    _enforce_smi: u32,
) -> c_int {
    // SAFETY: as the caller promises.
    let report = unsafe { device(name) };
    match report.and_then(|report| chosen(&report, port.into())) {
        Ok(_) if target.is_null() => negative(Err(Errno::INVAL)),
        Ok(port) => {
            // SAFETY: as the caller promises.
            unsafe { target.write(pair(port)) };
            0
        }
        Err(errno) => negative(Err(errno)),
    }
}

fn pair(port: u8) -> UmadCaPair {
    let mut pair = UmadCaPair {
        smi_name: [0; NAME],
        smi_preferred_port: port.into(),
        gsi_name: [0; NAME],
        gsi_preferred_port: port.into(),
    };
    fill(&mut pair.smi_name, adapter());
    fill(&mut pair.gsi_name, adapter());
    pair
}

/// Opens the file that makes a program a subnet manager. The library that `polyverbs run` preloads calls this in place of `open`,
/// because the file is a connection to the fabric: its end, also that of a program that is killed, ends the role.
pub extern "C" fn open_issm(port: c_int) -> c_int {
    use polyverbs_fabric::protocol::Request;

    let opened = || {
        let connection = setup::connect()?;
        let number = u8::try_from(port + 1).unwrap_or(0);
        client::attach(connection.as_fd(), setup::node(), number)?;
        client::ask(connection.as_fd(), &Request::BecomeSm)?;
        Ok(connection.into_fd().into_raw_fd())
    };
    opened().unwrap_or_else(|error| {
        errno_of(&error).set();
        -1
    })
}

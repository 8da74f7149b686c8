//! The structures of libibumad, each at the place where C programs have it. Numbers that are not big-endian have the host's order.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The length of a device's name, with its terminating zero.
pub const NAME: usize = 20;
/// The number of ports for which a device has room, from 0.
pub const PORTS: usize = 10;

/// The peer of a MAD: `struct ib_mad_addr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct IbMadAddr {
    /// The number of the queue pair; big-endian.
    pub qpn: u32,
    /// The Q_Key; big-endian.
    pub qkey: u32,
    /// The LID; big-endian.
    pub lid: u16,
    /// The service level.
    pub sl: u8,
    /// The low bits of the own LID.
    pub path_bits: u8,
    /// Whether there is a global route.
    pub grh_present: u8,
    /// The index of the own GID.
    pub gid_index: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// The traffic class.
    pub traffic_class: u8,
    /// The GID.
    pub gid: [u8; 16],
    /// The flow label; big-endian.
    pub flow_label: u32,
    /// The index of the P_Key.
    pub pkey_index: u16,
    /// Not used.
    pub reserved: [u8; 6],
}

/// The front of a MAD in a program's buffer, `struct ib_user_mad`: the MAD follows.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct IbUserMad {
    /// The number of the agent.
    pub agent_id: u32,
    /// The error number with which a request has come back; 0 otherwise.
    pub status: u32,
    /// How long an answer is waited for.
    pub timeout_ms: u32,
    /// How often the request is repeated.
    pub retries: u32,
    /// The length of the front and the MAD.
    pub length: u32,
    /// The peer.
    pub addr: IbMadAddr,
}

/// A port: `struct umad_port`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields are those of the port's attributes")]
pub struct UmadPort {
    pub ca_name: [c_char; NAME],
    pub portnum: c_int,
    pub base_lid: c_uint,
    pub lmc: c_uint,
    pub sm_lid: c_uint,
    pub sm_sl: c_uint,
    pub state: c_uint,
    pub phys_state: c_uint,
    pub rate: c_uint,
    /// Big-endian, as the next two.
    pub capmask: u32,
    pub gid_prefix: u64,
    pub port_guid: u64,
    pub pkeys_size: c_uint,
    /// From the C library's allocator.
    pub pkeys: *mut u16,
    pub link_layer: [c_char; NAME],
}

/// A device: `struct umad_ca`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields are those of the device's files")]
pub struct UmadCa {
    pub ca_name: [c_char; NAME],
    pub node_type: c_uint,
    pub numports: c_int,
    pub fw_ver: [c_char; 20],
    pub ca_type: [c_char; 40],
    pub hw_ver: [c_char; 20],
    /// Big-endian, as the next.
    pub node_guid: u64,
    pub system_guid: u64,
    /// By number, each from the C library's allocator.
    pub ports: [*mut UmadPort; PORTS],
}

/// A device in a list: `struct umad_device_node`. The name is part of the same allocation.
#[derive(Debug)]
#[repr(C)]
pub struct UmadDeviceNode {
    /// The next device.
    pub next: *mut Self,
    /// The name.
    pub ca_name: *const c_char,
}

/// The registration of an agent: `struct umad_reg_attr`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields are those of the registration")]
pub struct UmadRegAttr {
    pub mgmt_class: u8,
    pub mgmt_class_version: u8,
    pub flags: u32,
    pub method_mask: [u64; 2],
    pub oui: u32,
    pub rmpp_version: u8,
}

/// The devices for queue pairs 0 and 1: `struct umad_ca_pair`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "each device has a name and a port")]
pub struct UmadCaPair {
    pub smi_name: [c_char; NAME],
    pub smi_preferred_port: u32,
    pub gsi_name: [c_char; NAME],
    pub gsi_preferred_port: u32,
}

const _: () = {
    assert!(size_of::<IbMadAddr>() == 44);
    assert!(size_of::<IbUserMad>() == 64);
    assert!(size_of::<UmadPort>() == 112);
    assert!(size_of::<UmadCa>() == 208);
    assert!(size_of::<UmadDeviceNode>() == 16);
    assert!(size_of::<UmadRegAttr>() == 32);
    assert!(size_of::<UmadCaPair>() == 48);
};

/// Writes a text into an array of characters, with a zero at its end.
pub(crate) fn fill(target: &mut [c_char], text: &str) {
    target.fill(0);
    let room = target.len().saturating_sub(1);
    for (place, byte) in target[..room].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
}

/// Zeroed memory of the C library's allocator; null if there is none.
pub(crate) fn allocated<T>(count: usize) -> *mut T {
    // SAFETY: any count and size may be asked for.
    unsafe { libc::calloc(count, size_of::<T>()) }.cast()
}

/// # Safety
/// The pointer is null, or one of the C library's allocator.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    // SAFETY: as the caller promises.
    unsafe { libc::free(pointer.cast::<c_void>()) }
}

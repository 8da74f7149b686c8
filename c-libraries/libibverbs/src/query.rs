//! Queries of C programs: attributes of devices and ports, GIDs and partition keys.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::ptr;

use polyverbs_configuration::{LinkLayer, Profile};
use verbs_api::Features;
use verbs_api::capability::{AtomicScope, GidEntry, GidType, PortAttributes};
use verbs_api::ids::{Gid, LinkAddress};

use crate::abi::{
    IbvContext, IbvDeviceAttr, IbvDeviceAttrEx, IbvGid, IbvGidEntry, IbvOdpCaps, IbvPortAttr,
};
use crate::context::{self, State};
use crate::errno::{Errno, code, minus_one};
use crate::{dm, interface};

const fn capped(value: u64) -> c_int {
    if value > i32::MAX as u64 {
        i32::MAX
    } else {
        value as c_int
    }
}

fn scope(scope: AtomicScope) -> c_int {
    match scope {
        AtomicScope::None => 0,
        AtomicScope::Hca => 1,
        AtomicScope::Global => 2,
    }
}

fn cap_flags(state: &State) -> u32 {
    let profile = state.shared.listed.configured().taken_on();
    if let Some(flags) = profile.and_then(Profile::device_cap_flags) {
        return flags;
    }
    let features = state.context.features();
    // Bad P_Key and Q_Key counters, current state in modify, port events, RNR NAKs, resizable SRQs.
    let mut flags = 1 << 1 | 1 << 2 | 1 << 7 | 1 << 10 | 1 << 12 | 1 << 13;
    for (feature, bit) in [
        (Features::WINDOW_1, 17),
        (Features::BMME, 21),
        (Features::WINDOW_2A, 23),
        (Features::WINDOW_2B, 24),
    ] {
        if features.contains(feature) {
            flags |= 1 << bit;
        }
    }
    if state.context.extension::<::xrc::Xrc>().is_ok() {
        flags |= 1 << 20;
    }
    flags
}

fn device_attr(state: &State) -> IbvDeviceAttr {
    // A device may report other maxima than it did when it was opened.
    let attributes = state.shared.device.attributes();
    let limits = &attributes.limits;
    let mut fw_ver = [0; 64];
    for (place, byte) in fw_ver[..63]
        .iter_mut()
        .zip(attributes.identity.fw_ver.bytes())
    {
        *place = byte as c_char;
    }
    IbvDeviceAttr {
        fw_ver,
        node_guid: u64::from_ne_bytes(attributes.node_guid.0),
        sys_image_guid: u64::from_ne_bytes(attributes.sys_image_guid.0),
        max_mr_size: limits.max_mr_size,
        page_size_cap: limits.page_size_cap,
        vendor_id: attributes.identity.vendor_id,
        vendor_part_id: attributes.identity.vendor_part_id,
        hw_ver: attributes.identity.hw_ver,
        max_qp: capped(limits.max_qp.into()),
        max_qp_wr: capped(limits.max_qp_wr.into()),
        device_cap_flags: cap_flags(state),
        max_sge: capped(limits.max_send_sge.min(limits.max_recv_sge).into()),
        max_sge_rd: capped(limits.max_sge_rd.into()),
        max_cq: capped(limits.max_cq.into()),
        max_cqe: capped(limits.max_cqe.into()),
        max_mr: capped(limits.max_mr.into()),
        max_pd: capped(limits.max_pd.into()),
        max_qp_rd_atom: capped(limits.max_qp_rd_atom.into()),
        max_ee_rd_atom: 0,
        max_res_rd_atom: capped(limits.max_res_rd_atom.into()),
        max_qp_init_rd_atom: capped(limits.max_qp_init_rd_atom.into()),
        max_ee_init_rd_atom: 0,
        atomic_cap: scope(attributes.atomic_cap),
        max_ee: 0,
        max_rdd: 0,
        max_mw: capped(limits.max_mw.into()),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: capped(limits.max_mcast_grp.into()),
        max_mcast_qp_attach: capped(limits.max_mcast_qp_attach.into()),
        max_total_mcast_qp_attach: capped(
            u64::from(limits.max_mcast_grp) * u64::from(limits.max_mcast_qp_attach),
        ),
        max_ah: capped(limits.max_ah.into()),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: capped(limits.max_srq.into()),
        max_srq_wr: capped(limits.max_srq_wr.into()),
        max_srq_sge: capped(limits.max_srq_sge.into()),
        max_pkeys: 1,
        local_ca_ack_delay: limits.local_ca_ack_delay,
        phys_port_cnt: limits.phys_port_cnt,
    }
}

/// Implements `ibv_query_device`.
///
/// # Safety
/// `attr` is null or writable.
pub unsafe extern "C-unwind" fn query_device(
    context: *mut IbvContext,
    attr: *mut IbvDeviceAttr,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { context::own(context) }.and_then(|state| {
        // SAFETY: as the caller promises.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::INVAL)?;
        *attr = device_attr(state);
        Ok(())
    }))
}

const ODP_SEND: u32 = 1;
const ODP_RECV: u32 = 1 << 1;
const ODP_WRITE: u32 = 1 << 2;
// On-demand paging for send, receive, write, read, atomics, and receives of SRQs.
const ODP_RELIABLE: u32 = 0x3f;

/// Implements `ibv_query_device_ex`: fills only as much of the structure as the program's version of it has.
///
/// # Safety
/// `size` bytes from `attr` are writable; `input` is null or readable.
pub unsafe extern "C-unwind" fn query_device_ex(
    context: *mut IbvContext,
    input: *const u32,
    attr: *mut IbvDeviceAttrEx,
    size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { context::own(context) }.and_then(|state| {
        // SAFETY: as the caller promises.
        let unknown = unsafe { input.as_ref() }.is_some_and(|&comp_mask| comp_mask != 0);
        if attr.is_null() || unknown || size < offset_of!(IbvDeviceAttrEx, odp_caps) {
            return Err(Errno::INVAL);
        }
        let orig_attr = device_attr(state);
        // SAFETY: numbers only, for which zero is a value.
        let mut full: IbvDeviceAttrEx = unsafe { std::mem::zeroed() };
        full.device_cap_flags_ex = u64::from(orig_attr.device_cap_flags);
        full.phys_port_cnt_ex = u32::from(orig_attr.phys_port_cnt);
        full.orig_attr = orig_attr;
        full.max_dm_size = dm::MAX_SIZE;
        // Every form of it: memory is used in place and not pinned.
        if state.context.features().contains(Features::ON_DEMAND) {
            full.odp_caps = IbvOdpCaps {
                general_caps: 3,
                rc_odp_caps: ODP_RELIABLE,
                uc_odp_caps: ODP_SEND | ODP_RECV | ODP_WRITE,
                ud_odp_caps: ODP_SEND | ODP_RECV,
            };
            full.xrc_odp_caps = ODP_RELIABLE;
        }
        let length = size.min(size_of::<IbvDeviceAttrEx>());
        // SAFETY: no more than the program has room for, and no more than there is.
        unsafe { ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), attr.cast(), length) };
        Ok(())
    }))
}

// The size of the GID table, of which most entries are empty, as in kernels.
const GID_TABLE: usize = 16;

/// Connection management, and GIDs that are IP addresses.
const ON_IP: u32 = 1 << 16 | 1 << 26;
/// Traps, mapping of service levels, a system's GUID, extended speeds, connection management, notices of changes, and
/// reregistration of clients.
const IN_FABRIC: u32 = 1 << 3 | 1 << 6 | 1 << 11 | 1 << 14 | 1 << 16 | 1 << 22 | 1 << 25;

/// The codes of `active_width` and `active_speed` for a speed in Mb/s: four lanes if there is such a speed, or else another number.
fn width_and_speed(speed: u64) -> (u8, u8) {
    const WIDTHS: [(u64, u8); 5] = [(4, 2), (1, 1), (8, 4), (12, 8), (2, 16)];
    const LANES: [(u64, u8); 7] = [
        (2_500, 1),
        (5_000, 2),
        (10_000, 4),
        (14_000, 16),
        (25_000, 32),
        (50_000, 64),
        (100_000, 128),
    ];
    let all = WIDTHS
        .iter()
        .flat_map(|width| LANES.iter().map(move |lane| (*width, *lane)));
    let mut fitting = all.filter(|((lanes, _), (lane, _))| lanes * lane == speed);
    let found = fitting.next();
    found.map_or((1, 1), |((_, width), (_, lane))| (width, lane))
}

fn port_attr(state: &State, port: &PortAttributes) -> IbvPortAttr {
    // The values of `link_layer`, of which Ethernet also stands for iWARP.
    const ETHERNET: u8 = 2;
    const INFINIBAND: u8 = 1;
    let configured = state.shared.listed.configured();
    let is_infiniband = configured.link_layer() == LinkLayer::Infiniband;
    let (reported_lid, lmc) = configured.taken_on().map_or((None, None), Profile::lid);
    let (lid, sm_lid) = match port.address {
        LinkAddress::Lid(lid) => (lid, port.subnet.sm_lid),
        _ => {
            let lid = configured.lid();
            (lid.or(reported_lid).unwrap_or(0), lid.unwrap_or(0))
        }
    };
    let in_fabric = configured.is_in_fabric();
    let (active_width, active_speed) = match in_fabric {
        true => width_and_speed(port.speed),
        false => (1, 1),
    };
    IbvPortAttr {
        state: port.state as c_int,
        max_mtu: port.max_mtu as c_int,
        active_mtu: port.active_mtu as c_int,
        gid_tbl_len: GID_TABLE as c_int,
        port_cap_flags: if in_fabric { IN_FABRIC } else { ON_IP },
        max_msg_sz: u32::try_from(state.context.limits().max_msg_sz).unwrap_or(u32::MAX),
        bad_pkey_cntr: 0,
        qkey_viol_cntr: port.qkey_viol_cntr,
        pkey_tbl_len: port.pkeys.len() as u16,
        lid,
        sm_lid,
        lmc: lmc.unwrap_or(port.subnet.lmc),
        max_vl_num: 1,
        sm_sl: port.subnet.sm_sl,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width,
        active_speed,
        phys_state: port.phys_state as u8,
        link_layer: if is_infiniband { INFINIBAND } else { ETHERNET },
        flags: 0,
        port_cap_flags2: 0,
    }
}

/// Implements the macro `ibv_query_port`: fills only as much of the structure as the program's version of it has.
///
/// # Safety
/// `size` bytes from `attr` are writable.
pub unsafe extern "C-unwind" fn query_port_sized(
    context: *mut IbvContext,
    port: u8,
    attr: *mut IbvPortAttr,
    size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { context::own(context) }.and_then(|state| {
        if attr.is_null() {
            return Err(Errno::INVAL);
        }
        let full = port_attr(state, &state.context.query_port(port)?);
        // SAFETY: the room that the program says it has; nothing of ours beyond the end of `full`.
        unsafe {
            ptr::write_bytes(attr.cast::<u8>(), 0, size);
            let length = size.min(size_of::<IbvPortAttr>());
            ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), attr.cast(), length);
        }
        Ok(())
    }))
}

/// Implements the symbol `ibv_query_port`, whose structure ends before the second capability flags.
///
/// # Safety
/// `attr` is null, or 48 bytes are writable there.
pub unsafe extern "C-unwind" fn query_port(
    context: *mut IbvContext,
    port: u8,
    attr: *mut IbvPortAttr,
) -> c_int {
    const COMPATIBLE: usize = offset_of!(IbvPortAttr, port_cap_flags2);
    // SAFETY: as the caller promises.
    unsafe { query_port_sized(context, port, attr, COMPATIBLE) }
}

/// Implements `ibv_query_port_speed`: the speed in units of 100 Mb/s.
///
/// # Safety
/// `speed` is null or writable, and the device is not closed during the call.
pub unsafe extern "C-unwind" fn query_port_speed(
    context: *mut IbvContext,
    port: u32,
    speed: *mut u64,
) -> c_int {
    const UNIT: u64 = 100;
    // SAFETY: as the caller promises.
    code(unsafe { context::own(context) }.and_then(|state| {
        let port = u8::try_from(port).map_err(|_| Errno::INVAL)?;
        let found = state.context.query_port(port)?.speed / UNIT;
        // SAFETY: as the caller promises.
        *unsafe { speed.as_mut() }.ok_or(Errno::INVAL)? = found;
        Ok(())
    }))
}

// SAFETY of the callers: as for `context::own`.
unsafe fn gid_at(context: *mut IbvContext, port: u8, index: c_int) -> Result<Gid, Errno> {
    // SAFETY: as the caller promises.
    let state = unsafe { context::own(context) }?;
    let port = state.context.query_port(port)?;
    let index = usize::try_from(index).map_err(|_| Errno::INVAL)?;
    match port.gids.get(index) {
        Some(entry) => Ok(entry.gid),
        None if index < GID_TABLE => Ok(Gid::default()),
        None => Err(Errno::INVAL),
    }
}

/// Implements `ibv_query_gid`.
///
/// # Safety
/// `gid` is null or writable.
pub unsafe extern "C-unwind" fn query_gid(
    context: *mut IbvContext,
    port: u8,
    index: c_int,
    gid: *mut IbvGid,
) -> c_int {
    // SAFETY: as the caller promises.
    minus_one(unsafe { gid_at(context, port, index) }.and_then(|found| {
        // SAFETY: as the caller promises.
        let gid = unsafe { gid.as_mut() }.ok_or(Errno::INVAL)?;
        gid.raw = found.0;
        Ok(0)
    }))
}

const ROCE_V2: u32 = 2;
const ROCE_V1: u32 = 1;
const IB_OR_IWARP: u32 = 0;

fn gid_type(state: &State, gid_type: GidType) -> u32 {
    match gid_type {
        _ if !state.shared.listed.is_roce() => IB_OR_IWARP,
        GidType::RoceV2 => ROCE_V2,
        GidType::RoceV1 => ROCE_V1,
        GidType::Ib | GidType::Iwarp => IB_OR_IWARP,
    }
}

// The index of the network interface with the device's address; 0 if there is none.
fn interface(state: &State) -> u32 {
    interface::index_of(state.shared.listed.address())
}

fn entry_in_c(state: &State, port_num: u8, gid_index: u32, entry: &GidEntry) -> IbvGidEntry {
    IbvGidEntry {
        gid: IbvGid { raw: entry.gid.0 },
        gid_index,
        port_num: port_num.into(),
        gid_type: gid_type(state, entry.gid_type),
        ndev_ifindex: interface(state),
    }
}

fn entries(state: &State) -> Result<Vec<IbvGidEntry>, Errno> {
    let ports = 1..=state.context.limits().phys_port_cnt;
    let mut all = Vec::new();
    for number in ports {
        let gids = state.context.query_port(number)?.gids;
        let entries = gids.iter().zip(0..);
        let entries = entries.filter(|(entry, _)| !entry.is_empty());
        all.extend(entries.map(|(entry, index)| entry_in_c(state, number, index, entry)));
    }
    Ok(all)
}

/// Implements `_ibv_query_gid_ex`.
///
/// # Safety
/// `size` bytes from `entry` are writable.
pub unsafe extern "C-unwind" fn query_gid_ex(
    context: *mut IbvContext,
    port: u32,
    index: u32,
    entry: *mut IbvGidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { context::own(context) }.and_then(|state| {
        if flags != 0 || entry.is_null() || size < size_of::<IbvGidEntry>() {
            return Err(Errno::INVAL);
        }
        let port = u8::try_from(port).map_err(|_| Errno::INVAL)?;
        let gids = state.context.query_port(port)?.gids;
        if index as usize >= GID_TABLE.max(gids.len()) {
            return Err(Errno::INVAL);
        }
        let found = gids.get(index as usize).filter(|it| !it.is_empty());
        let found = found.ok_or(Errno(libc::ENODATA))?;
        // SAFETY: large enough, as was seen.
        unsafe { entry.write(entry_in_c(state, port, index, found)) };
        Ok(())
    }))
}

/// Implements `_ibv_query_gid_table`: returns the number of entries, or a negative error number.
///
/// # Safety
/// `max` entries of `size` bytes are writable.
pub unsafe extern "C-unwind" fn query_gid_table(
    context: *mut IbvContext,
    table: *mut IbvGidEntry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    // SAFETY: as the caller promises.
    let filled = unsafe { context::own(context) }.and_then(|state| {
        let all = entries(state)?;
        if flags != 0 || table.is_null() || size < size_of::<IbvGidEntry>() || max < all.len() {
            return Err(Errno::INVAL);
        }
        let count = all.len();
        for (place, entry) in all.into_iter().enumerate() {
            // SAFETY: within the table, whose entries may be longer than ours.
            unsafe { table.byte_add(place * size).write(entry) };
        }
        Ok(count as isize)
    });
    filled.unwrap_or_else(|errno| -(errno.set() as isize))
}

/// Implements `ibv_query_gid_type`: returns one of the two types that the kernel distinguishes, RoCE v2, or InfiniBand and
/// RoCE v1 together.
///
/// # Safety
/// `target` is null or writable.
pub unsafe extern "C-unwind" fn query_gid_type(
    context: *mut IbvContext,
    port: u8,
    index: u32,
    target: *mut c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    let looked = unsafe { context::own(context) }.and_then(|state| {
        let gids = state.context.query_port(port)?.gids;
        let is_v2 = match gids.get(index as usize) {
            Some(entry) => gid_type(state, entry.gid_type) == ROCE_V2,
            None if (index as usize) < GID_TABLE => state.shared.listed.is_roce(),
            None => return Err(Errno::INVAL),
        };
        // SAFETY: as the caller promises.
        *unsafe { target.as_mut() }.ok_or(Errno::INVAL)? = c_int::from(is_v2);
        Ok(0)
    });
    minus_one(looked)
}

/// Implements `ibv_query_pkey`.
///
/// # Safety
/// `pkey` is null or writable.
pub unsafe extern "C-unwind" fn query_pkey(
    context: *mut IbvContext,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: as the caller promises.
    minus_one(unsafe { context::own(context) }.and_then(|state| {
        let known = state.context.query_port(port)?;
        let index = usize::try_from(index).map_err(|_| Errno::INVAL)?;
        let value = known.pkeys.get(index).ok_or(Errno::INVAL)?;
        // SAFETY: as the caller promises.
        *unsafe { pkey.as_mut() }.ok_or(Errno::INVAL)? = value.to_be();
        Ok(0)
    }))
}

/// Implements `ibv_get_pkey_index`.
///
/// # Safety
/// The device is not closed during the call.
pub unsafe extern "C-unwind" fn get_pkey_index(
    context: *mut IbvContext,
    port: u8,
    pkey: u16,
) -> c_int {
    // SAFETY: as the caller promises.
    minus_one(unsafe { context::own(context) }.and_then(|state| {
        let known = state.context.query_port(port)?;
        let place = known
            .pkeys
            .iter()
            .position(|&known| known == u16::from_be(pkey));
        place.map(|place| place as c_int).ok_or(Errno::INVAL)
    }))
}

//! Open devices: what they answer about themselves, and their asynchronous events.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use verbs_api::objects::ObjectId;
use verbs_api::{
    Context, DestroyError, Device, Features, Memory, Mr, Pd, Qp, Requirements, Started, Transport,
    capability::{AtomicScope, GidEntry, PortAttributes},
    event::{AsyncEvent, EventSubject},
    ids::Gid,
};

use crate::abi::{
    IbvAsyncEvent, IbvContext, IbvDevice, IbvDeviceAttr, IbvDeviceAttrEx, IbvGid, IbvGidEntry,
    IbvOdpCaps, IbvPortAttr, OPS_SLOTS, Slot, VERBS_SLOTS, VerbsContext, ops, verbs,
};
use crate::device::ListedDevice;
use crate::errno::{Errno, code, minus_one, pointer};
use crate::events::Events;
use crate::lock::lock;
use crate::sinks::Sinks;
use crate::trace::entry::slot;
use crate::{absent, cq, dm, mr, mw, object, pd, post, qp_ex, srq, xrc};

/// An open device as it lies in memory.
#[repr(C)]
pub struct OpenContext {
    verbs: VerbsContext,
    own: State,
}

/// Ours.
pub struct State {
    /// The open device.
    pub context: Context,
    /// What it has in common with those that imported it.
    pub shared: Arc<Shared>,
    _cmd_fd: OwnedFd,
}

/// What an open device and its imports have in common.
pub struct Shared {
    context: Context,
    listed: &'static ListedDevice,
    // The file that stands for the device: duplicates of its descriptor name the same.
    file: u64,
    events: Arc<Events<AsyncEvent>>,
    // Where the structures are that events are about.
    elements: Mutex<HashMap<ObjectId, usize>>,
    unacknowledged: Mutex<Vec<(IbvAsyncEvent, AsyncEvent)>>,
    handles: AtomicU32,
    /// Protection domains by handle.
    pub pds: Mutex<HashMap<u32, Pd>>,
    /// Regions by handle.
    pub mrs: Mutex<HashMap<u32, Mr>>,
    /// The keys for reads, where the device needs others.
    pub sinks: Option<Arc<Sinks>>,
    /// Device memory by handle.
    pub dms: Mutex<HashMap<u32, Memory>>,
    /// Queue pairs by number: a program that connects one may name it so.
    pub qps: Mutex<HashMap<u32, Qp>>,
}

// Every device that is open: what an import looks through.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

impl Shared {
    /// A number for an object that the device has none for.
    pub fn next_handle(&self) -> u32 {
        self.handles.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The queue pair of this number, and the context that it is of: any that has opened the device.
    pub fn queue_pair(&self, qp_num: u32) -> Option<(Context, Qp)> {
        let open: Vec<_> = lock(&OPEN).iter().filter_map(Weak::upgrade).collect();
        let mut same = open.iter().filter(|open| ptr::eq(open.listed, self.listed));
        same.find_map(|open| {
            let qp = lock(&open.qps).get(&qp_num).cloned()?;
            Some((open.context.clone(), qp))
        })
    }
}

// SAFETY: the pointers in the events are numbers to us.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

const CONTEXT: usize = offset_of!(VerbsContext, context);

impl State {
    /// Remembers where the structure of an object is.
    pub fn place<C>(&self, id: ObjectId, at: *mut C) {
        lock(&self.shared.elements).insert(id, at.expose_provenance());
    }

    /// Destroys an object that events may be about, with those that nobody has fetched. It waits for those that were
    /// fetched and not acknowledged.
    ///
    /// # Errors
    /// It is in use.
    pub fn end<T: Send + 'static>(
        &self,
        id: ObjectId,
        destruction: Started<(), DestroyError<T>>,
    ) -> Result<(), Errno> {
        let about = |event: &AsyncEvent| event.subject() == EventSubject::Object(id);
        self.shared.events.remove(about);
        destruction.wait()?;
        lock(&self.shared.elements).remove(&id);
        Ok(())
    }

    /// Where it is.
    pub fn element(&self, id: ObjectId) -> *mut c_void {
        let at = lock(&self.shared.elements)
            .get(&id)
            .copied()
            .unwrap_or_default();
        ptr::with_exposed_provenance_mut(at)
    }
}

/// Ours, behind a pointer of the program.
///
/// # Errors
/// It is null, or the device was closed.
///
/// # Safety
/// Nobody closes the device while the answer is used.
pub unsafe fn own<'a>(context: *const IbvContext) -> Result<&'a State, Errno> {
    object::check(context)?;
    // SAFETY: live, so it is what `open` made: the public part lies at that place of it.
    Ok(unsafe { &(*context.byte_sub(CONTEXT).cast::<OpenContext>()).own })
}

fn slots() -> ([Slot; OPS_SLOTS], [Slot; VERBS_SLOTS]) {
    let mut short = [ptr::null(); OPS_SLOTS];
    short[ops::ALLOC_MW] = slot!("ibv_alloc_mw" => mw::alloc);
    short[ops::BIND_MW] = slot!("ibv_bind_mw" => mw::bind);
    short[ops::DEALLOC_MW] = slot!("ibv_dealloc_mw" => mw::dealloc);
    short[ops::POLL_CQ] = slot!("ibv_poll_cq" => cq::poll);
    short[ops::REQ_NOTIFY_CQ] = slot!("ibv_req_notify_cq" => cq::req_notify);
    short[ops::POST_SRQ_RECV] = slot!("ibv_post_srq_recv" => srq::post_recv);
    short[ops::POST_SEND] = slot!("ibv_post_send" => post::send);
    short[ops::POST_RECV] = slot!("ibv_post_recv" => post::recv);
    let mut long = [ptr::null(); VERBS_SLOTS];
    long[verbs::QUERY_PORT] = slot!("ibv_query_port" => query_port_sized);
    long[verbs::ADVISE_MR] = slot!("ibv_advise_mr" => mr::advise);
    long[verbs::REG_DM_MR] = slot!("ibv_reg_dm_mr" => dm::register);
    long[verbs::ALLOC_DM] = slot!("ibv_alloc_dm" => dm::alloc);
    long[verbs::FREE_DM] = slot!("ibv_free_dm" => dm::free);
    long[verbs::ALLOC_PARENT_DOMAIN] = slot!("ibv_alloc_parent_domain" => pd::alloc_parent);
    long[verbs::ALLOC_TD] = slot!("ibv_alloc_td" => pd::alloc_td);
    long[verbs::DEALLOC_TD] = slot!("ibv_dealloc_td" => pd::dealloc_td);
    long[verbs::OPEN_QP] = slot!("ibv_open_qp" => xrc::open_qp);
    long[verbs::GET_SRQ_NUM] = slot!("ibv_get_srq_num" => srq::get_number);
    long[verbs::CREATE_SRQ_EX] = slot!("ibv_create_srq_ex" => srq::create_ex);
    long[verbs::OPEN_XRCD] = slot!("ibv_open_xrcd" => xrc::open);
    long[verbs::CLOSE_XRCD] = slot!("ibv_close_xrcd" => xrc::close);
    long[verbs::QUERY_DEVICE_EX] = slot!("ibv_query_device_ex" => query_device_ex);
    long[verbs::CREATE_CQ_EX] = slot!("ibv_create_cq_ex" => cq::create_ex);
    long[verbs::CREATE_QP_EX] = slot!("ibv_create_qp_ex" => qp_ex::create);
    // An empty place would answer the same, but no trace would tell. What is left empty takes an object of these.
    long[verbs::ALLOC_NULL_MR] = slot!("ibv_alloc_null_mr" => absent::null);
    long[verbs::CREATE_COUNTERS] = slot!("ibv_create_counters" => absent::null);
    long[verbs::CREATE_FLOW_ACTION_ESP] = slot!("ibv_create_flow_action_esp" => absent::null);
    long[verbs::MODIFY_QP_RATE_LIMIT] = slot!("ibv_modify_qp_rate_limit" => absent::number);
    long[verbs::MODIFY_CQ] = slot!("ibv_modify_cq" => absent::number);
    long[verbs::POST_SRQ_OPS] = slot!("ibv_post_srq_ops" => absent::post_srq_ops);
    long[verbs::CREATE_RWQ_IND_TABLE] = slot!("ibv_create_rwq_ind_table" => absent::null);
    long[verbs::CREATE_WQ] = slot!("ibv_create_wq" => absent::null);
    long[verbs::QUERY_RT_VALUES] = slot!("ibv_query_rt_values_ex" => absent::number);
    long[verbs::CREATE_FLOW] = slot!("ibv_create_flow" => absent::null);
    (short, long)
}

/// Opens a device.
///
/// # Errors
/// The device, or a file descriptor, cannot be had.
pub fn open(
    listed: &'static ListedDevice,
    public: *mut IbvDevice,
    device: &Device,
) -> Result<*mut IbvContext, Errno> {
    let context = device.open(&Requirements::everything_of(&device.attributes()))?;
    // SAFETY: a new descriptor; the name is a literal.
    let cmd_fd = unsafe { libc::memfd_create(c"polyverbs".as_ptr(), libc::MFD_CLOEXEC) };
    if cmd_fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: just made, and nobody else's.
    let cmd_fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
    let events = Arc::new(Events::new()?);
    let told = Arc::clone(&events);
    context.on_event(move |event| told.push(event));
    let shared = Arc::new(Shared {
        sinks: Sinks::of(&context),
        context,
        listed,
        file: file_of(cmd_fd.as_raw_fd())?,
        events,
        elements: Mutex::default(),
        unacknowledged: Mutex::default(),
        handles: AtomicU32::new(0),
        pds: Mutex::default(),
        mrs: Mutex::default(),
        dms: Mutex::default(),
        qps: Mutex::default(),
    });
    let mut open = lock(&OPEN);
    open.retain(|known| known.strong_count() > 0);
    open.push(Arc::downgrade(&shared));
    drop(open);
    Ok(make(public, shared, cmd_fd))
}

// The number of the file behind a descriptor.
fn file_of(fd: c_int) -> Result<u64, Errno> {
    // SAFETY: numbers only, for which zero is a value.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: room for the answer.
    if unsafe { libc::fstat(fd, &raw mut found) } < 0 {
        return Err(Errno::last());
    }
    Ok(found.st_ino)
}

fn make(public: *mut IbvDevice, shared: Arc<Shared>, cmd_fd: OwnedFd) -> *mut IbvContext {
    let (short, long) = slots();
    let open = Box::new(OpenContext {
        verbs: VerbsContext {
            slots: long,
            sz: size_of::<VerbsContext>(),
            context: IbvContext {
                device: public,
                ops: short,
                cmd_fd: cmd_fd.as_raw_fd(),
                async_fd: shared.events.fd(),
                num_comp_vectors: capped(shared.context.limits().num_comp_vectors.into()),
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                abi_compat: ptr::without_provenance_mut(usize::MAX),
            },
        },
        own: State {
            context: shared.context.clone(),
            shared,
            _cmd_fd: cmd_fd,
        },
    });
    // SAFETY: within what was allocated.
    let at = unsafe { Box::into_raw(open).byte_add(CONTEXT) };
    object::remember(at.cast::<IbvContext>())
}

/// `ibv_import_device`: the open device that a descriptor, or a duplicate of it, stands for.
pub extern "C" fn import_device(cmd_fd: c_int) -> *mut IbvContext {
    pointer(file_of(cmd_fd).and_then(|file| {
        let open = lock(&OPEN);
        let mut shared = open.iter().filter_map(Weak::upgrade);
        let shared = shared.find(|shared| shared.file == file);
        drop(open);
        let shared = shared.ok_or(Errno(libc::EBADF))?;
        // SAFETY: the program gives the descriptor to the library.
        let cmd_fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        Ok(make(shared.listed.as_public(), shared, cmd_fd))
    }))
}

/// `ibv_close_device`. An engine's device is closed with the last that shares it. What a program has not destroyed does not
/// keep it open, as it does not with a kernel's device: it stays until the process ends.
///
/// # Safety
/// Nobody uses the device any more.
pub unsafe extern "C" fn close_device(context: *mut IbvContext) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { own(context) }.and_then(|state| {
        if Arc::strong_count(&state.shared) == 1 {
            match state.context.clone().close().wait() {
                Ok(()) | Err(DestroyError::Busy { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        object::forget(context);
        // SAFETY: live until now, so it is what `make` made.
        drop(unsafe { Box::from_raw(context.byte_sub(CONTEXT).cast::<OpenContext>()) });
        Ok(())
    }))
}

// Of nobody's: locally administered.
const VENDOR_ID: u32 = 0x02_70_76;

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
    let attributes = state.context.attributes();
    let limits = &attributes.limits;
    let mut fw_ver = [0; 64];
    for (place, octet) in fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *place = octet as c_char;
    }
    IbvDeviceAttr {
        fw_ver,
        node_guid: u64::from_ne_bytes(attributes.node_guid.0),
        sys_image_guid: u64::from_ne_bytes(attributes.sys_image_guid.0),
        max_mr_size: limits.max_mr_size,
        page_size_cap: limits.page_size_cap,
        vendor_id: VENDOR_ID,
        vendor_part_id: 1,
        hw_ver: 0,
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
        max_res_rd_atom: capped(u64::from(limits.max_qp_rd_atom) * u64::from(limits.max_qp)),
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

/// `ibv_query_device`.
///
/// # Safety
/// `attr` is null or writable.
pub unsafe extern "C" fn query_device(context: *mut IbvContext, attr: *mut IbvDeviceAttr) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { own(context) }.and_then(|state| {
        // SAFETY: as the caller promises.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::INVAL)?;
        *attr = device_attr(state);
        Ok(())
    }))
}

const ODP_SEND: u32 = 1;
const ODP_RECV: u32 = 1 << 1;
const ODP_WRITE: u32 = 1 << 2;
// Send, receive, write, read, atomics, and receives of shared queues.
const ODP_RELIABLE: u32 = 0x3f;

/// `ibv_query_device_ex`: as much of the structure as the program knows.
///
/// # Safety
/// `size` octets from `attr` are writable; `input` is null or readable.
pub unsafe extern "C" fn query_device_ex(
    context: *mut IbvContext,
    input: *const u32,
    attr: *mut IbvDeviceAttrEx,
    size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { own(context) }.and_then(|state| {
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
        // Memory is used where it is: every way of using it on demand is there.
        full.odp_caps = IbvOdpCaps {
            general_caps: 3,
            rc_odp_caps: ODP_RELIABLE,
            uc_odp_caps: ODP_SEND | ODP_RECV | ODP_WRITE,
            ud_odp_caps: ODP_SEND | ODP_RECV,
        };
        full.xrc_odp_caps = ODP_RELIABLE;
        let length = size.min(size_of::<IbvDeviceAttrEx>());
        // SAFETY: no more than the program has room for, and no more than there is.
        unsafe { ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), attr.cast(), length) };
        Ok(())
    }))
}

// Places for GIDs, most of them empty, as kernels have it.
const GID_TABLE: usize = 16;

fn port_attr(state: &State, port: &PortAttributes) -> IbvPortAttr {
    // What iWARP devices answer too: neither InfiniBand nor anything that needs a routing header.
    const ETHERNET: u8 = 2;
    const INFINIBAND: u8 = 1;
    let lid = state.shared.listed.configured().lid();
    IbvPortAttr {
        state: port.state as c_int,
        max_mtu: port.max_mtu as c_int,
        active_mtu: port.active_mtu as c_int,
        gid_tbl_len: GID_TABLE as c_int,
        // Connection management, and GIDs that are IP addresses.
        port_cap_flags: 1 << 16 | 1 << 26,
        max_msg_sz: u32::try_from(state.context.limits().max_msg_sz).unwrap_or(u32::MAX),
        bad_pkey_cntr: 0,
        qkey_viol_cntr: port.qkey_viol_cntr,
        pkey_tbl_len: port.pkeys.len() as u16,
        lid: lid.unwrap_or(0),
        sm_lid: lid.unwrap_or(0),
        lmc: port.subnet.lmc,
        max_vl_num: 1,
        sm_sl: port.subnet.sm_sl,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: 1,
        active_speed: 1,
        phys_state: port.phys_state as u8,
        link_layer: if lid.is_some() { INFINIBAND } else { ETHERNET },
        flags: 0,
        port_cap_flags2: 0,
    }
}

/// The function behind the macro `ibv_query_port`: as much of the structure as the program knows.
///
/// # Safety
/// `size` octets from `attr` are writable.
pub unsafe extern "C" fn query_port_sized(
    context: *mut IbvContext,
    port: u8,
    attr: *mut IbvPortAttr,
    size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { own(context) }.and_then(|state| {
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

/// `ibv_query_port` as a symbol: the structure ends before the second capability flags.
///
/// # Safety
/// `attr` is null or 48 octets are writable there.
pub unsafe extern "C" fn query_port(
    context: *mut IbvContext,
    port: u8,
    attr: *mut IbvPortAttr,
) -> c_int {
    const COMPATIBLE: usize = offset_of!(IbvPortAttr, port_cap_flags2);
    // SAFETY: as the caller promises.
    unsafe { query_port_sized(context, port, attr, COMPATIBLE) }
}

// SAFETY of the callers: as for `own`.
unsafe fn gid_at(context: *mut IbvContext, port: u8, index: c_int) -> Result<Gid, Errno> {
    // SAFETY: as the caller promises.
    let state = unsafe { own(context) }?;
    let port = state.context.query_port(port)?;
    let index = usize::try_from(index).map_err(|_| Errno::INVAL)?;
    match port.gids.get(index) {
        Some(entry) => Ok(entry.gid),
        None if index < GID_TABLE => Ok(Gid::default()),
        None => Err(Errno::INVAL),
    }
}

/// `ibv_query_gid`.
///
/// # Safety
/// `gid` is null or writable.
pub unsafe extern "C" fn query_gid(
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
const IB_OR_IWARP: u32 = 0;

fn gid_type(state: &State) -> u32 {
    match state.shared.listed.transport() {
        Transport::InfiniBand if state.shared.listed.configured().lid().is_none() => ROCE_V2,
        _ => IB_OR_IWARP,
    }
}

/// What `ibv_wc.sl` says of a datagram that a RoCE device received: which headers it had, as drivers of hardware report it
/// (RoCEv2 has no service level, and IBA A17.4.5.1 wants the completion to tell). UCX drops datagrams whose routing header
/// does not fit. Elsewhere it is the service level, which is 0.
pub(crate) fn packet_type(state: &State) -> u8 {
    const UDP: u8 = 1 << 3;
    const OVER_IPV6: u8 = 1;
    const OVER_IPV4: u8 = 2;
    match (gid_type(state), state.shared.listed.address()) {
        (ROCE_V2, IpAddr::V4(_)) => UDP | OVER_IPV4,
        (ROCE_V2, IpAddr::V6(_)) => UDP | OVER_IPV6,
        _ => 0,
    }
}

// The number of the interface that has the address, or 0.
fn interface(state: &State) -> u32 {
    crate::interface::index_of(state.shared.listed.address())
}

fn entry_in_c(state: &State, port_num: u8, gid_index: u32, entry: &GidEntry) -> IbvGidEntry {
    IbvGidEntry {
        gid: IbvGid { raw: entry.gid.0 },
        gid_index,
        port_num: port_num.into(),
        gid_type: gid_type(state),
        ndev_ifindex: interface(state),
    }
}

fn entries(state: &State) -> Result<Vec<IbvGidEntry>, Errno> {
    let ports = 1..=state.context.limits().phys_port_cnt;
    let mut all = Vec::new();
    for number in ports {
        let gids = state.context.query_port(number)?.gids;
        let entries = gids.iter().zip(0..);
        all.extend(entries.map(|(entry, index)| entry_in_c(state, number, index, entry)));
    }
    Ok(all)
}

/// `_ibv_query_gid_ex`.
///
/// # Safety
/// `size` octets from `entry` are writable.
pub unsafe extern "C" fn query_gid_ex(
    context: *mut IbvContext,
    port: u32,
    index: u32,
    entry: *mut IbvGidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { own(context) }.and_then(|state| {
        if flags != 0 || entry.is_null() || size < size_of::<IbvGidEntry>() {
            return Err(Errno::INVAL);
        }
        let port = u8::try_from(port).map_err(|_| Errno::INVAL)?;
        let gids = state.context.query_port(port)?.gids;
        if index as usize >= GID_TABLE.max(gids.len()) {
            return Err(Errno::INVAL);
        }
        let found = gids.get(index as usize).ok_or(Errno(libc::ENODATA))?;
        // SAFETY: large enough, as was seen.
        unsafe { entry.write(entry_in_c(state, port, index, found)) };
        Ok(())
    }))
}

/// `_ibv_query_gid_table`: how many entries there are, or an error number below zero.
///
/// # Safety
/// `max` entries of `size` octets are writable.
pub unsafe extern "C" fn query_gid_table(
    context: *mut IbvContext,
    table: *mut IbvGidEntry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    // SAFETY: as the caller promises.
    let filled = unsafe { own(context) }.and_then(|state| {
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

/// `ibv_query_gid_type`: of the two that the kernel tells apart, InfiniBand or RoCE v1 together, and RoCE v2.
///
/// # Safety
/// `target` is null or writable.
pub unsafe extern "C" fn query_gid_type(
    context: *mut IbvContext,
    port: u8,
    index: u32,
    target: *mut c_int,
) -> c_int {
    let index = c_int::try_from(index).unwrap_or(-1);
    // SAFETY: as the caller promises.
    let looked = unsafe { gid_at(context, port, index) }.and_then(|_| {
        // SAFETY: as the caller promises.
        let (state, target) = unsafe { (own(context)?, target.as_mut()) };
        *target.ok_or(Errno::INVAL)? = c_int::from(gid_type(state) == ROCE_V2);
        Ok(0)
    });
    minus_one(looked)
}

/// `ibv_query_pkey`.
///
/// # Safety
/// `pkey` is null or writable.
pub unsafe extern "C" fn query_pkey(
    context: *mut IbvContext,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: as the caller promises.
    minus_one(unsafe { own(context) }.and_then(|state| {
        let known = state.context.query_port(port)?;
        let index = usize::try_from(index).map_err(|_| Errno::INVAL)?;
        let value = known.pkeys.get(index).ok_or(Errno::INVAL)?;
        // SAFETY: as the caller promises.
        *unsafe { pkey.as_mut() }.ok_or(Errno::INVAL)? = value.to_be();
        Ok(0)
    }))
}

/// `ibv_get_pkey_index`.
///
/// # Safety
/// Nobody closes the device meanwhile.
pub unsafe extern "C" fn get_pkey_index(context: *mut IbvContext, port: u8, pkey: u16) -> c_int {
    // SAFETY: as the caller promises.
    minus_one(unsafe { own(context) }.and_then(|state| {
        let known = state.context.query_port(port)?;
        let place = known
            .pkeys
            .iter()
            .position(|&known| known == u16::from_be(pkey));
        place.map(|place| place as c_int).ok_or(Errno::INVAL)
    }))
}

/// `ibv_get_async_event`.
///
/// # Safety
/// `event` is null or writable, and nobody closes the device meanwhile.
pub unsafe extern "C" fn get_async_event(
    context: *mut IbvContext,
    event: *mut IbvAsyncEvent,
) -> c_int {
    // SAFETY: as the caller promises.
    minus_one(unsafe { own(context) }.and_then(|state| {
        if event.is_null() {
            return Err(Errno::INVAL);
        }
        let found = state.shared.events.next()?;
        let element = match found.subject() {
            EventSubject::Object(id) => state.element(id),
            EventSubject::Port(port) => ptr::without_provenance_mut(usize::from(port)),
            EventSubject::Device => ptr::null_mut(),
        };
        let told = IbvAsyncEvent {
            element,
            event_type: c_int::from(found.event_type().code()),
        };
        // SAFETY: as the caller promises.
        unsafe { event.write(told) };
        if matches!(found.subject(), EventSubject::Object(_)) {
            lock(&state.shared.unacknowledged).push((told, found));
        }
        Ok(0)
    }))
}

/// `ibv_ack_async_event`. The event does not tell of which open device it is, so all are asked.
///
/// # Safety
/// `event` is null or one that [`get_async_event`] filled.
pub unsafe extern "C" fn ack_async_event(event: *mut IbvAsyncEvent) {
    // SAFETY: as the caller promises.
    let Some(event) = (unsafe { event.as_ref() }) else {
        return;
    };
    // Queue pairs, completion queues and shared receive queues all begin with their context.
    if !matches!(event.event_type, 0..=7 | 14..=16) || object::check(event.element).is_err() {
        return;
    }
    // SAFETY: live, so the first field is there.
    let context = unsafe { *event.element.cast::<*mut IbvContext>() };
    // SAFETY: an object is live, so its device is.
    if let Ok(state) = unsafe { own(context) } {
        let mut waiting = lock(&state.shared.unacknowledged);
        let place = waiting.iter().position(|(known, _)| {
            (known.element, known.event_type) == (event.element, event.event_type)
        });
        let acknowledged = place.map(|place| waiting.swap_remove(place));
        drop(waiting);
        drop(acknowledged);
    }
}

/// `ibv_fork_init`: memory is not pinned, so forks need no care.
pub extern "C" fn fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`: not needed.
pub extern "C" fn is_fork_initialized() -> c_int {
    2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_says_so_through_the_table() {
        type Two<T> = extern "C" fn(*mut c_void, *mut c_void) -> T;
        let (_, long) = slots();
        for place in [
            verbs::ALLOC_NULL_MR,
            verbs::CREATE_COUNTERS,
            verbs::CREATE_FLOW_ACTION_ESP,
            verbs::CREATE_RWQ_IND_TABLE,
            verbs::CREATE_WQ,
            verbs::CREATE_FLOW,
        ] {
            // SAFETY: a function that makes something of two pointers at most.
            let make = unsafe { std::mem::transmute::<Slot, Two<*mut c_void>>(long[place]) };
            assert!(make(ptr::null_mut(), ptr::null_mut()).is_null());
            assert_eq!(Errno::last(), Errno::OPNOTSUPP);
        }
        for place in [
            verbs::MODIFY_QP_RATE_LIMIT,
            verbs::MODIFY_CQ,
            verbs::QUERY_RT_VALUES,
        ] {
            // SAFETY: a function of two pointers that answers an error number.
            let ask = unsafe { std::mem::transmute::<Slot, Two<c_int>>(long[place]) };
            assert_eq!(ask(ptr::null_mut(), ptr::null_mut()), libc::EOPNOTSUPP);
        }
        let (mut op, mut bad) = (0_u8, ptr::null_mut());
        let op = (&raw mut op).cast();
        // SAFETY: the second pointer is written.
        let answer = unsafe { absent::post_srq_ops(ptr::null_mut(), op, &raw mut bad) };
        assert_eq!((answer, bad), (libc::EOPNOTSUPP, op));
    }
}

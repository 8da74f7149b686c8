//! rdma-core's C interface: the structures of `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`, field by field, and their
//! constants. Shared by our C libraries and by the provider that uses rdma-core's.
//!
//! Every offset that a program compiled against rdma-core 44 relies on is asserted at compile time.
#![allow(
    missing_docs,
    reason = "names and meanings are those of rdma-core's manual pages"
)]

use std::ffi::{c_char, c_int, c_void};

/// One function pointer of a table such as `ibv_context_ops`, without its type.
pub type Slot = *const c_void;

macro_rules! layout {
    ($name:ty, $size:literal $(, $field:ident @ $offset:literal)* $(,)?) => {
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $( assert!(std::mem::offset_of!($name, $field) == $offset); )*
        };
    };
}

pub mod address;
mod convert;
pub mod rdmacm;

/// `union ibv_gid`, which has the alignment of its 64-bit halves.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub struct IbvGid {
    pub raw: [u8; 16],
}
layout!(IbvGid, 16, raw @ 0);

#[repr(C)]
pub struct IbvDevice {
    pub _dummy: [Slot; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}
layout!(IbvDevice, 664, node_type @ 16, name @ 24, dev_name @ 88, dev_path @ 152, ibdev_path @ 408);

pub const OPS_SLOTS: usize = 32;
/// Indices of the function pointers of `ibv_context_ops` that programs call.
pub mod ops {
    pub const ALLOC_MW: usize = 7;
    pub const BIND_MW: usize = 8;
    pub const DEALLOC_MW: usize = 9;
    pub const POLL_CQ: usize = 11;
    pub const REQ_NOTIFY_CQ: usize = 12;
    pub const POST_SRQ_RECV: usize = 20;
    pub const POST_SEND: usize = 25;
    pub const POST_RECV: usize = 26;
}

#[repr(C)]
pub struct IbvContext {
    pub device: *mut IbvDevice,
    pub ops: [Slot; OPS_SLOTS],
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub abi_compat: *mut c_void,
}
layout!(IbvContext, 328, device @ 0, ops @ 8, cmd_fd @ 264, async_fd @ 268, num_comp_vectors @ 272, mutex @ 280, abi_compat @ 320);

pub const VERBS_SLOTS: usize = 45;
/// Indices of the function pointers of `verbs_context` that programs call. Each version of rdma-core adds its own before those of
/// the versions before it, so that a place counted from the end is the same in all: the first six came after rdma-core 44.
pub mod verbs {
    pub const FREE_BUF: usize = 0;
    pub const ALLOC_BUF: usize = 1;
    pub const DM_EXPORT_DMABUF_FD: usize = 2;
    pub const REG_MR_EX: usize = 3;
    pub const DEALLOC_DMAH: usize = 4;
    pub const ALLOC_DMAH: usize = 5;
    pub const QUERY_PORT: usize = 6;
    pub const ADVISE_MR: usize = 7;
    pub const ALLOC_NULL_MR: usize = 8;
    pub const CREATE_COUNTERS: usize = 11;
    pub const REG_DM_MR: usize = 13;
    pub const ALLOC_DM: usize = 14;
    pub const FREE_DM: usize = 15;
    pub const CREATE_FLOW_ACTION_ESP: usize = 18;
    pub const MODIFY_QP_RATE_LIMIT: usize = 19;
    pub const ALLOC_PARENT_DOMAIN: usize = 20;
    pub const DEALLOC_TD: usize = 21;
    pub const ALLOC_TD: usize = 22;
    pub const MODIFY_CQ: usize = 23;
    pub const POST_SRQ_OPS: usize = 24;
    pub const CREATE_RWQ_IND_TABLE: usize = 26;
    pub const CREATE_WQ: usize = 29;
    pub const QUERY_RT_VALUES: usize = 30;
    pub const CREATE_CQ_EX: usize = 31;
    pub const QUERY_DEVICE_EX: usize = 33;
    pub const CREATE_FLOW: usize = 36;
    pub const OPEN_QP: usize = 38;
    pub const CREATE_QP_EX: usize = 39;
    pub const GET_SRQ_NUM: usize = 40;
    pub const CREATE_SRQ_EX: usize = 41;
    pub const OPEN_XRCD: usize = 42;
    pub const CLOSE_XRCD: usize = 43;
}

/// `struct verbs_context`: programs hold a pointer to its member `context`, and subtract that member's offset to reach the
/// rest. `sz` is its size, by which a program learns how many of the first slots a library lacks.
#[repr(C)]
pub struct VerbsContext {
    pub slots: [Slot; VERBS_SLOTS],
    pub sz: usize,
    pub context: IbvContext,
}
layout!(VerbsContext, 696, slots @ 0, sz @ 360, context @ 368);

#[repr(C)]
pub struct IbvDeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: u32,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}
layout!(IbvDeviceAttr, 232, node_guid @ 64, vendor_id @ 96, max_qp @ 108, device_cap_flags @ 116, max_cqe @ 132,
    max_qp_rd_atom @ 144, atomic_cap @ 164, max_mw @ 176, max_ah @ 200, max_srq_sge @ 220, max_pkeys @ 224, phys_port_cnt @ 227);

#[repr(C)]
pub struct IbvOdpCaps {
    pub general_caps: u64,
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
}
layout!(IbvOdpCaps, 24, general_caps @ 0, rc_odp_caps @ 8);

#[repr(C)]
pub struct IbvDeviceAttrEx {
    pub orig_attr: IbvDeviceAttr,
    pub comp_mask: u32,
    pub odp_caps: IbvOdpCaps,
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub tso_caps: [u32; 2],
    pub rss_caps: [u64; 4],
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: [u32; 3],
    pub raw_packet_caps: u32,
    pub tm_caps: [u32; 5],
    pub cq_mod_caps: [u16; 2],
    pub max_dm_size: u64,
    pub pci_atomic_caps: [u16; 3],
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}
layout!(IbvDeviceAttrEx, 400, comp_mask @ 232, odp_caps @ 240, completion_timestamp_mask @ 264, device_cap_flags_ex @ 280,
    tso_caps @ 288, rss_caps @ 296, max_wq_type_rq @ 328, packet_pacing_caps @ 332, raw_packet_caps @ 344, tm_caps @ 348,
    cq_mod_caps @ 368, max_dm_size @ 376, pci_atomic_caps @ 384, xrc_odp_caps @ 392, phys_port_cnt_ex @ 396);

#[repr(C)]
pub struct IbvPortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}
layout!(IbvPortAttr, 52, max_msg_sz @ 20, pkey_tbl_len @ 32, lid @ 34, link_layer @ 46, port_cap_flags2 @ 48);

#[repr(C)]
pub struct IbvGidEntry {
    pub gid: IbvGid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}
layout!(IbvGidEntry, 32, gid_index @ 16, ndev_ifindex @ 28);

#[repr(C)]
pub struct IbvPd {
    pub context: *mut IbvContext,
    pub handle: u32,
}
layout!(IbvPd, 16, context @ 0, handle @ 8);

#[repr(C)]
pub struct IbvMr {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
layout!(IbvMr, 48, addr @ 16, handle @ 32, lkey @ 36, rkey @ 40);

/// `struct ibv_buf`, whose contents no program knows.
#[repr(C)]
pub struct IbvBuf {
    pub _dummy: u64,
}

#[repr(C)]
pub struct IbvDmah {
    pub context: *mut IbvContext,
}
layout!(IbvDmah, 8);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct IbvDmahInitAttr {
    pub comp_mask: u32,
    pub cpu_id: u32,
    pub ph: u8,
    pub tph_mem_type: u8,
}
layout!(IbvDmahInitAttr, 12, cpu_id @ 4, ph @ 8, tph_mem_type @ 9);

/// `struct ibv_mr_init_attr`. Until rdma-core 64 it ended before `buf`, which is there only if `comp_mask` says so.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IbvMrInitAttr {
    pub length: usize,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut IbvDmah,
    pub buf: *mut IbvBuf,
}
layout!(IbvMrInitAttr, 72, access @ 8, comp_mask @ 16, iova @ 24, addr @ 32, fd @ 40, fd_offset @ 48, dmah @ 56, buf @ 64);

/// `enum ibv_mr_init_attr_mask`.
pub mod mr_init_attr {
    pub const IOVA: u64 = 1;
    pub const ADDR: u64 = 1 << 1;
    pub const FD: u64 = 1 << 2;
    pub const FD_OFFSET: u64 = 1 << 3;
    pub const DMAH: u64 = 1 << 4;
    pub const BUF: u64 = 1 << 5;
    pub const ALL: u64 = (1 << 6) - 1;
}

#[repr(C)]
pub struct IbvCompCntr {
    pub context: *mut IbvContext,
    pub handle: u32,
}
layout!(IbvCompCntr, 16, handle @ 8);

#[repr(C)]
pub struct IbvCompCntrInitAttr {
    pub comp_mask: u32,
    pub cntr_type: c_int,
    pub flags: u32,
}
layout!(IbvCompCntrInitAttr, 12, cntr_type @ 4, flags @ 8);

#[repr(C)]
pub struct IbvCompCntrCaps {
    pub max_value: u64,
    pub max_counters: u32,
    pub supported_qp_attach_ops: u32,
}
layout!(IbvCompCntrCaps, 16, max_counters @ 8, supported_qp_attach_ops @ 12);

#[repr(C)]
pub struct IbvQpAttachCompCntrAttr {
    pub comp_mask: u32,
    pub op_mask: u32,
}
layout!(IbvQpAttachCompCntrAttr, 8, op_mask @ 4);

#[repr(C)]
pub struct IbvMw {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub rkey: u32,
    pub handle: u32,
    pub mw_type: c_int,
}
layout!(IbvMw, 32, rkey @ 16, mw_type @ 24);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct IbvMwBindInfo {
    pub mr: *mut IbvMr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: u32,
}
layout!(IbvMwBindInfo, 32, addr @ 8, mw_access_flags @ 24);

#[repr(C)]
pub struct IbvMwBind {
    pub wr_id: u64,
    pub send_flags: u32,
    pub bind_info: IbvMwBindInfo,
}
layout!(IbvMwBind, 48, send_flags @ 8, bind_info @ 16);

#[repr(C)]
pub struct IbvCompChannel {
    pub context: *mut IbvContext,
    pub fd: c_int,
    pub refcnt: c_int,
}
layout!(IbvCompChannel, 16, fd @ 8, refcnt @ 12);

#[repr(C)]
pub struct IbvCq {
    pub context: *mut IbvContext,
    pub channel: *mut IbvCompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}
layout!(IbvCq, 128, cq_context @ 16, handle @ 24, cqe @ 28, mutex @ 32, cond @ 72, comp_events_completed @ 120);

#[repr(C)]
pub struct IbvCqEx {
    pub cq: IbvCq,
    pub comp_mask: u32,
    pub status: c_int,
    pub wr_id: u64,
    pub slots: [Slot; 18],
}
layout!(IbvCqEx, 288, comp_mask @ 128, status @ 132, wr_id @ 136, slots @ 144);
/// Indices of the function pointers of `ibv_cq_ex` that programs call.
pub mod cq_ex {
    pub const START_POLL: usize = 0;
    pub const NEXT_POLL: usize = 1;
    pub const END_POLL: usize = 2;
    pub const READ_OPCODE: usize = 3;
    pub const READ_VENDOR_ERR: usize = 4;
    pub const READ_BYTE_LEN: usize = 5;
    pub const READ_IMM_DATA: usize = 6;
    pub const READ_QP_NUM: usize = 7;
    pub const READ_SRC_QP: usize = 8;
    pub const READ_WC_FLAGS: usize = 9;
    pub const READ_SLID: usize = 10;
    pub const READ_SL: usize = 11;
    pub const READ_DLID_PATH_BITS: usize = 12;
    pub const READ_COMPLETION_TS: usize = 13;
    pub const READ_COMPLETION_WALLCLOCK_NS: usize = 17;
}

#[repr(C)]
pub struct IbvCqInitAttrEx {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut IbvCompChannel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut IbvPd,
}
layout!(IbvCqInitAttrEx, 56, cq_context @ 8, channel @ 16, comp_vector @ 24, wc_flags @ 32, comp_mask @ 40, flags @ 44,
    parent_domain @ 48);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvWc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// The immediate data in network byte order, or, where the completion reports an invalidated key, that key in host byte
    /// order.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}
layout!(IbvWc, 48, status @ 8, opcode @ 12, vendor_err @ 16, byte_len @ 20, imm_data @ 24, qp_num @ 28, src_qp @ 32,
    wc_flags @ 36, pkey_index @ 40, dlid_path_bits @ 45);

#[repr(C)]
pub struct IbvSrq {
    pub context: *mut IbvContext,
    pub srq_context: *mut c_void,
    pub pd: *mut IbvPd,
    pub handle: u32,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}
layout!(IbvSrq, 128, pd @ 16, handle @ 24, mutex @ 32, cond @ 72, events_completed @ 120);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct IbvSrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}
layout!(IbvSrqAttr, 12);

#[repr(C)]
pub struct IbvSrqInitAttr {
    pub srq_context: *mut c_void,
    pub attr: IbvSrqAttr,
}
layout!(IbvSrqInitAttr, 24, attr @ 8);

#[repr(C)]
pub struct IbvQp {
    pub context: *mut IbvContext,
    pub qp_context: *mut c_void,
    pub pd: *mut IbvPd,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_int,
    pub qp_type: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}
layout!(IbvQp, 160, srq @ 40, handle @ 48, qp_num @ 52, state @ 56, qp_type @ 60, mutex @ 64, cond @ 104, events_completed @ 152);

#[repr(C)]
pub struct IbvQpEx {
    pub qp: IbvQp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: u32,
    pub slots: [Slot; 21],
}
layout!(IbvQpEx, 352, comp_mask @ 160, wr_id @ 168, wr_flags @ 176, slots @ 184);
/// Indices of the function pointers of `ibv_qp_ex` that programs call.
pub mod qp_ex {
    pub const ATOMIC_CMP_SWP: usize = 0;
    pub const ATOMIC_FETCH_ADD: usize = 1;
    pub const BIND_MW: usize = 2;
    pub const LOCAL_INV: usize = 3;
    pub const RDMA_READ: usize = 4;
    pub const RDMA_WRITE: usize = 5;
    pub const RDMA_WRITE_IMM: usize = 6;
    pub const SEND: usize = 7;
    pub const SEND_IMM: usize = 8;
    pub const SEND_INV: usize = 9;
    pub const SET_UD_ADDR: usize = 11;
    pub const SET_XRC_SRQN: usize = 12;
    pub const SET_INLINE_DATA: usize = 13;
    pub const SET_INLINE_DATA_LIST: usize = 14;
    pub const SET_SGE: usize = 15;
    pub const SET_SGE_LIST: usize = 16;
    pub const START: usize = 17;
    pub const COMPLETE: usize = 18;
    pub const ABORT: usize = 19;
    pub const ATOMIC_WRITE: usize = 20;
}

/// `struct ibv_data_buf`: one buffer of inline data.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IbvDataBuf {
    pub addr: *const c_void,
    pub length: usize,
}
layout!(IbvDataBuf, 16, length @ 8);

#[repr(C)]
pub struct IbvQpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub cap: IbvQpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut IbvPd,
    pub xrcd: *mut IbvXrcd,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}
layout!(IbvQpInitAttrEx, 136, cap @ 32, qp_type @ 52, sq_sig_all @ 56, comp_mask @ 60, pd @ 64, xrcd @ 72,
    create_flags @ 80, max_tso_header @ 84, rwq_ind_tbl @ 88, rx_hash_conf @ 96, source_qpn @ 120, send_ops_flags @ 128);

#[repr(C)]
pub struct IbvXrcd {
    pub context: *mut IbvContext,
}
layout!(IbvXrcd, 8);

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct IbvQpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}
layout!(IbvQpCap, 20);

#[repr(C)]
pub struct IbvQpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub cap: IbvQpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}
layout!(IbvQpInitAttr, 64, srq @ 24, cap @ 32, qp_type @ 52, sq_sig_all @ 56);

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct IbvGlobalRoute {
    pub dgid: IbvGid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}
layout!(IbvGlobalRoute, 24, flow_label @ 16, sgid_index @ 20, traffic_class @ 22);

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct IbvAhAttr {
    pub grh: IbvGlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
layout!(IbvAhAttr, 32, dlid @ 24, is_global @ 29, port_num @ 30);

#[derive(Default)]
#[repr(C)]
pub struct IbvQpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: IbvQpCap,
    pub ah_attr: IbvAhAttr,
    pub alt_ah_attr: IbvAhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}
layout!(IbvQpAttr, 144, qkey @ 16, cap @ 36, ah_attr @ 56, alt_ah_attr @ 88, pkey_index @ 120, en_sqd_async_notify @ 124,
    max_rd_atomic @ 126, min_rnr_timer @ 128, port_num @ 129, timeout @ 130, rnr_retry @ 132, rate_limit @ 136);

#[repr(C)]
pub struct IbvAh {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub handle: u32,
}
layout!(IbvAh, 24, handle @ 16);

/// `struct ibv_grh`: the global routing header (GRH) in front of a received datagram.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IbvGrh {
    pub version_tclass_flow: u32,
    pub paylen: u16,
    pub next_hdr: u8,
    pub hop_limit: u8,
    pub sgid: IbvGid,
    pub dgid: IbvGid,
}
layout!(IbvGrh, 40, next_hdr @ 6, sgid @ 8, dgid @ 24);

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct IbvSge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}
layout!(IbvSge, 16, length @ 8, lkey @ 12);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Ud {
    pub ah: *mut IbvAh,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}
#[derive(Clone, Copy)]
#[repr(C)]
pub union SendWr {
    pub rdma: Rdma,
    pub atomic: Atomic,
    pub ud: Ud,
}
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BindMw {
    pub mw: *mut IbvMw,
    pub rkey: u32,
    pub bind_info: IbvMwBindInfo,
}

#[repr(C)]
pub struct IbvSendWr {
    pub wr_id: u64,
    pub next: *mut IbvSendWr,
    pub sg_list: *const IbvSge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: u32,
    /// The immediate data in network byte order, or, for a request that invalidates a key, that key in host byte order.
    pub imm_data: u32,
    pub wr: SendWr,
    /// Only for XRC: the number of the peer's shared receive queue.
    pub remote_srqn: u32,
    /// The arguments of a memory window bind. In C the same bytes serve segmentation offload (TSO) as a union.
    pub bind_mw: BindMw,
}
layout!(IbvSendWr, 128, num_sge @ 24, opcode @ 28, imm_data @ 36, wr @ 40, remote_srqn @ 72, bind_mw @ 80);

#[repr(C)]
pub struct IbvRecvWr {
    pub wr_id: u64,
    pub next: *mut IbvRecvWr,
    pub sg_list: *const IbvSge,
    pub num_sge: c_int,
}
layout!(IbvRecvWr, 32, num_sge @ 24);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct IbvAsyncEvent {
    /// What the event concerns, by its type: a queue pair, completion queue or shared receive queue, or the number of a
    /// port.
    pub element: *mut c_void,
    pub event_type: c_int,
}
layout!(IbvAsyncEvent, 16, event_type @ 8);

#[repr(C)]
pub struct IbvEce {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}
layout!(IbvEce, 12);

#[repr(C)]
pub struct IbvDm {
    pub context: *mut IbvContext,
    pub memcpy_to_dm: Slot,
    pub memcpy_from_dm: Slot,
    pub comp_mask: u32,
    pub handle: u32,
}
layout!(IbvDm, 32, memcpy_to_dm @ 8, memcpy_from_dm @ 16, comp_mask @ 24, handle @ 28);

#[repr(C)]
pub struct IbvAllocDmAttr {
    pub length: usize,
    pub log_align_req: u32,
    pub comp_mask: u32,
}
layout!(IbvAllocDmAttr, 16, log_align_req @ 8, comp_mask @ 12);

#[repr(C)]
pub struct IbvTd {
    pub context: *mut IbvContext,
}
layout!(IbvTd, 8);

#[repr(C)]
pub struct IbvParentDomainInitAttr {
    pub pd: *mut IbvPd,
    pub td: *mut IbvTd,
    pub comp_mask: u32,
    pub alloc: Slot,
    pub free: Slot,
    pub pd_context: *mut c_void,
}
layout!(IbvParentDomainInitAttr, 48, td @ 8, comp_mask @ 16, alloc @ 24, free @ 32, pd_context @ 40);

#[repr(C)]
pub struct IbvXrcdInitAttr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub oflags: c_int,
}
layout!(IbvXrcdInitAttr, 12);

#[repr(C)]
pub struct IbvSrqInitAttrEx {
    pub srq_context: *mut c_void,
    pub attr: IbvSrqAttr,
    pub comp_mask: u32,
    pub srq_type: c_int,
    pub pd: *mut IbvPd,
    pub xrcd: *mut IbvXrcd,
    pub cq: *mut IbvCq,
    pub tm_cap: [u32; 2],
}
layout!(IbvSrqInitAttrEx, 64, attr @ 8, comp_mask @ 20, srq_type @ 24, pd @ 32, xrcd @ 40, cq @ 48, tm_cap @ 56);

#[repr(C)]
pub struct IbvQpOpenAttr {
    pub comp_mask: u32,
    pub qp_num: u32,
    pub xrcd: *mut IbvXrcd,
    pub qp_context: *mut c_void,
    pub qp_type: c_int,
}
layout!(IbvQpOpenAttr, 32, qp_num @ 4, xrcd @ 8, qp_context @ 16, qp_type @ 24);

/// `enum ibv_qp_type`.
pub mod qp_type {
    pub const RC: i32 = 2;
    pub const UC: i32 = 3;
    pub const UD: i32 = 4;
    pub const XRC_SEND: i32 = 9;
    pub const XRC_RECV: i32 = 10;
}

/// `enum ibv_wr_opcode`.
pub mod wr_opcode {
    pub const RDMA_WRITE: i32 = 0;
    pub const RDMA_WRITE_WITH_IMM: i32 = 1;
    pub const SEND: i32 = 2;
    pub const SEND_WITH_IMM: i32 = 3;
    pub const RDMA_READ: i32 = 4;
    pub const ATOMIC_CMP_AND_SWP: i32 = 5;
    pub const ATOMIC_FETCH_AND_ADD: i32 = 6;
    pub const LOCAL_INV: i32 = 7;
    pub const BIND_MW: i32 = 8;
    pub const SEND_WITH_INV: i32 = 9;
    pub const ATOMIC_WRITE: i32 = 15;
}

/// `enum ibv_send_flags`.
pub mod send_flags {
    pub const FENCE: u32 = 1;
    pub const SIGNALED: u32 = 1 << 1;
    pub const SOLICITED: u32 = 1 << 2;
    pub const INLINE: u32 = 1 << 3;
}

/// `enum ibv_access_flags`: only those bits that this library treats as hints.
pub mod access {
    pub const ON_DEMAND: u32 = 1 << 6;
    pub const HUGETLB: u32 = 1 << 7;
    /// The range of bits for optional access flags, which a device may ignore.
    pub const OPTIONAL: u32 = 0x3ff0_0000;
}

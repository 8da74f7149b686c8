//! The structures of `<rdma/rdma_cma.h>`, field by field, and their constants.

use std::ffi::{c_char, c_int, c_void};

use crate::{IbvAhAttr, IbvCompChannel, IbvContext, IbvCq, IbvGid, IbvPd, IbvQp, IbvSrq};

#[repr(C)]
pub struct RdmaEventChannel {
    pub fd: c_int,
}
layout!(RdmaEventChannel, 4);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct RdmaIbAddr {
    pub sgid: IbvGid,
    pub dgid: IbvGid,
    /// The partition key in network byte order.
    pub pkey: u16,
}
layout!(RdmaIbAddr, 40, dgid @ 16, pkey @ 32);

/// A socket address of any family. Its longest member makes the union as long as the one that C programs are compiled with.
#[derive(Clone, Copy)]
#[repr(C)]
pub union Address {
    pub any: libc::sockaddr,
    pub v4: libc::sockaddr_in,
    pub v6: libc::sockaddr_in6,
    pub storage: libc::sockaddr_storage,
}

/// `struct sockaddr_ib`. All but the family and the scope is in network byte order.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SockaddrIb {
    pub sib_family: libc::sa_family_t,
    pub sib_pkey: u16,
    pub sib_flowinfo: u32,
    pub sib_addr: [u8; 16],
    pub sib_sid: u64,
    pub sib_sid_mask: u64,
    pub sib_scope_id: u64,
}
layout!(SockaddrIb, 48, sib_pkey @ 2, sib_flowinfo @ 4, sib_addr @ 8, sib_sid @ 24, sib_sid_mask @ 32, sib_scope_id @ 40);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct RdmaAddr {
    pub src: Address,
    pub dst: Address,
    pub ib: RdmaIbAddr,
}
layout!(RdmaAddr, 296, dst @ 128, ib @ 256);

/// `struct ibv_sa_path_rec`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IbvSaPathRec {
    pub dgid: IbvGid,
    pub sgid: IbvGid,
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: c_int,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}
layout!(IbvSaPathRec, 64, dlid @ 32, raw_traffic @ 36, flow_label @ 40, hop_limit @ 44, reversible @ 48, numb_path @ 52,
    pkey @ 54, sl @ 56, mtu @ 58, rate @ 60, packet_life_time @ 62, preference @ 63);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct RdmaRoute {
    pub addr: RdmaAddr,
    pub path_rec: *mut IbvSaPathRec,
    pub num_paths: c_int,
}
layout!(RdmaRoute, 312, path_rec @ 296, num_paths @ 304);

#[repr(C)]
pub struct RdmaCmId {
    pub verbs: *mut IbvContext,
    pub channel: *mut RdmaEventChannel,
    pub context: *mut c_void,
    pub qp: *mut IbvQp,
    pub route: RdmaRoute,
    pub ps: c_int,
    pub port_num: u8,
    pub event: *mut RdmaCmEvent,
    pub send_cq_channel: *mut IbvCompChannel,
    pub send_cq: *mut IbvCq,
    pub recv_cq_channel: *mut IbvCompChannel,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub pd: *mut IbvPd,
    pub qp_type: c_int,
}
layout!(RdmaCmId, 416, channel @ 8, context @ 16, qp @ 24, route @ 32, ps @ 344, port_num @ 348, event @ 352,
    send_cq_channel @ 360, send_cq @ 368, recv_cq_channel @ 376, recv_cq @ 384, srq @ 392, pd @ 400, qp_type @ 408);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct RdmaConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}
layout!(RdmaConnParam, 24, private_data_len @ 8, initiator_depth @ 10, retry_count @ 12, srq @ 14, qp_num @ 16);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct RdmaUdParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: IbvAhAttr,
    pub qp_num: u32,
    pub qkey: u32,
}
layout!(RdmaUdParam, 56, private_data_len @ 8, ah_attr @ 16, qp_num @ 48, qkey @ 52);

#[derive(Clone, Copy)]
#[repr(C)]
pub union RdmaParam {
    pub conn: RdmaConnParam,
    pub ud: RdmaUdParam,
    /// Of an event that the program has written.
    pub arg: u64,
}

#[repr(C)]
pub struct RdmaCmEvent {
    pub id: *mut RdmaCmId,
    pub listen_id: *mut RdmaCmId,
    pub event: c_int,
    pub status: c_int,
    pub param: RdmaParam,
}
layout!(RdmaCmEvent, 80, listen_id @ 8, event @ 16, status @ 20, param @ 24);

#[repr(C)]
pub struct RdmaAddrinfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: libc::socklen_t,
    pub ai_dst_len: libc::socklen_t,
    pub ai_src_addr: *mut libc::sockaddr,
    pub ai_dst_addr: *mut libc::sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut RdmaAddrinfo,
}
layout!(RdmaAddrinfo, 96, ai_port_space @ 12, ai_src_len @ 16, ai_src_addr @ 24, ai_src_canonname @ 40, ai_route_len @ 56,
    ai_connect_len @ 72, ai_next @ 88);

#[repr(C)]
pub struct RdmaCmJoinMcAttrEx {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut libc::sockaddr,
}
layout!(RdmaCmJoinMcAttrEx, 16, join_flags @ 4, addr @ 8);

/// `enum rdma_port_space`.
pub mod port_space {
    pub const IPOIB: i32 = 0x0002;
    pub const TCP: i32 = 0x0106;
    pub const UDP: i32 = 0x0111;
    pub const IB: i32 = 0x013f;
}

/// `enum rdma_cm_event_type`.
pub mod event {
    pub const ADDR_RESOLVED: i32 = 0;
    pub const ADDR_ERROR: i32 = 1;
    pub const ROUTE_RESOLVED: i32 = 2;
    pub const ROUTE_ERROR: i32 = 3;
    pub const CONNECT_REQUEST: i32 = 4;
    pub const CONNECT_RESPONSE: i32 = 5;
    pub const CONNECT_ERROR: i32 = 6;
    pub const UNREACHABLE: i32 = 7;
    pub const REJECTED: i32 = 8;
    pub const ESTABLISHED: i32 = 9;
    pub const DISCONNECTED: i32 = 10;
    pub const DEVICE_REMOVAL: i32 = 11;
    pub const MULTICAST_JOIN: i32 = 12;
    pub const MULTICAST_ERROR: i32 = 13;
    pub const TIMEWAIT_EXIT: i32 = 15;
    pub const ADDRINFO_RESOLVED: i32 = 16;
    pub const ADDRINFO_ERROR: i32 = 17;
    pub const USER: i32 = 18;
}

//! The names of a script: verbs, operations, statuses, events, error numbers.

use nix::errno::Errno;
use verbs_api::WcStatus;
use verbs_api::completion::WcOpcode;
use verbs_api::event::EventType;
use verbs_api::qp::{QpState, QpType};

/// Calls that only the libraries for C have: they do not reach a device, or only through a verb of another name. Those of
/// `libibverbs` are without `ibv_`.
pub const LIBRARY_CALLS: &[&str] = &[
    "advise_mr",
    "alloc_buf",
    "alloc_dm",
    "alloc_dmah",
    "alloc_parent_domain",
    "alloc_td",
    "close_device",
    "close_xrcd",
    "create_ah_from_wc",
    "create_comp_channel",
    "create_comp_cntr",
    "create_cq_ex",
    "create_qp_ex",
    "create_srq_ex",
    "dealloc_dmah",
    "dealloc_td",
    "destroy_comp_channel",
    "destroy_comp_cntr",
    "dm_export_dmabuf_fd",
    "export_buf_dmabuf_fd",
    "fork_init",
    "free_buf",
    "free_dm",
    "get_async_event",
    "get_cq_event",
    "get_device_index",
    "get_device_list",
    "get_pkey_index",
    "get_srq_num",
    "import_device",
    "import_dm",
    "import_mr",
    "import_pd",
    "inc_comp_cntr",
    "inc_err_comp_cntr",
    "init_ah_from_wc",
    "open_qp",
    "open_xrcd",
    "qp_to_qp_ex",
    "query_comp_cntr_caps",
    "query_device",
    "query_device_ex",
    "query_ece",
    "query_gid",
    "query_gid_ex",
    "query_gid_table",
    "query_gid_type",
    "query_pkey",
    "query_port_speed",
    "rdma_accept",
    "rdma_ack_cm_event",
    "rdma_bind_addr",
    "rdma_connect",
    "rdma_create_ep",
    "rdma_create_event_channel",
    "rdma_create_id",
    "rdma_create_qp",
    "rdma_create_qp_ex",
    "rdma_create_srq",
    "rdma_create_srq_ex",
    "rdma_destroy_id",
    "rdma_disconnect",
    "rdma_establish",
    "rdma_get_cm_event",
    "rdma_get_devices",
    "rdma_get_remote_ece",
    "rdma_get_request",
    "rdma_getaddrinfo",
    "rdma_init_qp_attr",
    "rdma_join_multicast",
    "rdma_join_multicast_ex",
    "rdma_leave_multicast",
    "rdma_listen",
    "rdma_migrate_id",
    "rdma_notify",
    "rdma_query_addrinfo",
    "rdma_reject",
    "rdma_reject_ece",
    "rdma_resolve_addr",
    "rdma_resolve_addrinfo",
    "rdma_resolve_route",
    "rdma_set_local_ece",
    "rdma_set_option",
    "rdma_write_cm_event",
    "read_comp_cntr",
    "read_err_comp_cntr",
    "read_sysfs_file",
    "reg_buf_mr",
    "reg_dm_mr",
    "reg_dmabuf_mr",
    "reg_mr_ex",
    "reg_mr_iova",
    "reg_mr_iova2",
    "set_comp_cntr",
    "set_ece",
    "set_err_comp_cntr",
];

/// The events of the connection manager (`librdmacm`), by code, without `RDMA_CM_EVENT_`.
pub const CM_EVENTS: [&str; 20] = [
    "ADDR_RESOLVED",
    "ADDR_ERROR",
    "ROUTE_RESOLVED",
    "ROUTE_ERROR",
    "CONNECT_REQUEST",
    "CONNECT_RESPONSE",
    "CONNECT_ERROR",
    "UNREACHABLE",
    "REJECTED",
    "ESTABLISHED",
    "DISCONNECTED",
    "DEVICE_REMOVAL",
    "MULTICAST_JOIN",
    "MULTICAST_ERROR",
    "ADDR_CHANGE",
    "TIMEWAIT_EXIT",
    "ADDRINFO_RESOLVED",
    "ADDRINFO_ERROR",
    "USER",
    "INTERNAL",
];

pub(super) type Named<T> = (&'static str, T);

pub(super) const OPERATIONS: &[Named<WcOpcode>] = &[
    ("send", WcOpcode::Send),
    ("write", WcOpcode::RdmaWrite),
    ("read", WcOpcode::RdmaRead),
    ("comp_swap", WcOpcode::CompSwap),
    ("fetch_add", WcOpcode::FetchAdd),
    ("bind_mw", WcOpcode::BindMw),
    ("local_inv", WcOpcode::LocalInv),
    ("reg_mr", WcOpcode::FastRegister),
    ("flush", WcOpcode::Flush),
    ("atomic_write", WcOpcode::AtomicWrite),
    ("recv", WcOpcode::Recv),
    ("recv_imm", WcOpcode::RecvRdmaWithImm),
];

pub(super) const STATUSES: &[Named<WcStatus>] = &[
    ("LOC_LEN", WcStatus::LocLenErr),
    ("LOC_QP_OP", WcStatus::LocQpOpErr),
    ("LOC_EEC_OP", WcStatus::LocEecOpErr),
    ("LOC_PROT", WcStatus::LocProtErr),
    ("WR_FLUSH", WcStatus::WrFlushErr),
    ("MW_BIND", WcStatus::MwBindErr),
    ("BAD_RESP", WcStatus::BadRespErr),
    ("LOC_ACCESS", WcStatus::LocAccessErr),
    ("REM_INV_REQ", WcStatus::RemInvReqErr),
    ("REM_ACCESS", WcStatus::RemAccessErr),
    ("REM_OP", WcStatus::RemOpErr),
    ("RETRY_EXC", WcStatus::RetryExcErr),
    ("RNR_RETRY_EXC", WcStatus::RnrRetryExcErr),
    ("REM_ABORT", WcStatus::RemAbortErr),
    ("FATAL", WcStatus::FatalErr),
    ("RESP_TIMEOUT", WcStatus::RespTimeoutErr),
    ("GENERAL", WcStatus::GeneralErr),
];

pub(super) const EVENTS: &[Named<EventType>] = &[
    ("CQ_ERR", EventType::CqErr),
    ("QP_FATAL", EventType::QpFatal),
    ("QP_REQ_ERR", EventType::QpReqErr),
    ("QP_ACCESS_ERR", EventType::QpAccessErr),
    ("COMM_EST", EventType::CommEst),
    ("SQ_DRAINED", EventType::SqDrained),
    ("PATH_MIG", EventType::PathMig),
    ("PATH_MIG_ERR", EventType::PathMigErr),
    ("QP_LAST_WQE_REACHED", EventType::QpLastWqeReached),
    ("SRQ_ERR", EventType::SrqErr),
    ("SRQ_LIMIT_REACHED", EventType::SrqLimitReached),
    ("PORT_ACTIVE", EventType::PortActive),
    ("PORT_ERR", EventType::PortErr),
    ("GID_CHANGE", EventType::GidChange),
    ("LID_CHANGE", EventType::LidChange),
    ("PKEY_CHANGE", EventType::PkeyChange),
    ("SM_CHANGE", EventType::SmChange),
    ("CLIENT_REREGISTER", EventType::ClientReregister),
    ("DEVICE_SPEED_CHANGE", EventType::DeviceSpeedChange),
    ("DEVICE_FATAL", EventType::DeviceFatal),
];

pub(super) const STATES: &[Named<QpState>] = &[
    ("reset", QpState::Reset),
    ("init", QpState::Init),
    ("rtr", QpState::Rtr),
    ("rts", QpState::Rts),
    ("sqd", QpState::Sqd),
    ("err", QpState::Err),
];

pub(super) const TYPES: &[Named<QpType>] =
    &[("rc", QpType::Rc), ("uc", QpType::Uc), ("ud", QpType::Ud)];

pub(super) fn find<T: Copy>(all: &[Named<T>], name: &str) -> Option<T> {
    let found = all.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value)
}

pub(super) fn name_of<T: PartialEq>(all: &[Named<T>], value: &T) -> &'static str {
    let found = all.iter().find(|(_, known)| known == value);
    found.map_or("?", |(name, _)| *name)
}

pub(super) fn names<T>(all: &[Named<T>]) -> impl Iterator<Item = &'static str> {
    all.iter().map(|(name, _)| *name)
}

/// The numbers of the system's errors.
fn errnos() -> impl Iterator<Item = (String, i32)> {
    let known = (1..=133).map(|number| (Errno::from_raw(number), number));
    let known = known.filter(|(errno, _)| *errno != Errno::UnknownErrno);
    known.map(|(errno, number)| (format!("{errno:?}"), number))
}

/// Returns the error number of this name. Names that Linux gives to the same number are known too.
pub(super) fn errno(name: &str) -> Option<i32> {
    match name {
        "ENOTSUP" => Some(libc::EOPNOTSUPP),
        "EWOULDBLOCK" => Some(libc::EAGAIN),
        "EDEADLOCK" => Some(libc::EDEADLK),
        _ => errnos()
            .find(|(known, _)| known == name)
            .map(|(_, number)| number),
    }
}

pub(super) fn errno_name(number: i32) -> String {
    format!("{:?}", Errno::from_raw(number))
}

/// Returns the name that is most like this one, among those that are like it at all.
pub(super) fn nearest(name: &str, all: impl Iterator<Item = String>) -> Option<String> {
    let near = all.map(|known| (distance(name, &known), known));
    let near = near.min_by_key(|(distance, _)| *distance);
    let most = (name.len() / 3).max(1);
    near.filter(|(distance, _)| *distance <= most)
        .map(|(_, known)| known)
}

pub(super) fn nearest_errno(name: &str) -> Option<String> {
    nearest(name, errnos().map(|(known, _)| known))
}

/// How many letters must be changed, added or left out.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (line, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, other) in to.iter().enumerate() {
            let changed = diagonal + usize::from(!letter.eq_ignore_ascii_case(other));
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

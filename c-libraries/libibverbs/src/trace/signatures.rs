//! The signatures of verbs: the names and types of arguments and the kind of result, for the trace.

use std::ffi::{CStr, c_char, c_int};

use super::show::{self, Kind};
use super::{Arguments, error};
use crate::errno::Errno;

/// The arguments and result of one verb, for the trace.
pub(super) struct Signature {
    // The arguments, separated by blanks: each has a name and, after a colon, a letter for the type; a pointer has no
    // letter.
    arguments: &'static str,
    pub(super) answer: Answer,
}

/// The kind of result that a verb returns, which decides how success and failure look.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Answer {
    /// 0 for success, or an error number.
    Number,
    /// -1 for failure, with the error number in `errno`; other values for success.
    MinusOne,
    /// The number of entries, or a negative error number.
    Count,
    /// The number of bytes, or -1 for failure with the error number in `errno`.
    Size,
    /// A pointer, or null for failure with the error number in `errno`.
    Pointer,
    /// A pointer to a QP, shown with its number; null for failure.
    Qp,
    /// A pointer to an MR, shown with its keys; null for failure.
    Mr,
    /// A C string.
    Text,
    /// A 32-bit number that never means failure.
    Plain,
    /// A 64-bit number.
    Wide,
    /// The verb returns nothing.
    Nothing,
}

impl Answer {
    /// The value that a verb with this kind of result returns if it fails with `errno`.
    pub(super) fn failure(self, errno: c_int) -> u64 {
        match self {
            Self::Number => errno as u64,
            Self::MinusOne | Self::Size => u64::MAX,
            Self::Count => -i64::from(errno) as u64,
            Self::Pointer | Self::Qp | Self::Mr | Self::Text => 0,
            Self::Plain | Self::Wide | Self::Nothing => 0,
        }
    }

    pub(super) fn show(self, result: u64, errno: Errno) -> String {
        let small = result as u32 as c_int;
        match self {
            Self::Nothing => String::new(),
            Self::Number if small > 0 => format!(" = {small} {}", error(small)),
            Self::MinusOne if small == -1 => format!(" = -1 {}", error(errno.0)),
            Self::Size if result as i64 == -1 => format!(" = -1 {}", error(errno.0)),
            Self::Count if small < 0 => format!(" = {small} {}", error(-small)),
            Self::Number | Self::MinusOne | Self::Count | Self::Plain => format!(" = {small}"),
            Self::Size => format!(" = {}", result as i64),
            Self::Wide => format!(" = {result:#x}"),
            Self::Pointer | Self::Qp | Self::Mr | Self::Text if result == 0 => {
                format!(" = NULL {}", error(errno.0))
            }
            Self::Pointer => format!(" = {result:#x}"),
            Self::Qp => format!(" = {result:#x} {}", show::qp(result)),
            Self::Mr => format!(" = {result:#x} {}", show::mr(result)),
            Self::Text => {
                // SAFETY: a text of ours.
                let text = unsafe { CStr::from_ptr(result as *const c_char) };
                format!(" = {text:?}")
            }
        }
    }
}

impl Signature {
    /// Formats the arguments with their names.
    pub(super) fn show(&self, given: &Arguments, result: u64) -> String {
        let mut shown = String::new();
        for (place, argument) in self.arguments.split_whitespace().enumerate() {
            let (name, kind) = argument.split_once(':').unwrap_or((argument, "p"));
            let value = given.get(place).copied().unwrap_or_default();
            if place > 0 {
                shown.push_str(", ");
            }
            let next = given.get(place + 1).copied().unwrap_or_default();
            let failed = self.answer.failed(result);
            shown.push_str(name);
            shown.push('=');
            Kind::of(kind).show(&mut shown, value, next, result, failed);
        }
        shown
    }

    /// Whether the result means that there was nothing to fetch, so that the caller probably repeats the call. Repetitions
    /// are counted and not traced one by one.
    pub(super) fn is_idle(&self, result: u64, errno: Errno) -> bool {
        let small = result as u32 as c_int;
        match self.answer {
            Answer::Count => small == 0,
            Answer::Number => small == libc::ENOENT,
            Answer::Size => small == -1 && errno.0 == libc::EAGAIN,
            Answer::MinusOne => {
                small == -1 && errno.0 == libc::EAGAIN || small == 0 && self.arguments == POLL
            }
            _ => false,
        }
    }
}

// The arguments of `rpoll`, which returns 0 if no socket is ready.
const POLL: &str = "fds nfds:z timeout:i";

impl Answer {
    // Whether the verb has failed, so that its output arguments are not filled.
    fn failed(self, result: u64) -> bool {
        let small = result as u32 as c_int;
        match self {
            Self::Number => small != 0,
            Self::MinusOne | Self::Count => small < 0,
            _ => false,
        }
    }
}

/// The signature of a verb by its name; `None` if it is not known.
pub(super) fn of(name: &str) -> Option<&'static Signature> {
    let found = SIGNATURES.iter().find(|(known, _)| *known == name);
    found.map(|(_, signature)| signature)
}

macro_rules! signatures {
    ($($name:literal ($arguments:literal) $answer:ident;)*) => {
        const SIGNATURES: &[(&str, Signature)] = &[
            $(($name, Signature { arguments: $arguments, answer: Answer::$answer }),)*
        ];
    };
}

signatures! {
    // Devices.
    "ibv_get_device_list" ("num_devices:I") Pointer;
    "ibv_free_device_list" ("list") Nothing;
    "ibv_get_device_name" ("device") Text;
    "ibv_get_device_guid" ("device") Wide;
    "ibv_get_device_index" ("device") MinusOne;
    "ibv_open_device" ("device:D") Pointer;
    "ibv_close_device" ("context") Number;
    "ibv_import_device" ("cmd_fd:i") Pointer;
    "ibv_query_device" ("context device_attr") Number;
    "ibv_query_device_ex" ("context input attr attr_size:z") Number;
    "ibv_query_port" ("context port_num:i port_attr:P") Number;
    "ibv_query_gid" ("context port_num:i index:i gid:G") MinusOne;
    "ibv_query_gid_type" ("context port_num:i index:i type:I") MinusOne;
    "_ibv_query_gid_ex" ("context port_num:i gid_index:i entry:G flags:x entry_size:z") Number;
    "_ibv_query_gid_table" ("context entries max_entries:z flags:x entry_size:z") Size;
    "ibv_query_pkey" ("context port_num:i index:i pkey") MinusOne;
    "ibv_get_pkey_index" ("context port_num:i pkey:x") MinusOne;
    "ibv_get_async_event" ("context event:E") MinusOne;
    "ibv_ack_async_event" ("event:E") Nothing;
    "ibv_get_sysfs_path" ("") Text;
    "ibv_read_sysfs_file" ("dir:s file:s buf size:z") MinusOne;
    "ibv_fork_init" ("") Number;
    "ibv_is_fork_initialized" ("") Plain;
    "ibv_register_driver" ("name init_func") Nothing;
    "verbs_register_driver_34" ("ops") Nothing;
    "ibv_resolve_eth_l2_from_gid" ("context attr eth_mac vid") Number;
    // Texts and rates.
    "ibv_node_type_str" ("node_type:i") Text;
    "ibv_port_state_str" ("port_state:i") Text;
    "ibv_event_type_str" ("event:i") Text;
    "ibv_wc_status_str" ("status:i") Text;
    "ibv_rate_to_mult" ("rate:i") Plain;
    "mult_to_ibv_rate" ("mult:i") Plain;
    "ibv_rate_to_mbps" ("rate:i") Plain;
    "mbps_to_ibv_rate" ("mbps:i") Plain;
    // Domains, memory, windows.
    "ibv_alloc_pd" ("context") Pointer;
    "ibv_dealloc_pd" ("pd") Number;
    "ibv_import_pd" ("context pd_handle:i") Pointer;
    "ibv_unimport_pd" ("pd") Nothing;
    "ibv_alloc_parent_domain" ("context attr") Pointer;
    "ibv_alloc_td" ("context init_attr") Pointer;
    "ibv_dealloc_td" ("td") Number;
    "ibv_open_xrcd" ("context xrcd_init_attr") Pointer;
    "ibv_close_xrcd" ("xrcd") Number;
    "ibv_reg_mr" ("pd addr length:z access:x") Mr;
    "ibv_reg_mr_iova" ("pd addr length:z iova:w access:x") Mr;
    "ibv_reg_mr_iova2" ("pd addr length:z iova:w access:x") Mr;
    "ibv_reg_dmabuf_mr" ("pd offset:w length:z iova:w fd:i access:x") Mr;
    "ibv_rereg_mr" ("mr flags:x pd addr length:z access:x") Number;
    "ibv_dereg_mr" ("mr") Number;
    "ibv_import_mr" ("pd mr_handle:i") Mr;
    "ibv_unimport_mr" ("mr") Nothing;
    "ibv_alloc_null_mr" ("pd") Pointer;
    "ibv_advise_mr" ("pd advice:i flags:x sg_list num_sge:i") Number;
    "ibv_alloc_mw" ("pd type:i") Pointer;
    "ibv_dealloc_mw" ("mw") Number;
    "ibv_bind_mw" ("qp mw mw_bind") Number;
    "ibv_alloc_dm" ("context attr") Pointer;
    "ibv_free_dm" ("dm") Number;
    "ibv_import_dm" ("context dm_handle:i") Pointer;
    "ibv_unimport_dm" ("dm") Nothing;
    "ibv_reg_dm_mr" ("pd dm dm_offset:w length:z access:x") Mr;
    "ibv_memcpy_to_dm" ("dm dm_offset:w host_addr length:z") Number;
    "ibv_memcpy_from_dm" ("host_addr dm dm_offset:w length:z") Number;
    "ibv_dofork_range" ("base size:z") Number;
    "ibv_dontfork_range" ("base size:z") Number;
    // Completion queues.
    "ibv_create_comp_channel" ("context") Pointer;
    "ibv_destroy_comp_channel" ("channel") Number;
    "ibv_create_cq" ("context cqe:i cq_context channel comp_vector:i") Pointer;
    "ibv_create_cq_ex" ("context cq_attr") Pointer;
    "ibv_resize_cq" ("cq cqe:i") Number;
    "ibv_destroy_cq" ("cq") Number;
    "ibv_get_cq_event" ("channel cq:V cq_context") MinusOne;
    "ibv_ack_cq_events" ("cq nevents:i") Nothing;
    "ibv_poll_cq" ("cq num_entries:i wc:C") Count;
    "ibv_req_notify_cq" ("cq solicited_only:i") Number;
    "ibv_start_poll" ("cq attr") Number;
    "ibv_next_poll" ("cq") Number;
    "ibv_end_poll" ("cq") Nothing;
    "ibv_wc_read_opcode" ("cq") Plain;
    "ibv_wc_read_vendor_err" ("cq") Plain;
    "ibv_wc_read_byte_len" ("cq") Plain;
    "ibv_wc_read_imm_data" ("cq") Plain;
    "ibv_wc_read_qp_num" ("cq") Plain;
    "ibv_wc_read_src_qp" ("cq") Plain;
    "ibv_wc_read_wc_flags" ("cq") Plain;
    "ibv_wc_read_slid" ("cq") Plain;
    "ibv_wc_read_sl" ("cq") Plain;
    "ibv_wc_read_dlid_path_bits" ("cq") Plain;
    // Queue pairs and related objects.
    "ibv_create_qp" ("pd qp_init_attr:Q") Qp;
    "ibv_create_qp_ex" ("context qp_init_attr_ex:Q") Qp;
    "ibv_open_qp" ("context qp_open_attr") Qp;
    "ibv_qp_to_qp_ex" ("qp") Pointer;
    "ibv_modify_qp" ("qp attr:A attr_mask:x") Number;
    "ibv_query_qp" ("qp attr attr_mask:x init_attr") Number;
    "ibv_query_qp_data_in_order" ("qp op:i flags:x") Plain;
    "ibv_query_ece" ("qp ece") Number;
    "ibv_set_ece" ("qp ece") Number;
    "ibv_destroy_qp" ("qp") Number;
    "ibv_create_srq" ("pd srq_init_attr") Pointer;
    "ibv_create_srq_ex" ("context srq_init_attr_ex") Pointer;
    "ibv_modify_srq" ("srq srq_attr srq_attr_mask:x") Number;
    "ibv_query_srq" ("srq srq_attr") Number;
    "ibv_get_srq_num" ("srq srq_num:I") Number;
    "ibv_destroy_srq" ("srq") Number;
    "ibv_post_srq_ops" ("srq op bad_op") Number;
    "ibv_modify_cq" ("cq attr") Number;
    "ibv_modify_qp_rate_limit" ("qp attr") Number;
    "ibv_create_wq" ("context wq_init_attr") Pointer;
    "ibv_create_rwq_ind_table" ("context init_attr") Pointer;
    "ibv_create_flow" ("qp flow") Pointer;
    "ibv_create_flow_action_esp" ("context esp") Pointer;
    "ibv_create_counters" ("context init_attr") Pointer;
    "ibv_query_rt_values_ex" ("context values") Number;
    "ibv_create_ah" ("pd attr:H") Pointer;
    "ibv_init_ah_from_wc" ("context port_num:i wc grh ah_attr:H") Number;
    "ibv_create_ah_from_wc" ("pd wc grh port_num:i") Pointer;
    "ibv_destroy_ah" ("ah") Number;
    "ibv_attach_mcast" ("qp gid:g lid:x") Number;
    "ibv_detach_mcast" ("qp gid:g lid:x") Number;
    // Requests.
    "ibv_post_send" ("qp wr:S bad_wr") Number;
    "ibv_post_recv" ("qp wr:R bad_wr") Number;
    "ibv_post_srq_recv" ("srq wr:R bad_wr") Number;
    "ibv_wr_start" ("qp") Nothing;
    "ibv_wr_complete" ("qp") Number;
    "ibv_wr_abort" ("qp") Nothing;
    "ibv_wr_atomic_cmp_swp" ("qp rkey:x remote_addr:w compare:w swap:w") Nothing;
    "ibv_wr_atomic_fetch_add" ("qp rkey:x remote_addr:w add:w") Nothing;
    "ibv_wr_atomic_write" ("qp rkey:x remote_addr:w atomic_wr") Nothing;
    "ibv_wr_bind_mw" ("qp mw rkey:x bind_info") Nothing;
    "ibv_wr_local_inv" ("qp invalidate_rkey:x") Nothing;
    "ibv_wr_rdma_read" ("qp rkey:x remote_addr:w") Nothing;
    "ibv_wr_rdma_write" ("qp rkey:x remote_addr:w") Nothing;
    "ibv_wr_rdma_write_imm" ("qp rkey:x remote_addr:w imm_data:x") Nothing;
    "ibv_wr_send" ("qp") Nothing;
    "ibv_wr_send_imm" ("qp imm_data:x") Nothing;
    "ibv_wr_send_inv" ("qp invalidate_rkey:x") Nothing;
    "ibv_wr_set_ud_addr" ("qp ah remote_qpn:x remote_qkey:x") Nothing;
    "ibv_wr_set_xrc_srqn" ("qp remote_srqn:x") Nothing;
    "ibv_wr_set_inline_data" ("qp addr length:z") Nothing;
    "ibv_wr_set_inline_data_list" ("qp num_buf:z buf_list") Nothing;
    "ibv_wr_set_sge" ("qp lkey:x addr:w length:i") Nothing;
    "ibv_wr_set_sge_list" ("qp num_sge:z sg_list") Nothing;
    // Structures between the kernel and programs.
    "ibv_copy_ah_attr_from_kern" ("dst src") Nothing;
    "ibv_copy_path_rec_from_kern" ("dst src") Nothing;
    "ibv_copy_path_rec_to_kern" ("dst src") Nothing;
    "ibv_copy_qp_attr_from_kern" ("dst src") Nothing;
    // Connections.
    "rdma_accept" ("id conn_param") MinusOne;
    "rdma_ack_cm_event" ("event") MinusOne;
    "rdma_bind_addr" ("id addr:N") MinusOne;
    "rdma_connect" ("id conn_param") MinusOne;
    "rdma_create_ep" ("id:V res pd qp_init_attr") MinusOne;
    "rdma_create_event_channel" ("") Pointer;
    "rdma_create_id" ("channel id:V context ps:x") MinusOne;
    "rdma_create_qp" ("id pd qp_init_attr:Q") MinusOne;
    "rdma_create_qp_ex" ("id qp_init_attr:Q") MinusOne;
    "rdma_create_srq" ("id pd attr") MinusOne;
    "rdma_create_srq_ex" ("id attr") MinusOne;
    "rdma_destroy_ep" ("id") Nothing;
    "rdma_destroy_event_channel" ("channel") Nothing;
    "rdma_destroy_id" ("id") MinusOne;
    "rdma_destroy_qp" ("id") Nothing;
    "rdma_destroy_srq" ("id") Nothing;
    "rdma_disconnect" ("id") MinusOne;
    "rdma_establish" ("id") MinusOne;
    "rdma_event_str" ("event:i") Text;
    "rdma_free_devices" ("list") Nothing;
    "rdma_freeaddrinfo" ("res") Nothing;
    "rdma_get_cm_event" ("channel event:M") MinusOne;
    "rdma_get_devices" ("num_devices:I") Pointer;
    "rdma_get_dst_port" ("id") Plain;
    "rdma_get_src_port" ("id") Plain;
    "rdma_get_remote_ece" ("id ece") MinusOne;
    "rdma_get_request" ("listen id:V") MinusOne;
    "rdma_getaddrinfo" ("node:s service:s hints res:V") MinusOne;
    "rdma_init_qp_attr" ("id qp_attr qp_attr_mask") MinusOne;
    "rdma_join_multicast" ("id addr:N context") MinusOne;
    "rdma_join_multicast_ex" ("id mc_join_attr context") MinusOne;
    "rdma_leave_multicast" ("id addr:N") MinusOne;
    "rdma_listen" ("id backlog:i") MinusOne;
    "rdma_migrate_id" ("id channel") MinusOne;
    "rdma_notify" ("id event:i") MinusOne;
    "rdma_reject" ("id private_data private_data_len:i") MinusOne;
    "rdma_reject_ece" ("id private_data private_data_len:i") MinusOne;
    "rdma_resolve_addr" ("id src_addr:N dst_addr:N timeout_ms:i") MinusOne;
    "rdma_resolve_route" ("id timeout_ms:i") MinusOne;
    "rdma_set_local_ece" ("id ece") MinusOne;
    "rdma_set_option" ("id level:i optname:i optval optlen:z") MinusOne;
    // Sockets.
    "rsocket" ("domain:i type:i protocol:i") MinusOne;
    "rbind" ("socket:i addr:N addrlen:i") MinusOne;
    "rlisten" ("socket:i backlog:i") MinusOne;
    "raccept" ("socket:i addr addrlen") MinusOne;
    "rconnect" ("socket:i addr:N addrlen:i") MinusOne;
    "rshutdown" ("socket:i how:i") MinusOne;
    "rclose" ("socket:i") MinusOne;
    "rrecv" ("socket:i buf len:z flags:x") Size;
    "rrecvfrom" ("socket:i buf len:z flags:x src_addr addrlen") Size;
    "rrecvmsg" ("socket:i msg flags:x") Size;
    "rsend" ("socket:i buf len:z flags:x") Size;
    "rsendto" ("socket:i buf len:z flags:x dest_addr:N addrlen:i") Size;
    "rsendmsg" ("socket:i msg flags:x") Size;
    "rread" ("socket:i buf count:z") Size;
    "rreadv" ("socket:i iov iovcnt:i") Size;
    "rwrite" ("socket:i buf count:z") Size;
    "rwritev" ("socket:i iov iovcnt:i") Size;
    "rpoll" ("fds nfds:z timeout:i") MinusOne;
    "rselect" ("nfds:i readfds writefds exceptfds timeout") MinusOne;
    "rgetpeername" ("socket:i addr addrlen") MinusOne;
    "rgetsockname" ("socket:i addr addrlen") MinusOne;
    "rsetsockopt" ("socket:i level:i optname:i optval optlen:i") MinusOne;
    "rgetsockopt" ("socket:i level:i optname:i optval optlen") MinusOne;
    "rfcntl" ("socket:i cmd:i arg:i") MinusOne;
    "riomap" ("socket:i buf len:z prot:x flags:x offset:i") Size;
    "riounmap" ("socket:i buf len:z") MinusOne;
    "riowrite" ("socket:i buf count:z offset:w flags:x") Size;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_public_symbol_has_a_signature() {
        let lists = [
            include_str!("../../../symbols/libibverbs.txt"),
            include_str!("../../../symbols/librdmacm.txt"),
        ];
        for symbol in lists.iter().flat_map(|list| list.lines()) {
            // Private symbols between the library and drivers of kernel devices.
            if symbol.contains("PRIVATE") {
                continue;
            }
            let name = symbol.split('@').next().unwrap();
            assert!(of(name).is_some(), "{name}");
        }
    }

    #[test]
    fn arguments_fit_the_registers_and_have_known_kinds() {
        for (name, signature) in SIGNATURES {
            let arguments: Vec<_> = signature.arguments.split_whitespace().collect();
            assert!(arguments.len() <= 6, "{name}");
            for argument in arguments {
                let kind = argument.split_once(':').map_or("p", |(_, kind)| kind);
                assert!(Kind::is_known(kind), "{name}: {argument}");
            }
        }
    }

    #[test]
    fn only_polls_that_found_nothing_count_as_idle() {
        let idle = |name, result, errno| of(name).unwrap().is_idle(result, Errno(errno));
        let minus_one = u64::MAX;
        assert!(idle("ibv_poll_cq", 0, 0) && !idle("ibv_poll_cq", 1, 0));
        assert!(idle("ibv_start_poll", libc::ENOENT as u64, 0) && !idle("ibv_start_poll", 0, 0));
        assert!(idle("rpoll", 0, 0) && !idle("rpoll", 1, 0));
        assert!(idle("rrecv", minus_one, libc::EAGAIN) && !idle("rrecv", minus_one, libc::EBADF));
        assert!(!idle("rrecv", 0, 0) && !idle("rdma_listen", 0, 0) && !idle("ibv_post_send", 0, 0));
    }

    #[test]
    fn results_report_errors_in_each_functions_way() {
        let none = Errno(0);
        assert_eq!(
            Answer::Number.show(22, none),
            " = 22 EINVAL (Invalid argument)"
        );
        assert_eq!(Answer::Number.show(0, none), " = 0");
        let minus_one = u64::from(u32::MAX);
        let told = Answer::MinusOne.show(minus_one, Errno::OPNOTSUPP);
        assert_eq!(told, " = -1 EOPNOTSUPP (Operation not supported)");
        assert_eq!(
            Answer::Pointer.show(0, Errno::NOMEM),
            " = NULL ENOMEM (Cannot allocate memory)"
        );
        assert_eq!(Answer::Nothing.show(7, none), "");
        assert_eq!(Answer::Size.show(4096, none), " = 4096");
    }
}

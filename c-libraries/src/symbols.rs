//! The exported symbols: one entry for each function, with its arguments and result as the trace shows them, and for each
//! version the function that implements it, if any.

use polyverbs_libibumad as libibumad;
use polyverbs_libibverbs as libibverbs;
use polyverbs_libibverbs::trace::{Answer, Function};
use polyverbs_librdmacm as librdmacm;

// libibverbs.so.1
functions! {
    _ibv_query_comp_cntr_caps ("context caps caps_size:z") Number: "@@" "IBVERBS_1.18" => libibverbs::counter::query_caps;
    _ibv_query_gid_ex ("context port_num:i gid_index:i entry:G flags:x entry_size:z") Number:
        "@@" "IBVERBS_1.11" => libibverbs::query::query_gid_ex;
    _ibv_query_gid_table ("context entries max_entries:z flags:x entry_size:z") Size:
        "@@" "IBVERBS_1.11" => libibverbs::query::query_gid_table;
    ibv_ack_async_event ("event:E") Nothing: "@@" "IBVERBS_1.1" => libibverbs::context::ack_async_event, "@" "IBVERBS_1.0";
    ibv_ack_cq_events ("cq nevents:i") Nothing: "@@" "IBVERBS_1.1" => libibverbs::cq::ack_events, "@" "IBVERBS_1.0";
    ibv_alloc_buf ("pd size:z buf") Pointer: "@@" "IBVERBS_1.17" => libibverbs::buf::alloc;
    ibv_alloc_dmah ("context attr:h") Pointer: "@@" "IBVERBS_1.15" => libibverbs::dmah::alloc;
    ibv_alloc_pd ("context") Pointer: "@@" "IBVERBS_1.1" => libibverbs::pd::alloc, "@" "IBVERBS_1.0";
    ibv_attach_mcast ("qp gid:g lid:x") Number: "@@" "IBVERBS_1.1" => libibverbs::qp::attach_mcast, "@" "IBVERBS_1.0";
    ibv_close_device ("context") Number: "@@" "IBVERBS_1.1" => libibverbs::open::close_device, "@" "IBVERBS_1.0";
    ibv_copy_ah_attr_from_kern ("dst src") Nothing: "@@" "IBVERBS_1.1";
    ibv_copy_path_rec_from_kern ("dst src") Nothing: "@@" "IBVERBS_1.0";
    ibv_copy_path_rec_to_kern ("dst src") Nothing: "@@" "IBVERBS_1.0";
    ibv_copy_qp_attr_from_kern ("dst src") Nothing: "@@" "IBVERBS_1.0";
    ibv_create_ah ("pd attr:H") Pointer: "@@" "IBVERBS_1.1" => libibverbs::ah::create, "@" "IBVERBS_1.0";
    ibv_create_ah_from_wc ("pd wc grh port_num:i") Pointer: "@@" "IBVERBS_1.1" => libibverbs::ah::create_from_wc;
    ibv_create_comp_channel ("context") Pointer: "@@" "IBVERBS_1.0" => libibverbs::cq::create_channel;
    ibv_create_comp_cntr ("context cc_attr") Pointer: "@@" "IBVERBS_1.18" => libibverbs::counter::create;
    ibv_create_cq ("context cqe:i cq_context channel comp_vector:i") Pointer:
        "@@" "IBVERBS_1.1" => libibverbs::cq::create,
        "@" "IBVERBS_1.0";
    ibv_create_qp ("pd qp_init_attr:Q") Qp: "@@" "IBVERBS_1.1" => libibverbs::qp::create, "@" "IBVERBS_1.0";
    ibv_create_srq ("pd srq_init_attr") Pointer: "@@" "IBVERBS_1.1" => libibverbs::srq::create, "@" "IBVERBS_1.0";
    ibv_dealloc_dmah ("dmah") Number: "@@" "IBVERBS_1.15" => libibverbs::dmah::dealloc;
    ibv_dealloc_pd ("pd") Number: "@@" "IBVERBS_1.1" => libibverbs::pd::dealloc, "@" "IBVERBS_1.0";
    ibv_dereg_mr ("mr") Number: "@@" "IBVERBS_1.1" => libibverbs::mr::dereg, "@" "IBVERBS_1.0";
    ibv_destroy_ah ("ah") Number: "@@" "IBVERBS_1.1" => libibverbs::ah::destroy, "@" "IBVERBS_1.0";
    ibv_destroy_comp_channel ("channel") Number: "@@" "IBVERBS_1.0" => libibverbs::cq::destroy_channel;
    ibv_destroy_comp_cntr ("comp_cntr") Number: "@@" "IBVERBS_1.18" => libibverbs::counter::destroy;
    ibv_destroy_cq ("cq") Number: "@@" "IBVERBS_1.1" => libibverbs::cq::destroy, "@" "IBVERBS_1.0";
    ibv_destroy_qp ("qp") Number: "@@" "IBVERBS_1.1" => libibverbs::qp::destroy, "@" "IBVERBS_1.0";
    ibv_destroy_srq ("srq") Number: "@@" "IBVERBS_1.1" => libibverbs::srq::destroy, "@" "IBVERBS_1.0";
    ibv_detach_mcast ("qp gid:g lid:x") Number: "@@" "IBVERBS_1.1" => libibverbs::qp::detach_mcast, "@" "IBVERBS_1.0";
    ibv_dm_export_dmabuf_fd ("dm") MinusOne: "@@" "IBVERBS_1.16" => libibverbs::dm::export_fd;
    ibv_dofork_range ("base size:z") Number: "@@" "IBVERBS_1.1";
    ibv_dontfork_range ("base size:z") Number: "@@" "IBVERBS_1.1";
    ibv_event_type_str ("event:i") Text: "@@" "IBVERBS_1.1" => libibverbs::names::event_type_str;
    ibv_export_buf_dmabuf_fd ("buf") MinusOne: "@@" "IBVERBS_1.18" => libibverbs::buf::export_fd;
    ibv_fork_init ("") Number: "@@" "IBVERBS_1.1" => libibverbs::context::fork_init;
    ibv_free_buf ("buf") Nothing: "@@" "IBVERBS_1.17" => libibverbs::buf::free;
    ibv_free_device_list ("list") Nothing: "@@" "IBVERBS_1.1" => libibverbs::device::free_device_list, "@" "IBVERBS_1.0";
    ibv_get_async_event ("context event:E") MinusOne:
        "@@" "IBVERBS_1.1" => libibverbs::context::get_async_event,
        "@" "IBVERBS_1.0";
    ibv_get_cq_event ("channel cq:V cq_context") MinusOne: "@@" "IBVERBS_1.1" => libibverbs::cq::get_event, "@" "IBVERBS_1.0";
    ibv_get_device_guid ("device") Wide: "@@" "IBVERBS_1.1" => libibverbs::device::get_device_guid, "@" "IBVERBS_1.0";
    ibv_get_device_index ("device") MinusOne: "@@" "IBVERBS_1.9" => libibverbs::device::get_device_index;
    ibv_get_device_list ("num_devices:I") Pointer: "@@" "IBVERBS_1.1" => libibverbs::device::get_device_list, "@" "IBVERBS_1.0";
    ibv_get_device_name ("device") Text: "@@" "IBVERBS_1.1" => libibverbs::device::get_device_name, "@" "IBVERBS_1.0";
    ibv_get_pkey_index ("context port_num:i pkey:x") MinusOne: "@@" "IBVERBS_1.5" => libibverbs::query::get_pkey_index;
    ibv_get_sysfs_path ("") Text: "@@" "IBVERBS_1.0" => libibverbs::device::get_sysfs_path;
    ibv_import_device ("cmd_fd:i") Pointer: "@@" "IBVERBS_1.10" => libibverbs::open::import_device;
    ibv_import_dm ("context dm_handle:i") Pointer: "@@" "IBVERBS_1.13" => libibverbs::dm::import;
    ibv_import_mr ("pd mr_handle:i") Mr: "@@" "IBVERBS_1.10" => libibverbs::mr::import;
    ibv_import_pd ("context pd_handle:i") Pointer: "@@" "IBVERBS_1.10" => libibverbs::pd::import;
    ibv_inc_comp_cntr ("comp_cntr amount:z") Number: "@@" "IBVERBS_1.18" => libibverbs::counter::add;
    ibv_inc_err_comp_cntr ("comp_cntr amount:z") Number: "@@" "IBVERBS_1.18" => libibverbs::counter::add_errors;
    ibv_init_ah_from_wc ("context port_num:i wc grh ah_attr:H") Number: "@@" "IBVERBS_1.1" => libibverbs::ah::init_from_wc;
    ibv_is_fork_initialized ("") Plain: "@@" "IBVERBS_1.13" => libibverbs::context::is_fork_initialized;
    ibv_modify_qp ("qp attr:A attr_mask:x") Number: "@@" "IBVERBS_1.1" => libibverbs::qp::modify, "@" "IBVERBS_1.0";
    ibv_modify_srq ("srq srq_attr srq_attr_mask:x") Number: "@@" "IBVERBS_1.1" => libibverbs::srq::modify, "@" "IBVERBS_1.0";
    ibv_node_type_str ("node_type:i") Text: "@@" "IBVERBS_1.1" => libibverbs::names::node_type_str;
    ibv_open_device ("device:D") Pointer: "@@" "IBVERBS_1.1" => libibverbs::open::open_device, "@" "IBVERBS_1.0";
    ibv_port_state_str ("port_state:i") Text: "@@" "IBVERBS_1.1" => libibverbs::names::port_state_str;
    ibv_qp_attach_comp_cntr ("qp comp_cntr attr") Number: "@@" "IBVERBS_1.18" => libibverbs::counter::attach;
    ibv_qp_to_qp_ex ("qp") Pointer: "@@" "IBVERBS_1.6" => libibverbs::qp::to_qp_ex;
    ibv_query_device ("context device_attr") Number: "@@" "IBVERBS_1.1" => libibverbs::query::query_device, "@" "IBVERBS_1.0";
    ibv_query_ece ("qp ece") Number: "@@" "IBVERBS_1.10" => libibverbs::qp::query_ece;
    ibv_query_gid ("context port_num:i index:i gid:G") MinusOne:
        "@@" "IBVERBS_1.1" => libibverbs::query::query_gid,
        "@" "IBVERBS_1.0";
    ibv_query_gid_type ("context port_num:i index:i type:I") MinusOne:
        "@@" "IBVERBS_PRIVATE_34" => libibverbs::query::query_gid_type,
        "@" "IBVERBS_PRIVATE_65" => libibverbs::query::query_gid_type;
    ibv_query_pkey ("context port_num:i index:i pkey") MinusOne:
        "@@" "IBVERBS_1.1" => libibverbs::query::query_pkey,
        "@" "IBVERBS_1.0";
    ibv_query_port ("context port_num:i port_attr:P") Number:
        "@@" "IBVERBS_1.1" => libibverbs::query::query_port,
        "@" "IBVERBS_1.0";
    ibv_query_port_speed ("context port_num:i port_speed:L") Number: "@@" "IBVERBS_1.16" => libibverbs::query::query_port_speed;
    ibv_query_qp ("qp attr attr_mask:x init_attr") Number: "@@" "IBVERBS_1.1" => libibverbs::qp::query, "@" "IBVERBS_1.0";
    ibv_query_qp_data_in_order ("qp op:i flags:x") Plain: "@@" "IBVERBS_1.14" => libibverbs::qp::query_data_in_order;
    ibv_query_srq ("srq srq_attr") Number: "@@" "IBVERBS_1.1" => libibverbs::srq::query, "@" "IBVERBS_1.0";
    ibv_rate_to_mbps ("rate:i") Plain: "@@" "IBVERBS_1.1" => libibverbs::names::rate_to_mbps;
    ibv_rate_to_mult ("rate:i") Plain: "@@" "IBVERBS_1.0" => libibverbs::names::rate_to_mult;
    ibv_read_comp_cntr ("comp_cntr value:L") Number: "@@" "IBVERBS_1.18" => libibverbs::counter::read_successes;
    ibv_read_err_comp_cntr ("comp_cntr value:L") Number: "@@" "IBVERBS_1.18" => libibverbs::counter::read_errors;
    ibv_read_sysfs_file ("dir:s file:s buf size:z") MinusOne: "@@" "IBVERBS_1.0" => libibverbs::device::read_sysfs_file;
    ibv_reg_buf_mr ("pd buf addr length:z access:x") Mr: "@@" "IBVERBS_1.17" => libibverbs::mr::reg_buf;
    ibv_reg_dmabuf_mr ("pd offset:w length:z iova:w fd:i access:x") Mr: "@@" "IBVERBS_1.12" => libibverbs::mr::reg_dmabuf;
    ibv_reg_mr ("pd addr length:z access:x") Mr: "@@" "IBVERBS_1.1" => libibverbs::mr::reg, "@" "IBVERBS_1.0";
    ibv_reg_mr_ex ("pd mr_init_attr:X") Mr: "@@" "IBVERBS_1.15" => libibverbs::mr::reg_ex;
    ibv_reg_mr_iova2 ("pd addr length:z iova:w access:x") Mr: "@@" "IBVERBS_1.8" => libibverbs::mr::reg_iova2;
    ibv_reg_mr_iova ("pd addr length:z iova:w access:x") Mr: "@@" "IBVERBS_1.7" => libibverbs::mr::reg_iova;
    ibv_register_driver ("name init_func") Nothing: "@" "IBVERBS_1.1" => libibverbs::device::register_driver;
    ibv_rereg_mr ("mr flags:x pd addr length:z access:x") Number: "@@" "IBVERBS_1.1" => libibverbs::mr::rereg;
    ibv_resize_cq ("cq cqe:i") Number: "@@" "IBVERBS_1.1" => libibverbs::cq::resize, "@" "IBVERBS_1.0";
    ibv_resolve_eth_l2_from_gid ("context attr eth_mac vid") Number: "@@" "IBVERBS_1.1";
    ibv_set_comp_cntr ("comp_cntr value:z") Number: "@@" "IBVERBS_1.18" => libibverbs::counter::set;
    ibv_set_ece ("qp ece") Number: "@@" "IBVERBS_1.10" => libibverbs::qp::set_ece;
    ibv_set_err_comp_cntr ("comp_cntr value:z") Number: "@@" "IBVERBS_1.18" => libibverbs::counter::set_errors;
    ibv_unimport_dm ("dm") Nothing: "@@" "IBVERBS_1.13" => libibverbs::dm::unimport;
    ibv_unimport_mr ("mr") Nothing: "@@" "IBVERBS_1.10" => libibverbs::mr::unimport;
    ibv_unimport_pd ("pd") Nothing: "@@" "IBVERBS_1.10" => libibverbs::pd::unimport;
    ibv_wc_status_str ("status:i") Text: "@@" "IBVERBS_1.1" => libibverbs::names::wc_status_str;
    ibv_wr_opcode_str ("opcode:i") Text: "@@" "IBVERBS_PRIVATE_65" => libibverbs::names::wr_opcode_str;
    mbps_to_ibv_rate ("mbps:i") Plain: "@@" "IBVERBS_1.1" => libibverbs::names::mbps_to_rate;
    mult_to_ibv_rate ("mult:i") Plain: "@@" "IBVERBS_1.0" => libibverbs::names::mult_to_rate;
    verbs_register_driver_34 ("ops") Nothing: "@@" "IBVERBS_PRIVATE_34" => libibverbs::device::register_driver;
    verbs_register_driver_65 ("ops") Nothing: "@@" "IBVERBS_PRIVATE_65" => libibverbs::device::register_driver;
}

// Of libibverbs.so.1, for rdma-core's libraries of kernel devices, which no program calls.
private_functions! {
    ["@@" "IBVERBS_PRIVATE_34", "@" "IBVERBS_PRIVATE_65"]
    Number: execute_ioctl, ibv_cmd_advise_mr, ibv_cmd_alloc_dm, ibv_cmd_alloc_mw, ibv_cmd_alloc_pd, ibv_cmd_attach_mcast,
        ibv_cmd_close_xrcd, ibv_cmd_create_ah, ibv_cmd_create_counters, ibv_cmd_create_cq, ibv_cmd_create_cq_ex,
        ibv_cmd_create_cq_ex2, ibv_cmd_create_flow, ibv_cmd_create_flow_action_esp, ibv_cmd_create_qp, ibv_cmd_create_qp_ex2,
        ibv_cmd_create_qp_ex, ibv_cmd_create_rwq_ind_table, ibv_cmd_create_srq, ibv_cmd_create_srq_ex, ibv_cmd_create_wq,
        ibv_cmd_dealloc_mw, ibv_cmd_dealloc_pd, ibv_cmd_dereg_mr, ibv_cmd_destroy_ah, ibv_cmd_destroy_counters,
        ibv_cmd_destroy_cq, ibv_cmd_destroy_flow, ibv_cmd_destroy_flow_action, ibv_cmd_destroy_qp, ibv_cmd_destroy_rwq_ind_table,
        ibv_cmd_destroy_srq, ibv_cmd_destroy_wq, ibv_cmd_detach_mcast, ibv_cmd_free_dm, ibv_cmd_get_context, ibv_cmd_modify_cq,
        ibv_cmd_modify_flow_action_esp, ibv_cmd_modify_qp, ibv_cmd_modify_qp_ex, ibv_cmd_modify_srq, ibv_cmd_modify_wq,
        ibv_cmd_open_qp, ibv_cmd_open_xrcd, ibv_cmd_poll_cq, ibv_cmd_post_recv, ibv_cmd_post_send, ibv_cmd_post_srq_recv,
        ibv_cmd_query_context, ibv_cmd_query_device_any, ibv_cmd_query_mr, ibv_cmd_query_port, ibv_cmd_query_qp,
        ibv_cmd_query_srq, ibv_cmd_read_counters, ibv_cmd_reg_dm_mr, ibv_cmd_reg_dmabuf_mr, ibv_cmd_reg_mr, ibv_cmd_req_notify_cq,
        ibv_cmd_rereg_mr, ibv_cmd_resize_cq, ibv_read_ibdev_sysfs_file, verbs_allow_disassociate_destroy;
    Pointer: _verbs_init_and_alloc_context, verbs_open_device;
    Nothing: __ioctl_final_num_attrs, __verbs_log, verbs_init_cq, verbs_set_ops, verbs_uninit_context;
}

// Functions for the libraries of kernel devices that only rdma-core 65 has.
private_functions! {
    ["@@" "IBVERBS_PRIVATE_65"]
    Number: ibv_cmd_alloc_dmah, ibv_cmd_create_comp_cntr, ibv_cmd_destroy_comp_cntr, ibv_cmd_export_dmabuf_fd, ibv_cmd_free_dmah,
        ibv_cmd_inc_comp_cntr, ibv_cmd_inc_err_comp_cntr, ibv_cmd_qp_attach_comp_cntr, ibv_cmd_query_comp_cntr_caps,
        ibv_cmd_query_port_speed, ibv_cmd_read_comp_cntr, ibv_cmd_read_err_comp_cntr, ibv_cmd_reg_mr_ex, ibv_cmd_set_comp_cntr,
        ibv_cmd_set_err_comp_cntr;
    Pointer: ibv_dmabuf_heap_alloc, ibv_dmabuf_heap_cc_shared_init;
    Nothing: ibv_dmabuf_heap_destroy, ibv_dmabuf_heap_free;
}

// librdmacm.so.1
functions! {
    raccept ("socket:i addr addrlen") MinusOne: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::accept;
    rbind ("socket:i addr:N addrlen:i") MinusOne: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::bind;
    rclose ("socket:i") MinusOne: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::close;
    rconnect ("socket:i addr:N addrlen:i") MinusOne: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::connect;
    rdma_accept ("id conn_param") MinusOne: "@@" "RDMACM_1.0" => librdmacm::connect::accept;
    rdma_ack_cm_event ("event") MinusOne: "@@" "RDMACM_1.0" => librdmacm::channel::ack_event;
    rdma_bind_addr ("id addr:N") MinusOne: "@@" "RDMACM_1.0" => librdmacm::bind::bind_addr;
    rdma_connect ("id conn_param") MinusOne: "@@" "RDMACM_1.0" => librdmacm::connect::connect;
    rdma_create_ep ("id:V res pd qp_init_attr") MinusOne: "@@" "RDMACM_1.0" => librdmacm::endpoint::create;
    rdma_create_event_channel ("") Pointer: "@@" "RDMACM_1.0" => librdmacm::channel::create;
    rdma_create_id ("channel id:V context ps:x") MinusOne: "@@" "RDMACM_1.0" => librdmacm::id::create;
    rdma_create_qp ("id pd qp_init_attr:Q") MinusOne: "@@" "RDMACM_1.0" => librdmacm::qp::create;
    rdma_create_qp_ex ("id qp_init_attr:Q") MinusOne: "@@" "RDMACM_1.0" => librdmacm::qp::create_ex;
    rdma_create_srq ("id pd attr") MinusOne: "@@" "RDMACM_1.0" => librdmacm::qp::create_srq;
    rdma_create_srq_ex ("id attr") MinusOne: "@@" "RDMACM_1.0" => librdmacm::qp::create_srq_ex;
    rdma_destroy_ep ("id") Nothing: "@@" "RDMACM_1.0" => librdmacm::endpoint::destroy;
    rdma_destroy_event_channel ("channel") Nothing: "@@" "RDMACM_1.0" => librdmacm::channel::destroy;
    rdma_destroy_id ("id") MinusOne: "@@" "RDMACM_1.0" => librdmacm::id::destroy;
    rdma_destroy_qp ("id") Nothing: "@@" "RDMACM_1.0" => librdmacm::qp::destroy;
    rdma_destroy_srq ("id") Nothing: "@@" "RDMACM_1.0" => librdmacm::qp::destroy_srq;
    rdma_disconnect ("id") MinusOne: "@@" "RDMACM_1.0" => librdmacm::connect::disconnect;
    rdma_establish ("id") MinusOne: "@@" "RDMACM_1.2" => librdmacm::connect::establish;
    rdma_event_str ("event:i") Text: "@@" "RDMACM_1.0" => librdmacm::names::event_str;
    rdma_free_devices ("list") Nothing: "@@" "RDMACM_1.0" => librdmacm::device::free_devices;
    rdma_freeaddrinfo ("res") Nothing: "@@" "RDMACM_1.0" => librdmacm::info::free;
    rdma_get_cm_event ("channel event:M") MinusOne: "@@" "RDMACM_1.0" => librdmacm::events::get_event;
    rdma_get_devices ("num_devices:I") Pointer: "@@" "RDMACM_1.0" => librdmacm::device::get_devices;
    rdma_get_dst_port ("id") Plain: "@@" "RDMACM_1.0" => librdmacm::id::get_dst_port;
    rdma_get_remote_ece ("id ece") MinusOne: "@@" "RDMACM_1.3" => librdmacm::options::get_remote_ece;
    rdma_get_request ("listen id:V") MinusOne: "@@" "RDMACM_1.0" => librdmacm::endpoint::get_request;
    rdma_get_src_port ("id") Plain: "@@" "RDMACM_1.0" => librdmacm::id::get_src_port;
    rdma_getaddrinfo ("node:s service:s hints res:V") MinusOne: "@@" "RDMACM_1.0" => librdmacm::info::get;
    rdma_init_qp_attr ("id qp_attr qp_attr_mask") MinusOne: "@@" "RDMACM_1.2" => librdmacm::connect::init_qp_attr;
    rdma_join_multicast ("id addr:N context") MinusOne: "@@" "RDMACM_1.0" => librdmacm::multicast::join;
    rdma_join_multicast_ex ("id mc_join_attr context") MinusOne: "@@" "RDMACM_1.1" => librdmacm::multicast::join_ex;
    rdma_leave_multicast ("id addr:N") MinusOne: "@@" "RDMACM_1.0" => librdmacm::multicast::leave;
    rdma_listen ("id backlog:i") MinusOne: "@@" "RDMACM_1.0" => librdmacm::bind::listen;
    rdma_migrate_id ("id channel") MinusOne: "@@" "RDMACM_1.0" => librdmacm::id::migrate;
    rdma_notify ("id event:i") MinusOne: "@@" "RDMACM_1.0" => librdmacm::options::notify;
    rdma_query_addrinfo ("id info:V") MinusOne: "@@" "RDMACM_1.4" => librdmacm::lookup::query_addrinfo;
    rdma_reject ("id private_data private_data_len:i") MinusOne: "@@" "RDMACM_1.0" => librdmacm::connect::reject;
    rdma_reject_ece ("id private_data private_data_len:i") MinusOne: "@@" "RDMACM_1.3" => librdmacm::connect::reject;
    rdma_resolve_addr ("id src_addr:N dst_addr:N timeout_ms:i") MinusOne: "@@" "RDMACM_1.0" => librdmacm::resolve::resolve_addr;
    rdma_resolve_addrinfo ("id node:s service:s hints") MinusOne: "@@" "RDMACM_1.4" => librdmacm::lookup::resolve_addrinfo;
    rdma_resolve_route ("id timeout_ms:i") MinusOne: "@@" "RDMACM_1.0" => librdmacm::resolve::resolve_route;
    rdma_set_local_ece ("id ece") MinusOne: "@@" "RDMACM_1.3" => librdmacm::options::set_local_ece;
    rdma_set_option ("id level:i optname:i optval optlen:z") MinusOne: "@@" "RDMACM_1.0" => librdmacm::options::set;
    rdma_write_cm_event ("id event:i status:i arg:w") MinusOne: "@@" "RDMACM_1.4" => librdmacm::lookup::write_event;
    repoll_create ("flags:x") MinusOne: "@@" "RDMACM_1.5" => librdmacm::rsocket::calls::repoll_create;
    repoll_ctl ("epfd:i op:i fd:i event") MinusOne: "@@" "RDMACM_1.5" => librdmacm::rsocket::calls::repoll_ctl;
    repoll_wait ("epfd:i events maxevents:i timeout:i") Ready: "@@" "RDMACM_1.5" => librdmacm::rsocket::calls::repoll_wait;
    rfcntl ("socket:i cmd:i arg:i") MinusOne: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::fcntl;
    rgetpeername ("socket:i addr addrlen") MinusOne: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::getpeername;
    rgetsockname ("socket:i addr addrlen") MinusOne: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::getsockname;
    rgetsockopt ("socket:i level:i optname:i optval optlen") MinusOne: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::getsockopt;
    riomap ("socket:i buf len:z prot:x flags:x offset:i") Size: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::iomap;
    riounmap ("socket:i buf len:z") MinusOne: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::iounmap;
    riowrite ("socket:i buf count:z offset:w flags:x") Size: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::iowrite;
    rlisten ("socket:i backlog:i") MinusOne: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::listen;
    rpoll ("fds nfds:z timeout:i") Ready: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::poll;
    rread ("socket:i buf count:z") Size: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::read;
    rreadv ("socket:i iov iovcnt:i") Size: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::readv;
    rrecv ("socket:i buf len:z flags:x") Size: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::recv;
    rrecvfrom ("socket:i buf len:z flags:x src_addr addrlen") Size: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::recvfrom;
    rrecvmsg ("socket:i msg flags:x") Size: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::recvmsg;
    rselect ("nfds:i readfds writefds exceptfds timeout") MinusOne: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::select;
    rsend ("socket:i buf len:z flags:x") Size: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::send;
    rsendmsg ("socket:i msg flags:x") Size: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::sendmsg;
    rsendto ("socket:i buf len:z flags:x dest_addr:N addrlen:i") Size: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::sendto;
    rsetsockopt ("socket:i level:i optname:i optval optlen:i") MinusOne:
        "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::setsockopt;
    rshutdown ("socket:i how:i") MinusOne: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::shutdown;
    rsocket ("domain:i type:i protocol:i") MinusOne: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::socket;
    rwrite ("socket:i buf count:z") Size: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::write;
    rwritev ("socket:i iov iovcnt:i") Size: "@@" "RDMACM_1.0" => librdmacm::rsocket::calls::writev;
}

// libibumad.so.3
functions! {
    umad_addr_dump ("addr") Nothing: "@@" "IBUMAD_1.0" => libibumad::addresses::addr_dump;
    umad_attribute_str ("mgmt_class:x attr_id:x") Text: "@@" "IBUMAD_1.0" => libibumad::names::attribute_str;
    umad_class_str ("mgmt_class:x") Text: "@@" "IBUMAD_1.0" => libibumad::names::class_str;
    umad_close_port ("portid:i") Count: "@@" "IBUMAD_1.0" => libibumad::devices::close_port;
    umad_common_mad_status_str ("status:x") Text: "@@" "IBUMAD_1.0" => libibumad::names::common_mad_status_str;
    umad_debug ("level:i") Plain: "@@" "IBUMAD_1.0" => libibumad::devices::debug;
    umad_done ("") Plain: "@@" "IBUMAD_1.0" => libibumad::devices::succeed;
    umad_dump ("umad") Nothing: "@@" "IBUMAD_1.0" => libibumad::addresses::dump;
    umad_free_ca_device_list ("head") Nothing: "@@" "IBUMAD_1.1" => libibumad::devices::free_ca_device_list;
    umad_get_ca ("ca_name:s ca") Count: "@@" "IBUMAD_1.0" => libibumad::devices::get_ca;
    umad_get_ca_device_list ("") Pointer: "@@" "IBUMAD_1.1" => libibumad::devices::get_ca_device_list;
    umad_get_ca_portguids ("ca_name:s portguids max:i") Count: "@@" "IBUMAD_1.0" => libibumad::devices::get_ca_portguids;
    umad_get_cas_names ("cas max:i") Count: "@@" "IBUMAD_1.0" => libibumad::devices::get_cas_names;
    umad_get_fd ("portid:i") Plain: "@@" "IBUMAD_1.0" => libibumad::mads::get_fd;
    umad_get_issm_path ("ca_name:s portnum:i path max:i") Count: "@@" "IBUMAD_1.0" => libibumad::devices::get_issm_path;
    umad_get_mad ("umad") Pointer: "@@" "IBUMAD_1.0" => libibumad::addresses::get_mad;
    umad_get_mad_addr ("umad") Pointer: "@@" "IBUMAD_1.0" => libibumad::addresses::get_mad_addr;
    umad_get_pkey ("umad") Plain: "@@" "IBUMAD_1.0" => libibumad::addresses::get_pkey;
    umad_get_port ("ca_name:s portnum:i port") Count: "@@" "IBUMAD_1.0" => libibumad::devices::get_port;
    umad_get_smi_gsi_pair_by_ca_name ("ca_name:s portnum:i pair enforce_smi:i") Count:
        "@@" "IBUMAD_1.4" => libibumad::devices::get_smi_gsi_pair_by_ca_name;
    umad_get_smi_gsi_pairs ("pairs max:z") Count: "@@" "IBUMAD_1.4" => libibumad::devices::get_smi_gsi_pairs;
    umad_init ("") Plain: "@@" "IBUMAD_1.0" => libibumad::devices::succeed;
    umad_method_str ("mgmt_class:x method:x") Text: "@@" "IBUMAD_1.0" => libibumad::names::method_str;
    umad_open_port ("ca_name:s portnum:i") Count: "@@" "IBUMAD_1.0" => libibumad::devices::open_port;
    umad_open_smi_port ("ca_name:s portnum:i") Count: "@@" "IBUMAD_1.3" => libibumad::devices::open_port;
    umad_poll ("portid:i timeout_ms:i") Count: "@@" "IBUMAD_1.0" => libibumad::mads::poll;
    umad_recv ("portid:i umad length:I timeout_ms:i") Count: "@@" "IBUMAD_1.0" => libibumad::mads::recv;
    umad_register ("portid:i mgmt_class:x mgmt_version:i rmpp_version:i method_mask") Count:
        "@@" "IBUMAD_1.0" => libibumad::mads::register;
    umad_register2 ("portid:i attr agent_id:I") Number: "@@" "IBUMAD_1.0" => libibumad::mads::register2;
    umad_register_oui ("portid:i mgmt_class:x rmpp_version:i oui method_mask") Count:
        "@@" "IBUMAD_1.0" => libibumad::mads::register_oui;
    umad_release_ca ("ca") Count: "@@" "IBUMAD_1.0" => libibumad::devices::release_ca;
    umad_release_port ("port") Count: "@@" "IBUMAD_1.0" => libibumad::devices::release_port;
    umad_sa_mad_status_str ("status:x") Text: "@@" "IBUMAD_1.0" => libibumad::names::sa_mad_status_str;
    umad_send ("portid:i agentid:i umad length:i timeout_ms:i retries:i") Count:
        "@@" "IBUMAD_1.0" => libibumad::mads::send;
    umad_set_addr ("umad dlid:i dqp:i sl:i qkey:x") Plain: "@@" "IBUMAD_1.0" => libibumad::addresses::set_addr;
    umad_set_addr_net ("umad dlid:i dqp:i sl:i qkey:x") Plain: "@@" "IBUMAD_1.0" => libibumad::addresses::set_addr_net;
    umad_set_grh ("umad mad_addr") Plain: "@@" "IBUMAD_1.0" => libibumad::addresses::set_grh;
    umad_set_pkey ("umad pkey_index:i") Plain: "@@" "IBUMAD_1.0" => libibumad::addresses::set_pkey;
    umad_size ("") Plain: "@@" "IBUMAD_1.0" => libibumad::addresses::size;
    umad_sort_ca_device_list ("head size:z") Number: "@@" "IBUMAD_1.2" => libibumad::devices::sort_ca_device_list;
    umad_status ("umad") Plain: "@@" "IBUMAD_1.0" => libibumad::addresses::status;
    umad_unregister ("portid:i agentid:i") MinusOne: "@@" "IBUMAD_1.0" => libibumad::mads::unregister;
}

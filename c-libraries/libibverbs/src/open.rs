//! Opening and closing devices. Opening fills the operation tables through which programs call the verbs of the data path
//! and others.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use verbs_api::DestroyError;

use crate::abi::{IbvContext, IbvDevice, OPS_SLOTS, VERBS_SLOTS, ops, verbs};
use crate::context::{self, State, Tables};
use crate::device::{self, listed};
use crate::entry::slot;
use crate::errno::{code, pointer};
use crate::{buf, cq, dm, dmah, mr, mw, object, pd, post, qp_ex, query, srq, xrc};

fn tables() -> Tables {
    let mut short = [ptr::null(); OPS_SLOTS];
    short[ops::ALLOC_MW] = slot!("ibv_alloc_mw" ("pd type:i") Pointer => mw::alloc);
    short[ops::BIND_MW] = slot!("ibv_bind_mw" ("qp mw mw_bind") Number => post::bind_mw);
    short[ops::DEALLOC_MW] = slot!("ibv_dealloc_mw" ("mw") Number => mw::dealloc);
    short[ops::POLL_CQ] = slot!(direct "ibv_poll_cq" ("cq num_entries:i wc:C") Count => cq::poll);
    short[ops::REQ_NOTIFY_CQ] =
        slot!(direct "ibv_req_notify_cq" ("cq solicited_only:i") Number => cq::req_notify);
    short[ops::POST_SRQ_RECV] =
        slot!(direct "ibv_post_srq_recv" ("srq wr:R bad_wr") Number => post::srq_recv);
    short[ops::POST_SEND] = slot!(direct "ibv_post_send" ("qp wr:S bad_wr") Number => post::send);
    short[ops::POST_RECV] = slot!(direct "ibv_post_recv" ("qp wr:R bad_wr") Number => post::recv);
    let mut long = [ptr::null(); VERBS_SLOTS];
    long[verbs::FREE_BUF] = slot!("ibv_free_buf" ("buf") Nothing => buf::free);
    long[verbs::ALLOC_BUF] = slot!("ibv_alloc_buf" ("pd size:z buf") Pointer => buf::alloc);
    long[verbs::DM_EXPORT_DMABUF_FD] =
        slot!("ibv_dm_export_dmabuf_fd" ("dm") MinusOne => dm::export_fd);
    long[verbs::REG_MR_EX] = slot!("ibv_reg_mr_ex" ("pd mr_init_attr:X") Mr => mr::reg_ex);
    long[verbs::DEALLOC_DMAH] = slot!("ibv_dealloc_dmah" ("dmah") Number => dmah::dealloc);
    long[verbs::ALLOC_DMAH] = slot!("ibv_alloc_dmah" ("context attr:h") Pointer => dmah::alloc);
    long[verbs::QUERY_PORT] = slot!("ibv_query_port" ("context port_num:i port_attr:P") Number => query::query_port_sized);
    long[verbs::ADVISE_MR] =
        slot!("ibv_advise_mr" ("pd advice:i flags:x sg_list num_sge:i") Number => mr::advise);
    long[verbs::REG_DM_MR] =
        slot!("ibv_reg_dm_mr" ("pd dm dm_offset:w length:z access:x") Mr => dm::register);
    long[verbs::ALLOC_DM] = slot!("ibv_alloc_dm" ("context attr") Pointer => dm::alloc);
    long[verbs::FREE_DM] = slot!("ibv_free_dm" ("dm") Number => dm::free);
    long[verbs::ALLOC_PARENT_DOMAIN] =
        slot!("ibv_alloc_parent_domain" ("context attr") Pointer => pd::alloc_parent);
    long[verbs::ALLOC_TD] = slot!("ibv_alloc_td" ("context init_attr") Pointer => pd::alloc_td);
    long[verbs::DEALLOC_TD] = slot!("ibv_dealloc_td" ("td") Number => pd::dealloc_td);
    long[verbs::OPEN_QP] = slot!("ibv_open_qp" ("context qp_open_attr") Qp => qp_ex::open);
    long[verbs::GET_SRQ_NUM] = slot!("ibv_get_srq_num" ("srq srq_num:I") Number => srq::get_number);
    long[verbs::CREATE_SRQ_EX] =
        slot!("ibv_create_srq_ex" ("context srq_init_attr_ex") Pointer => srq::create_ex);
    long[verbs::OPEN_XRCD] = slot!("ibv_open_xrcd" ("context xrcd_init_attr") Pointer => xrc::open);
    long[verbs::CLOSE_XRCD] = slot!("ibv_close_xrcd" ("xrcd") Number => xrc::close);
    long[verbs::QUERY_DEVICE_EX] = slot!("ibv_query_device_ex" ("context input attr attr_size:z") Number => query::query_device_ex);
    long[verbs::CREATE_CQ_EX] =
        slot!("ibv_create_cq_ex" ("context cq_attr") Pointer => cq::create_ex);
    long[verbs::CREATE_QP_EX] =
        slot!("ibv_create_qp_ex" ("context qp_init_attr_ex:Q") Qp => qp_ex::create);
    // These verbs are not implemented. A slot that is left empty fails the same way without appearing in a trace; those
    // slots take an object that cannot exist.
    long[verbs::ALLOC_NULL_MR] = slot!("ibv_alloc_null_mr" ("pd") Pointer);
    long[verbs::CREATE_COUNTERS] = slot!("ibv_create_counters" ("context init_attr") Pointer);
    long[verbs::CREATE_FLOW_ACTION_ESP] =
        slot!("ibv_create_flow_action_esp" ("context esp") Pointer);
    long[verbs::MODIFY_QP_RATE_LIMIT] = slot!("ibv_modify_qp_rate_limit" ("qp attr") Number);
    long[verbs::MODIFY_CQ] = slot!("ibv_modify_cq" ("cq attr") Number);
    long[verbs::POST_SRQ_OPS] = slot!("ibv_post_srq_ops" ("srq op bad_op") Number => srq::post_ops);
    long[verbs::CREATE_RWQ_IND_TABLE] =
        slot!("ibv_create_rwq_ind_table" ("context init_attr") Pointer);
    long[verbs::CREATE_WQ] = slot!("ibv_create_wq" ("context wq_init_attr") Pointer);
    long[verbs::QUERY_RT_VALUES] = slot!("ibv_query_rt_values_ex" ("context values") Number);
    long[verbs::CREATE_FLOW] = slot!("ibv_create_flow" ("qp flow") Pointer);
    Tables {
        ops: short,
        verbs: long,
    }
}

/// Implements `ibv_open_device`.
pub extern "C-unwind" fn open_device(device: *mut IbvDevice) -> *mut IbvContext {
    let opened = listed(device).and_then(State::open);
    pointer(opened.map(|own| context::create(own, tables())))
}

/// Implements `ibv_import_device`: another context of the open device whose `cmd_fd`, or a duplicate of it, this descriptor
/// is.
pub extern "C-unwind" fn import_device(cmd_fd: c_int) -> *mut IbvContext {
    pointer(State::import(cmd_fd).map(|own| context::create(own, tables())))
}

/// Implements `ibv_close_device`. The device of the engine is closed with the last context that shares it. As with a kernel
/// device, objects that the program has not destroyed do not keep the context open: they stay until the process ends.
///
/// # Safety
/// The program does not use the context after this call.
pub unsafe extern "C-unwind" fn close_device(context: *mut IbvContext) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { context::own(context) }.and_then(|state| {
        if !object::is_parents(context) && Arc::strong_count(&state.shared) == 1 {
            match state.context.clone().close().wait() {
                Ok(()) => {}
                Err(DestroyError::Busy { .. }) => device::leave_orphans(),
                Err(error) => return Err(error.into()),
            }
        }
        // SAFETY: live until now, and as the caller promises.
        unsafe { context::destroy(context) };
        device::closed();
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;
    use crate::abi::Slot;
    use crate::errno::Errno;

    #[test]
    fn unimplemented_slots_return_an_error_and_are_traced() {
        type TwoPointers<T> = extern "C" fn(*mut c_void, *mut c_void) -> T;
        let long = tables().verbs;
        for place in [
            verbs::ALLOC_NULL_MR,
            verbs::CREATE_COUNTERS,
            verbs::CREATE_FLOW_ACTION_ESP,
            verbs::CREATE_RWQ_IND_TABLE,
            verbs::CREATE_WQ,
            verbs::CREATE_FLOW,
        ] {
            // SAFETY: a function that makes something of two pointers at most.
            let make =
                unsafe { std::mem::transmute::<Slot, TwoPointers<*mut c_void>>(long[place]) };
            assert!(make(ptr::null_mut(), ptr::null_mut()).is_null());
            assert_eq!(Errno::last(), Errno::OPNOTSUPP);
        }
        for place in [
            verbs::MODIFY_QP_RATE_LIMIT,
            verbs::MODIFY_CQ,
            verbs::QUERY_RT_VALUES,
        ] {
            // SAFETY: a function of two pointers that answers an error number.
            let ask = unsafe { std::mem::transmute::<Slot, TwoPointers<c_int>>(long[place]) };
            assert_eq!(ask(ptr::null_mut(), ptr::null_mut()), libc::EOPNOTSUPP);
        }
        let (mut op, mut bad) = (0_u8, ptr::null_mut());
        let op = (&raw mut op).cast();
        // SAFETY: the second pointer is written.
        let answer = unsafe { srq::post_ops(ptr::null_mut(), op, &raw mut bad) };
        assert_eq!((answer, bad), (libc::EOPNOTSUPP, op));
    }
}

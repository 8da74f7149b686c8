//! The functions of librdmacm: from the file of the verbs, or from a library that belongs to it.
#![allow(unsafe_code)]

use std::ffi::{OsStr, c_int, c_void};

use polyverbs_abi::IbvQpAttr;
use polyverbs_abi::rdmacm::{RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel};
use verbs_api::VerbError;

use crate::library::{File, symbols};

/// The name of the library: a file in the directory of libibverbs, or a name for the dynamic linker.
pub(crate) const FILE: &str = "librdmacm.so.1";

symbols! {
    /// The functions of librdmacm.
    Cm {
        rdma_create_event_channel() -> *mut RdmaEventChannel;
        rdma_destroy_event_channel(*mut RdmaEventChannel);
        rdma_get_cm_event(*mut RdmaEventChannel, *mut *mut RdmaCmEvent) -> c_int;
        rdma_ack_cm_event(*mut RdmaCmEvent) -> c_int;
        rdma_create_id(*mut RdmaEventChannel, *mut *mut RdmaCmId, *mut c_void, c_int) -> c_int;
        rdma_destroy_id(*mut RdmaCmId) -> c_int;
        rdma_bind_addr(*mut RdmaCmId, *mut libc::sockaddr) -> c_int;
        rdma_listen(*mut RdmaCmId, c_int) -> c_int;
        rdma_resolve_addr(*mut RdmaCmId, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        rdma_resolve_route(*mut RdmaCmId, c_int) -> c_int;
        rdma_connect(*mut RdmaCmId, *mut RdmaConnParam) -> c_int;
        rdma_establish(*mut RdmaCmId) -> c_int;
        rdma_accept(*mut RdmaCmId, *mut RdmaConnParam) -> c_int;
        rdma_reject(*mut RdmaCmId, *const c_void, u8) -> c_int;
        rdma_disconnect(*mut RdmaCmId) -> c_int;
        rdma_init_qp_attr(*mut RdmaCmId, *mut IbvQpAttr, *mut c_int) -> c_int;
    }
}

impl Cm {
    /// Loads the librdmacm that belongs to the libibverbs in this file.
    ///
    /// # Errors
    /// There is no such library, or it lacks a function.
    pub(crate) fn beside(verbs: &File) -> Result<Self, VerbError> {
        if let Ok(same) = Self::of(verbs) {
            return Ok(same);
        }
        let beside = verbs.name().with_file_name(FILE);
        let found = match beside.is_file() {
            true => verbs.load_beside(beside.as_os_str()),
            false => verbs.load_beside(OsStr::new(FILE)),
        };
        Self::of(&found?)
    }
}

//! Conversions between structures of C and values of verbs-api.

use std::ffi::c_int;

use verbs_api::ids::{Gid, LinkAddress};
use verbs_api::qp::{AddressVector, QpAttributes, QpCap};

use crate::{IbvAhAttr, IbvGid, IbvGlobalRoute, IbvQpAttr, IbvQpCap};

impl From<&QpCap> for IbvQpCap {
    fn from(cap: &QpCap) -> Self {
        Self {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        }
    }
}

impl From<&IbvQpCap> for QpCap {
    fn from(cap: &IbvQpCap) -> Self {
        Self {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        }
    }
}

impl From<&AddressVector> for IbvAhAttr {
    fn from(path: &AddressVector) -> Self {
        Self {
            grh: IbvGlobalRoute {
                dgid: IbvGid { raw: path.dgid.0 },
                flow_label: path.flow_label,
                sgid_index: path.sgid_index,
                hop_limit: path.hop_limit,
                traffic_class: path.traffic_class,
            },
            dlid: match path.address {
                LinkAddress::Lid(lid) => lid,
                _ => 0,
            },
            sl: path.sl,
            src_path_bits: path.src_path_bits,
            static_rate: path.static_rate,
            is_global: path.is_global.into(),
            port_num: path.port_num,
        }
    }
}

/// Converts the address attributes of C. On Ethernet, which has no LIDs, the GID is the link address too.
impl From<&IbvAhAttr> for AddressVector {
    fn from(path: &IbvAhAttr) -> Self {
        let dgid = Gid(path.grh.dgid.raw);
        let address = match path.dlid {
            0 => LinkAddress::Ip(dgid.as_ip()),
            lid => LinkAddress::Lid(lid),
        };
        Self {
            is_global: path.is_global != 0,
            flow_label: path.grh.flow_label,
            sgid_index: path.grh.sgid_index,
            src_path_bits: path.src_path_bits,
            traffic_class: path.grh.traffic_class,
            hop_limit: path.grh.hop_limit,
            sl: path.sl,
            static_rate: path.static_rate,
            ..Self::new(address, dgid, path.port_num)
        }
    }
}

/// Converts queue pair attributes to those of C. Attributes that are not set become zero; the mask of C says which are set.
impl From<&QpAttributes> for IbvQpAttr {
    fn from(set: &QpAttributes) -> Self {
        Self {
            qp_state: set.qp_state.map_or(0, |state| state as c_int),
            cur_qp_state: set.cur_qp_state.map_or(0, |state| state as c_int),
            path_mtu: set.path_mtu.map_or(0, |mtu| mtu as c_int),
            qkey: set.qkey.unwrap_or_default(),
            rq_psn: set.rq_psn.unwrap_or_default().value(),
            sq_psn: set.sq_psn.unwrap_or_default().value(),
            dest_qp_num: set.dest_qp_num.unwrap_or_default().value(),
            qp_access_flags: set.qp_access_flags.unwrap_or_default().bits(),
            ah_attr: set.ah_attr.as_ref().map(Into::into).unwrap_or_default(),
            pkey_index: set.pkey_index.unwrap_or_default(),
            en_sqd_async_notify: set.en_sqd_async_notify.unwrap_or_default().into(),
            max_rd_atomic: set.max_rd_atomic.unwrap_or_default(),
            max_dest_rd_atomic: set.max_dest_rd_atomic.unwrap_or_default(),
            min_rnr_timer: set.min_rnr_timer.unwrap_or_default(),
            port_num: set.port_num.unwrap_or_default(),
            timeout: set.timeout.unwrap_or_default(),
            retry_cnt: set.retry_cnt.unwrap_or_default(),
            rnr_retry: set.rnr_retry.unwrap_or_default(),
            ..Self::default()
        }
    }
}

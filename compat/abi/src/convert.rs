//! Values of C as those of verbs-api, and the other way.

use verbs_api::ids::LinkAddress;
use verbs_api::qp::{AddressVector, QpCap};

use crate::{IbvAhAttr, IbvGid, IbvGlobalRoute, IbvQpCap};

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

//! Values of C as those of verbs-api, and the other way.

use verbs_api::ids::{Gid, LinkAddress};
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

/// On an Ethernet, which has no local identifiers, the address is that of the GID.
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

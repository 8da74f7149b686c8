//! What an emulated InfiniBand device claims.

use verbs_api::{
    Features, Transport,
    capability::{
        AtomicScope, BaselineGaps, DeviceAttributes, GidEntry, GidType, Limits, PortAttributes,
        PortCaps,
    },
    ids::{Gid, Guid, LinkAddress},
};

/// Numbers of the device: what the engine's structures carry, not what memory there is.
pub const LIMITS: Limits = Limits {
    max_qp: 1 << 20,
    max_qp_wr: 1 << 14,
    max_send_sge: 32,
    max_recv_sge: 32,
    max_sge_rd: 32,
    max_inline_data: 1024,
    max_msg_sz: 1 << 31,
    max_cq: 1 << 16,
    max_cqe: 1 << 22,
    num_comp_vectors: 1,
    max_mr: 1 << 22,
    max_mr_size: 1 << 47,
    max_mw: 1 << 20,
    max_pd: 1 << 16,
    max_ah: 1 << 16,
    max_srq: 1 << 16,
    max_srq_wr: 1 << 16,
    max_srq_sge: 32,
    max_qp_rd_atom: 128,
    max_qp_init_rd_atom: 128,
    max_fast_reg_page_list_len: 1 << 12,
    page_size_cap: 0xffff_ffff_ffff_f000,
    max_mcast_grp: 1 << 12,
    max_mcast_qp_attach: 1 << 12,
    phys_port_cnt: 1,
    local_ca_ack_delay: 0,
};

/// Everything that the device tells about itself, before the linked emulations add to it.
pub fn attributes(name: &str, address: LinkAddress, windows_2a: bool) -> DeviceAttributes {
    let mut features = Features::SRQ
        | Features::MULTICAST
        | Features::WINDOW_1
        | Features::ATOMIC_WRITE
        | Features::FLUSH;
    features.set(Features::WINDOW_2A, windows_2a);
    let guid = Guid::software(Transport::InfiniBand, address.ip_or_stand_in());
    DeviceAttributes {
        name: name.to_owned(),
        provider: "emulated-ib",
        transport: Transport::InfiniBand,
        node_guid: guid,
        sys_image_guid: guid,
        features,
        extensions: Vec::new(),
        gaps: BaselineGaps::empty(),
        limits: LIMITS,
        atomic_cap: AtomicScope::Global,
        masked_atomic_cap: AtomicScope::None,
        ports: vec![PortAttributes {
            port_guid: guid,
            gids: gids(address),
            ..PortAttributes::new(1, PortCaps::ROCE_V2, address)
        }],
    }
}

// As Linux has them: the link-local one, and behind it that of the address. A port of an in-process network has the number
// that it has there in place of an address.
fn gids(address: LinkAddress) -> Vec<GidEntry> {
    let roce = |gid| GidEntry::new(gid, GidType::RoceV2);
    if let LinkAddress::Ip(ip) = address {
        return Gid::roce_table(ip).map(roce).to_vec();
    }
    const PREFIXES: [[u8; 2]; 2] = [[0xfe, 0x80], [0xfd, 0]];
    let with = |prefix: [u8; 2]| {
        let mut octets = [0; 16];
        octets[..2].copy_from_slice(&prefix);
        if let LinkAddress::InProcess(number) = address {
            octets[8..].copy_from_slice(&number.to_be_bytes());
        }
        roce(Gid(octets))
    };
    PREFIXES.map(with).to_vec()
}

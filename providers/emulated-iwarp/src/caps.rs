//! What an emulated iWARP device claims.

use verbs_api::{
    Features, Transport,
    capability::{
        AtomicScope, BaselineGaps, DeviceAttributes, GidEntry, GidType, Limits, PortAttributes,
        PortCaps,
    },
    ids::{Gid, Guid, LinkAddress},
};

/// Numbers of the device: what the engine's structures carry, not what memory there is.
///
/// A read has one sink (RFC 5040 section 4.4), and there are no address handles and no groups without datagrams.
pub const LIMITS: Limits = Limits {
    max_qp: 1 << 20,
    max_qp_wr: 1 << 14,
    max_send_sge: 32,
    max_recv_sge: 32,
    max_sge_rd: 1,
    max_inline_data: 1024,
    max_msg_sz: 1 << 31,
    max_cq: 1 << 16,
    max_cqe: 1 << 22,
    num_comp_vectors: 1,
    max_mr: 1 << 22,
    max_mr_size: 1 << 47,
    max_mw: 1 << 20,
    max_pd: 1 << 16,
    max_ah: 0,
    max_srq: 1 << 16,
    max_srq_wr: 1 << 16,
    max_srq_sge: 32,
    max_qp_rd_atom: 128,
    max_qp_init_rd_atom: 128,
    max_fast_reg_page_list_len: 1 << 12,
    page_size_cap: 0xffff_ffff_ffff_f000,
    max_mcast_grp: 0,
    max_mcast_qp_attach: 0,
    phys_port_cnt: 1,
    local_ca_ack_delay: 0,
};

/// What the baseline promises and iWARP cannot have. What the linked emulation leaves open, the engine adds.
pub const GAPS: BaselineGaps = BaselineGaps::NO_UD
    .union(BaselineGaps::NO_UC)
    .union(BaselineGaps::NO_SEND_WITH_IMMEDIATE)
    .union(BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE)
    .union(BaselineGaps::NO_RNR_RETRY);

/// Everything that the device tells about itself, before the linked emulations add to it.
pub fn attributes(name: &str, address: LinkAddress) -> DeviceAttributes {
    let guid = Guid::software(Transport::Iwarp, address.ip_or_stand_in());
    DeviceAttributes {
        name: name.to_owned(),
        provider: "emulated-iwarp",
        transport: Transport::Iwarp,
        node_guid: guid,
        sys_image_guid: guid,
        features: Features::SRQ,
        extensions: Vec::new(),
        gaps: GAPS,
        limits: LIMITS,
        // The engine uses the processor's own: the same for every device and for the program.
        atomic_cap: AtomicScope::Global,
        masked_atomic_cap: AtomicScope::None,
        ports: vec![PortAttributes {
            port_guid: guid,
            gids: vec![gid(address)],
            ..PortAttributes::new(1, PortCaps::IWARP, address)
        }],
    }
}

fn gid(address: LinkAddress) -> GidEntry {
    let ip = match address {
        LinkAddress::Ip(ip) => Some(ip),
        _ => None,
    };
    GidEntry {
        ip,
        ..GidEntry::new(Gid::iwarp(address.ip_or_stand_in()), GidType::Iwarp)
    }
}

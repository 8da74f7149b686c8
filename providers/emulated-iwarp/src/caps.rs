//! What an emulated iWARP device claims.

use polyverbs_engine::claims;
use verbs_api::{
    Transport,
    capability::{
        BaselineGaps, DeviceAttributes, GidEntry, GidType, Limits, PortAttributes, PortCaps,
    },
    ids::{Gid, LinkAddress},
};

/// What the baseline promises and iWARP cannot have. What the linked emulation leaves open, the engine adds.
pub const GAPS: BaselineGaps = BaselineGaps::NO_UD
    .union(BaselineGaps::NO_UC)
    .union(BaselineGaps::NO_SEND_WITH_IMMEDIATE)
    .union(BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE)
    .union(BaselineGaps::NO_RNR_RETRY);

/// Everything that the device tells about itself, before the linked emulations add to it.
pub fn attributes(name: &str, address: LinkAddress) -> DeviceAttributes {
    let gid = GidEntry::new(Gid::iwarp(address.ip_or_stand_in()), GidType::Iwarp);
    let ip = match address {
        LinkAddress::Ip(ip) => Some(ip),
        _ => None,
    };
    let port = PortAttributes {
        gids: vec![GidEntry { ip, ..gid }],
        ..PortAttributes::new(1, PortCaps::IWARP, address)
    };
    DeviceAttributes {
        gaps: GAPS,
        // A read has one sink (RFC 5040 section 4.4), and without datagrams there are no address handles and no groups.
        limits: Limits {
            max_sge_rd: 1,
            max_ah: 0,
            max_mcast_grp: 0,
            max_mcast_qp_attach: 0,
            ..claims::LIMITS
        },
        ..claims::attributes(name, "emulated-iwarp", Transport::Iwarp, address, port)
    }
}

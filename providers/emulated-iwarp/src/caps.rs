//! The attributes that an emulated iWARP device reports.

use polyverbs_engine::claims;
use verbs_api::{
    Features, Transport,
    capability::{
        BaselineGaps, DeviceAttributes, GidEntry, GidType, Limits, PortAttributes, PortCaps,
    },
    ids::{Gid, LinkAddress},
};

/// The parts of the verbs baseline that no iWARP device has. The engine adds the gaps of emulations that are not linked.
pub const GAPS: BaselineGaps = BaselineGaps::NO_UD
    .union(BaselineGaps::NO_UC)
    .union(BaselineGaps::NO_SEND_WITH_IMMEDIATE)
    .union(BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE)
    .union(BaselineGaps::NO_RNR_RETRY);

/// Returns the attributes of the device. The emulations of extensions add their features later.
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
        features: Features::SRQ | Features::COMPLETION_COUNTERS,
        gaps: GAPS,
        // A read has one sink (RFC 5040 section 4.4). Without datagrams there are no address handles and no multicast
        // groups.
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

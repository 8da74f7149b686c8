//! The attributes that an emulated InfiniBand device reports.

use polyverbs_engine::claims;
use verbs_api::{
    Features, Transport,
    capability::{DeviceAttributes, GidEntry, GidType, PortAttributes, PortCaps},
    ids::{Gid, LinkAddress},
};

/// Returns the attributes of the device. The emulations of extensions add their features later.
pub fn attributes(name: &str, address: LinkAddress, windows_2a: bool) -> DeviceAttributes {
    let mut features = Features::SRQ
        | Features::COMPLETION_COUNTERS
        | Features::MULTICAST
        | Features::WINDOW_1
        | Features::ATOMIC_WRITE
        | Features::FLUSH;
    features.set(Features::WINDOW_2A, windows_2a);
    let port = PortAttributes {
        gids: gids(address),
        ..PortAttributes::new(1, PortCaps::ROCE_V2, address)
    };
    DeviceAttributes {
        features,
        ..claims::attributes(name, "emulated-ib", Transport::InfiniBand, address, port)
    }
}

// Returns the port's GIDs in the order of Linux: first the link-local one, then that of the address. A port of an
// in-process network uses its number in place of an address.
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

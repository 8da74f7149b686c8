//! Ports: their attributes and their tables of GIDs.

use std::ffi::c_int;

use polyverbs_abi::{IbvContext, IbvGidEntry, IbvPortAttr};
use verbs_api::VerbError;
use verbs_api::capability::{
    GidEntry, GidType, Mtu, PhysState, PortAttributes, PortCaps, PortState, Subnet,
};
use verbs_api::ids::{Gid, Guid, LinkAddress, Port};

use crate::interface;
use crate::verbs::Live;

/// Returns the attributes of all ports of a device that has `count` of them.
///
/// # Errors
/// A query of the device failed.
pub(crate) fn ports(
    context: &Live<IbvContext>,
    count: u8,
) -> Result<Vec<PortAttributes>, VerbError> {
    let gids = context.query_gid_table(count)?;
    let ports = (1..=count).map(|number| port_with(context, number, &gids));
    ports.collect()
}

/// Returns the attributes of a port of a device that has `count` ports.
///
/// # Errors
/// There is no such port.
pub(crate) fn port(
    context: &Live<IbvContext>,
    number: Port,
    count: u8,
) -> Result<PortAttributes, VerbError> {
    port_with(context, number, &context.query_gid_table(count)?)
}

fn port_with(
    context: &Live<IbvContext>,
    number: Port,
    gids: &[IbvGidEntry],
) -> Result<PortAttributes, VerbError> {
    let said = context.query_port(number)?;
    let caps = match (context.is_iwarp()?, is_infiniband(&said)) {
        (true, _) => PortCaps::IWARP,
        (false, true) => PortCaps::INFINIBAND,
        (false, false) => PortCaps::ROCE_V2,
    };
    let gids = gids_of(number, caps, gids);
    let pkeys = (0..c_int::from(said.pkey_tbl_len)).map(|index| context.query_pkey(number, index));
    let state = u8::try_from(said.state).ok().and_then(PortState::from_code);
    let of_index_0 = gids.first().map_or([0; 16], |entry| entry.gid.0);
    let (prefix, guid) = of_index_0.split_at(8);
    let half = |octets: &[u8]| octets.try_into().unwrap_or_default();
    let mut port = PortAttributes {
        state: state.unwrap_or(PortState::Nop),
        phys_state: PhysState::from_code(said.phys_state).unwrap_or_default(),
        max_mtu: mtu(said.max_mtu),
        active_mtu: mtu(said.active_mtu),
        pkeys: pkeys.collect::<Result<_, _>>()?,
        qkey_viol_cntr: said.qkey_viol_cntr,
        ..PortAttributes::new(number, caps, LinkAddress::Lid(said.lid))
    };
    port.gids = gids;
    if caps == PortCaps::INFINIBAND {
        port.port_guid = Guid(half(guid));
        port.subnet = Subnet {
            lmc: said.lmc,
            sm_lid: said.sm_lid,
            sm_sl: said.sm_sl,
            prefix: u64::from_be_bytes(half(prefix)),
        };
    } else if caps == PortCaps::IWARP {
        port.address = port.gids.first().map_or(port.address, iwarp_address);
    } else if let Some(gid) = port.gid(port.default_gid_index()) {
        port.address = LinkAddress::Ip(gid.as_ip());
    }
    Ok(port)
}

/// Whether a port is an InfiniBand port, which has LIDs; other ports are Ethernet.
pub(crate) fn is_infiniband(said: &IbvPortAttr) -> bool {
    const INFINIBAND: u8 = 1;
    said.link_layer == INFINIBAND
}

pub(crate) fn mtu(code: c_int) -> Mtu {
    u8::try_from(code)
        .ok()
        .and_then(Mtu::from_code)
        .unwrap_or_default()
}

/// Returns the GID table of a port, up to its last entry that is not empty.
fn gids_of(port: Port, caps: PortCaps, all: &[IbvGidEntry]) -> Vec<GidEntry> {
    const ROCE_V2: u32 = 2;
    let of_type = |gid, in_c| match (caps, in_c) {
        (PortCaps::IWARP, _) => GidEntry::new(gid, GidType::Iwarp),
        (PortCaps::INFINIBAND, _) => GidEntry::new(gid, GidType::Ib),
        (_, ROCE_V2) => GidEntry::new(gid, GidType::RoceV2),
        _ => GidEntry::new(gid, GidType::RoceV1),
    };
    let mut table = Vec::new();
    for entry in all {
        let (gid, place) = (Gid(entry.gid.raw), entry.gid_index as usize);
        if entry.port_num != u32::from(port) || gid == Gid::default() {
            continue;
        }
        if table.len() <= place {
            table.resize(place + 1, of_type(Gid::default(), 0));
        }
        table[place] = match caps {
            PortCaps::IWARP => iwarp_gid(gid, entry.ndev_ifindex),
            _ => of_type(gid, entry.gid_type),
        };
    }
    table
}

/// Returns the GID entry of an iWARP port, whose GID is its Ethernet address, with the interface of that index or address.
fn iwarp_gid(gid: Gid, interface: u32) -> GidEntry {
    let mut entry = GidEntry::new(gid, GidType::Iwarp);
    if let Some((name, ip)) = interface::found(interface, &mac(gid)) {
        entry.interface = Some(name);
        entry.ip = ip;
    }
    entry
}

fn iwarp_address(entry: &GidEntry) -> LinkAddress {
    let unknown = LinkAddress::Mac(mac(entry.gid));
    entry.ip.map_or(unknown, LinkAddress::Ip)
}

fn mac(gid: Gid) -> [u8; 6] {
    let [a, b, c, d, e, f, ..] = gid.0;
    [a, b, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use polyverbs_abi::IbvGid;

    use super::*;

    #[test]
    fn gid_entries_keep_their_index_and_the_table_ends_with_one() {
        let entry = |port_num, gid_index, octet, gid_type| IbvGidEntry {
            gid: IbvGid { raw: [octet; 16] },
            gid_index,
            port_num,
            gid_type,
            ndev_ifindex: 0,
        };
        let all = [
            entry(2, 0, 7, 2),
            entry(1, 3, 9, 1),
            entry(1, 1, 8, 2),
            entry(1, 4, 0, 0),
        ];
        let of = |port| -> Vec<_> {
            let table = gids_of(port, PortCaps::ROCE_V2, &all).into_iter();
            let octets = table.map(|entry| (entry.gid.0[0], entry.gid_type));
            octets.collect()
        };
        let empty = (0, GidType::RoceV1);
        let of_port_1 = [empty, (8, GidType::RoceV2), empty, (9, GidType::RoceV1)];
        assert_eq!(of(1), of_port_1);
        assert_eq!(of(2), [(7, GidType::RoceV2)]);
        assert_eq!(of(3), []);
    }
}

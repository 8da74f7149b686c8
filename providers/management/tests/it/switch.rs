//! Attributes of a switch.

use std::time::Duration;

use polyverbs_management::{Abilities, Node, Processed, SwitchAbilities};
use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::smp::{
    LinearForwardingTable, MulticastForwardingTable, NodeDescription, NodeInfo, PKeyTable,
    PhysicalState, PortInfo, PortState, SlToVlTable, SwitchInfo, capability,
};
use polyverbs_wire::mad::{Attribute, status};

use crate::rig::{Request, decoded};

const GUID: u64 = 0x20;

/// A switch with three ports besides port 0, and tables of 200 and 40 LIDs. Requests come by port 2.
fn switch() -> Node {
    let port = |guid| Abilities {
        guid,
        widths: 3,
        speeds: 7,
        extended_speeds: 3,
        mtu: 5,
        vls: 3,
        guids: 1,
        capability_mask: capability::SL_MAPPING,
    };
    let identity = NodeInfo {
        node_guid: GUID,
        partition_cap: 40,
        ..NodeInfo::default()
    };
    let abilities = SwitchAbilities {
        unicast_lids: 200,
        multicast_lids: 40,
    };
    let ports = [GUID, 0, 0, 0].map(port);
    Node::switch(identity, NodeDescription::default(), &abilities, &ports)
}

fn answer(node: &mut Node, request: Request) -> (u16, Octets<64>) {
    let mut mad = request.to_mad();
    assert_eq!(node.process(2, &mut mad, Duration::ZERO), Processed::Reply);
    let (header, smp) = decoded(&mad);
    (header.status, smp.data)
}

#[track_caller]
fn read<A: Attribute>(node: &mut Node, request: Request) -> A {
    let (status, data) = answer(node, request);
    assert_eq!(status, status::OK);
    data.header()
}

#[track_caller]
fn refused(node: &mut Node, request: Request) {
    assert_eq!(answer(node, request).0, status::INVALID_FIELD);
}

// covers 8.72
#[test]
fn a_switch_has_the_guid_and_the_lid_of_its_port_0() {
    let mut node = switch();
    let info: NodeInfo = read(&mut node, Request::get::<NodeInfo>());
    assert_eq!((info.node_type, info.num_ports), (2, 3));
    assert_eq!((info.port_guid, info.local_port_num), (GUID, 2));
    let own: PortInfo = read(&mut node, Request::get::<PortInfo>());
    assert_eq!(own.port_state, PortState::ACTIVE);
    let written = PortInfo {
        lid: 7,
        port_state: PortState::NO_CHANGE,
        physical_state: PhysicalState::NO_CHANGE,
        ..own
    };
    let own: PortInfo = read(&mut node, Request::set(&written));
    assert_eq!((own.lid, own.local_port_num), (7, 2));
    assert_eq!(node.port(0).unwrap().info().lid, 7);
}

#[test]
fn any_port_of_a_switch_is_configured_through_any_other() {
    let mut node = switch();
    let neighbor = *node.port(1).unwrap().info();
    node.port_mut(3).unwrap().link_up(&neighbor);
    let info: PortInfo = read(&mut node, Request::get::<PortInfo>().modifier(3));
    assert_eq!(info.port_state, PortState::INIT);
    let armed = PortInfo {
        port_state: PortState::ARMED,
        physical_state: PhysicalState::NO_CHANGE,
        ..info
    };
    let info: PortInfo = read(&mut node, Request::set(&armed).modifier(3));
    assert_eq!(info.port_state, PortState::ARMED);
    refused(&mut node, Request::get::<PortInfo>().modifier(4));
    let p_keys = PKeyTable {
        p_keys: [0x8001; 32],
    };
    let written: PKeyTable = read(&mut node, Request::set(&p_keys).modifier(1 << 16));
    assert_eq!(written, p_keys);
    assert_eq!(node.port(1).unwrap().p_keys()[0], 0x8001);
    assert_eq!(node.port(3).unwrap().p_keys()[0], 0xffff);
}

#[test]
fn the_port_state_change_is_cleared_by_writing_it() {
    let mut node = switch();
    node.note_port_state_change();
    let info: SwitchInfo = read(&mut node, Request::get::<SwitchInfo>());
    assert!(info.port_state_change && info.linear_fdb_cap == 200);
    let kept = SwitchInfo {
        port_state_change: false,
        linear_fdb_top: 199,
        life_time_value: 3,
        ..info
    };
    let info: SwitchInfo = read(&mut node, Request::set(&kept));
    assert!(info.port_state_change);
    assert_eq!((info.linear_fdb_top, info.life_time_value), (199, 3));
    let info: SwitchInfo = read(&mut node, Request::set(&info));
    assert!(!info.port_state_change);
    let beyond = SwitchInfo {
        linear_fdb_top: 200,
        ..info
    };
    refused(&mut node, Request::set(&beyond));
}

#[test]
fn a_switch_forwards_by_the_entries_up_to_the_top() {
    let mut node = switch();
    let mut table: LinearForwardingTable = read(
        &mut node,
        Request::get::<LinearForwardingTable>().modifier(3),
    );
    assert_eq!(table.ports.0[0], 0xff);
    // The last block has 8 of the 200 LIDs.
    (table.ports.0[0], table.ports.0[7], table.ports.0[8]) = (1, 3, 2);
    let written: LinearForwardingTable = read(&mut node, Request::set(&table).modifier(3));
    assert_eq!((written.ports.0[7], written.ports.0[8]), (3, 0));
    assert_eq!(node.forward(192), None, "the top is 0");
    let mut info: SwitchInfo = read(&mut node, Request::get::<SwitchInfo>());
    info.linear_fdb_top = 198;
    read::<SwitchInfo>(&mut node, Request::set(&info));
    assert_eq!((node.forward(192), node.forward(193)), (Some(1), None));
    assert_eq!(node.forward(199), None, "it is beyond the top");
    refused(
        &mut node,
        Request::get::<LinearForwardingTable>().modifier(4),
    );
}

#[test]
fn a_multicast_packet_leaves_by_the_ports_of_its_mask() {
    let mut node = switch();
    let mut table = MulticastForwardingTable {
        port_masks: [0; 32],
    };
    table.port_masks[2] = 0b1010;
    let block = Request::set(&table).modifier(1);
    assert_eq!(
        read::<MulticastForwardingTable>(&mut node, block).port_masks[2],
        0b1010
    );
    assert_eq!(node.forward_multicast(0xc000 + 34), [1, 3]);
    assert_eq!(node.forward_multicast(0xc000 + 2), []);
    let other_ports = Request::get::<MulticastForwardingTable>().modifier(1 << 28 | 1);
    assert_eq!(
        read::<MulticastForwardingTable>(&mut node, other_ports).port_masks,
        [0; 32]
    );
    refused(
        &mut node,
        Request::get::<MulticastForwardingTable>().modifier(2),
    );
}

#[test]
fn a_switch_has_a_table_of_lanes_for_each_pair_of_ports() {
    let mut node = switch();
    let table = SlToVlTable { vls: [3; 16] };
    read::<SlToVlTable>(&mut node, Request::set(&table).modifier(1 << 8 | 2));
    let other: SlToVlTable = read(
        &mut node,
        Request::get::<SlToVlTable>().modifier(2 << 8 | 1),
    );
    assert_eq!(other, SlToVlTable::default());
    let same: SlToVlTable = read(
        &mut node,
        Request::get::<SlToVlTable>().modifier(1 << 8 | 2),
    );
    assert_eq!(same, table);
    refused(
        &mut node,
        Request::get::<SlToVlTable>().modifier(1 << 8 | 4),
    );
}

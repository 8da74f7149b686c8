//! Attributes of subnet management, and the status codes of unsupported requests.

use polyverbs_management::{Event, Processed};
use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::notice::Notice;
use polyverbs_wire::mad::smp::{
    DIRECTED_CLASS, GuidInfo, Hops, LinearForwardingTable, NodeDescription, NodeInfo, PKeyTable,
    PortInfo, SlToVlTable, SmInfo, SwitchInfo, VlArbitrationTable, capability,
};
use polyverbs_wire::mad::{Attribute, CM_CLASS, ClassPortInfo, method, status};

use crate::rig::{NODE_GUID, PORT_GUID, Request, Rig, decoded};

// covers 8.72
#[test]
fn node_info_names_the_port_by_which_the_request_came() {
    let mut rig = Rig::new();
    let info: NodeInfo = rig.read(Request::get::<NodeInfo>());
    let expected = NodeInfo {
        base_version: 1,
        class_version: 1,
        node_type: 1,
        num_ports: 2,
        system_image_guid: 0x0f,
        node_guid: NODE_GUID,
        port_guid: PORT_GUID,
        partition_cap: 40,
        device_id: 7,
        local_port_num: 1,
        vendor_id: 0x00_02c9,
        ..NodeInfo::default()
    };
    assert_eq!(info, expected);

    let mut mad = Request::get::<NodeInfo>().to_mad();
    rig.node.process(2, &mut mad, rig.now);
    let info: NodeInfo = decoded(&mad).1.data.header();
    assert_eq!((info.port_guid, info.local_port_num), (PORT_GUID + 1, 2));
}

// covers 8.72
#[test]
fn the_node_description_is_read_and_not_written() {
    let mut rig = Rig::new();
    let NodeDescription { text } = rig.read(Request::get::<NodeDescription>());
    assert_eq!(text, Octets::padded(b"host1 mlx5_0").unwrap());
    let write = Request::set(&NodeDescription { text });
    assert_eq!(rig.refusal(write), status::METHOD_AND_ATTRIBUTE);
    let block = Request::get::<NodeDescription>().modifier(1);
    assert_eq!(rig.refusal(block), status::INVALID_FIELD);
}

// covers 8.72
#[test]
fn p_keys_are_written_block_by_block() {
    let mut rig = Rig::new();
    let PKeyTable { mut p_keys } = rig.read(Request::get::<PKeyTable>());
    assert_eq!((p_keys[0], p_keys[1]), (0xffff, 0));

    p_keys[1] = 0x8001;
    let written: PKeyTable = rig.read(Request::set(&PKeyTable { p_keys }));
    assert_eq!(written.p_keys, p_keys);
    assert_eq!(rig.events(), [(1, Event::PkeyChange)]);
    rig.read::<PKeyTable>(Request::set(&PKeyTable { p_keys }));
    assert_eq!(rig.events(), [], "nothing has changed");

    // The second block has 8 of the 40 P_Keys.
    let last = Request::set(&PKeyTable {
        p_keys: [0x8002; 32],
    })
    .modifier(1);
    let PKeyTable { p_keys } = rig.read(last);
    assert_eq!((p_keys[7], p_keys[8]), (0x8002, 0));
    assert_eq!(rig.node.port(1).unwrap().p_keys()[39], 0x8002);
    assert_eq!(rig.node.port(2).unwrap().p_keys()[39], 0);
    let beyond = Request::get::<PKeyTable>().modifier(2);
    assert_eq!(rig.refusal(beyond), status::INVALID_FIELD);
}

// covers 8.72
#[test]
fn guids_are_written_but_for_the_first() {
    let mut rig = Rig::new();
    let written = Request::set(&GuidInfo { guids: [5; 8] });
    let GuidInfo { guids } = rig.read(written);
    assert_eq!(guids, [PORT_GUID, 5, 5, 5, 5, 5, 5, 5]);
    assert_eq!(rig.events(), [(1, Event::GidChange)]);

    let GuidInfo { guids } = rig.read(written.modifier(1));
    assert_eq!(guids, [5, 0, 0, 0, 0, 0, 0, 0], "the port has nine GUIDs");
    assert_eq!(rig.refusal(written.modifier(2)), status::INVALID_FIELD);
}

// covers 8.72
#[test]
fn lanes_are_mapped_and_arbitrated_by_tables() {
    let mut rig = Rig::new();
    let vls = std::array::from_fn(|sl| sl as u8 % 4);
    let mapped: SlToVlTable = rig.read(Request::set(&SlToVlTable { vls }));
    assert_eq!(mapped.vls, vls);

    let table = |octet| VlArbitrationTable {
        entries: Octets([octet; 64]),
    };
    let (low, high) = (1 << 16, 3 << 16);
    rig.read::<VlArbitrationTable>(Request::set(&table(1)).modifier(low));
    rig.read::<VlArbitrationTable>(Request::set(&table(3)).modifier(high));
    let read = Request::get::<VlArbitrationTable>();
    assert_eq!(rig.read::<VlArbitrationTable>(read.modifier(low)), table(1));
    assert_eq!(
        rig.read::<VlArbitrationTable>(read.modifier(high)),
        table(3)
    );
    // The tables have 32 entries, and so no second block.
    assert_eq!(rig.refusal(read.modifier(2 << 16)), status::INVALID_FIELD);

    let mut rig = Rig::with(0);
    let unmapped = rig.refusal(Request::get::<SlToVlTable>());
    assert_eq!(unmapped, status::METHOD_AND_ATTRIBUTE);
}

// covers 8.60 8.72
#[test]
fn sm_info_is_answered_by_the_subnet_manager_alone() {
    let read = Request::get::<SmInfo>();
    let mut rig = Rig::new();
    assert_eq!(rig.refusal(read), status::METHOD_AND_ATTRIBUTE);
    let mut rig = Rig::with(capability::IS_SM);
    assert_eq!(rig.process(read), (Processed::Pass, read.to_mad()));
    let mut rig = Rig::with(capability::SM_DISABLED);
    assert_eq!(rig.process(read), (Processed::Consumed, read.to_mad()));
}

// covers 8.65
#[test]
fn unsupported_requests_are_answered_with_their_status() {
    let mut rig = Rig::new();
    let read = Request::get::<NodeInfo>();
    let version = Request {
        class_version: 2,
        ..read
    };
    assert_eq!(rig.refusal(version), status::VERSION);
    let unknown_method = Request {
        method: method::GET_TABLE,
        ..read
    };
    assert_eq!(rig.refusal(unknown_method), status::METHOD);
    for attribute_id in [
        SwitchInfo::ID,
        LinearForwardingTable::ID,
        Notice::ID,
        ClassPortInfo::ID,
        0x30,
        0xff90,
    ] {
        for method in [method::GET, method::SET] {
            let request = Request {
                method,
                attribute_id,
                ..read
            };
            assert_eq!(rig.refusal(request), status::METHOD_AND_ATTRIBUTE);
        }
    }
    let repress = Request {
        method: method::TRAP_REPRESS,
        ..read
    };
    assert_eq!(rig.refusal(repress), status::METHOD_AND_ATTRIBUTE);
    let no_such_port = Request::get::<PortInfo>().modifier(3);
    assert_eq!(rig.refusal(no_such_port), status::INVALID_FIELD);
}

// covers 8.65
#[test]
fn the_answer_to_a_directed_request_has_the_direction_bit() {
    let mut rig = Rig::new();
    let read = Request {
        class: DIRECTED_CLASS,
        ..Request::get::<NodeInfo>()
    };
    let (_, mad) = rig.process(read);
    assert_eq!(decoded(&mad).0.status, Hops::RETURNING);
    let (_, mad) = rig.process(read.modifier(1));
    assert_eq!(
        decoded(&mad).0.status,
        Hops::RETURNING | status::INVALID_FIELD
    );
}

// covers 8.60
#[test]
fn mads_that_are_not_requests_to_these_agents_are_passed_on() {
    let mut rig = Rig::new();
    let read = Request::get::<NodeInfo>();
    for method in [
        method::GET | method::RESPONSE,
        method::TRAP,
        method::REPORT,
        method::REPORT | method::RESPONSE,
        method::SEND,
    ] {
        let mad = Request {
            method,
            class_version: 9,
            ..read
        };
        assert_eq!(
            rig.process(mad),
            (Processed::Pass, mad.to_mad()),
            "{method}"
        );
        assert_eq!(
            rig.process(mad.of_counters()).0,
            Processed::Pass,
            "{method}"
        );
    }
    let other_class = Request {
        class: CM_CLASS,
        ..read
    };
    assert_eq!(rig.process(other_class).0, Processed::Pass);
}

// covers 8.60 8.64
#[test]
fn another_base_version_is_dropped_without_an_answer() {
    let mut rig = Rig::new();
    let mut mad = Request::get::<NodeInfo>().to_mad();
    mad[0] = 2;
    let before = mad;
    assert_eq!(rig.node.process(1, &mut mad, rig.now), Processed::Consumed);
    assert_eq!(mad, before);
    let repress = Request {
        method: method::TRAP_REPRESS,
        ..Request::get::<Notice>()
    };
    assert_eq!(rig.process(repress).0, Processed::Consumed);
}

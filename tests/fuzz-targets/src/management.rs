//! A subnet manager that sends an adapter management datagrams that a fuzzer makes up.
//!
//! Whatever arrives, nothing panics, ports stay in states of the standard, and an answer repeats the request's transaction ID.

use std::time::Duration;

use polyverbs_management::{Abilities, NextHop, Node};
use polyverbs_wire::layout::{Header, Octets};
use polyverbs_wire::mad::perf::PERF_CLASS;
use polyverbs_wire::mad::smp::{
    DIRECTED_CLASS, Hops, LID_CLASS, MAX_UNICAST_LID, NodeDescription, NodeInfo, PortState, Smp,
    capability,
};
use polyverbs_wire::mad::{self, MAD_LEN, MadHeader, method};

use crate::script::Script;

const PORT_GUID: u64 = 7;
const MTU: u8 = 5;
const VLS: u8 = 3;

/// Runs an adapter by the script of a fuzzer.
pub fn run(octets: &[u8]) {
    let mut script = Script::new(octets);
    let mut node = adapter();
    let mut now = Duration::ZERO;
    while !script.is_over() {
        let number = 1 + script.octet() % 2;
        let other = *node.port(3 - number).unwrap().info();
        match script.octet() {
            0 => node.port_mut(number).unwrap().link_up(&other),
            1 => node.port_mut(number).unwrap().link_down(),
            2 => now += Duration::from_secs(script.octet().into()),
            3 => node.port_mut(number).unwrap().totals.xmit_data += u64::from(script.octet()),
            _ => pass(&mut node, number, &mut script, now),
        }
        while node.poll_event().is_some() {}
        check(&node);
    }
}

fn adapter() -> Node {
    let identity = NodeInfo {
        partition_cap: 33,
        ..NodeInfo::default()
    };
    let port = Abilities {
        guid: PORT_GUID,
        widths: 3,
        speeds: 7,
        extended_speeds: 1,
        mtu: MTU,
        vls: VLS,
        guids: 9,
        capability_mask: capability::SL_MAPPING | capability::IS_SM,
    };
    Node::adapter(identity, NodeDescription::default(), &[port; 2])
}

fn pass(node: &mut Node, port: u8, script: &mut Script<'_>, now: Duration) {
    let mut mad = datagram(script);
    let before = MadHeader::split(&mad).unwrap().0;
    let next = match script.octet() % 2 {
        0 => node.receive(port, &mut mad, now),
        _ => node.send(port, &mut mad, now),
    };
    let after = MadHeader::split(&mad).unwrap().0;
    assert_eq!(
        (after.transaction_id, after.attribute_id),
        (before.transaction_id, before.attribute_id)
    );
    if after.method != before.method {
        assert_ne!(after.method & method::RESPONSE, 0);
    }
    match next {
        NextHop::Port(out) => assert!((1..=2).contains(&out)),
        NextHop::Lid(_) => panic!("an adapter forwards nothing"),
        NextHop::Here if after.management_class == DIRECTED_CLASS => {
            let hops = Hops::of(&after);
            assert!(hops.count <= Hops::MAX_COUNT && hops.pointer <= hops.count + 1);
        }
        _ => {}
    }
}

/// A datagram whose header is often one of the standard's.
fn datagram(script: &mut Script<'_>) -> [u8; MAD_LEN] {
    let class = script.octet();
    let kind = script.octet();
    let mut header = MadHeader {
        base_version: 1,
        management_class: match class {
            0..=99 => DIRECTED_CLASS,
            100..=199 => LID_CLASS,
            200..=249 => PERF_CLASS,
            _ => class,
        },
        class_version: 1,
        method: match kind {
            0..=99 => method::GET,
            100..=199 => method::SET,
            200 => method::TRAP_REPRESS,
            _ => kind,
        },
        transaction_id: 0x55,
        attribute_id: script.octet().into(),
        attribute_modifier: u32::from(script.octet()) << 16 | u32::from(script.octet()),
        ..MadHeader::default()
    };
    let hops = Hops {
        is_returning: script.octet() == 1,
        pointer: script.octet(),
        count: script.octet(),
    };
    hops.put(&mut header);
    let fill = |octets: &[u8]| Octets::padded(octets).unwrap_or_default();
    let smp = Smp {
        m_key: script.octet().into(),
        dr_slid: u16::MAX - u16::from(script.octet()),
        dr_dlid: u16::MAX - u16::from(script.octet()),
        initial_path: fill(script.octets(3)),
        return_path: fill(script.octets(3)),
        data: fill(script.octets(64)),
        ..Smp::default()
    };
    mad::encode(&header, &smp.to_view().0)
}

fn check(node: &Node) {
    for number in 1..=2 {
        let port = node.port(number).unwrap();
        let info = port.info();
        assert!((PortState::DOWN..=PortState::ACTIVE).contains(&info.port_state));
        assert!(info.lid <= MAX_UNICAST_LID && info.sm_lid <= MAX_UNICAST_LID);
        assert!((1..=MTU).contains(&info.neighbor_mtu));
        assert!((1..=VLS).contains(&info.operational_vls));
        assert_eq!(info.link_width_enabled & !info.link_width_supported, 0);
        assert_eq!(info.link_speed_enabled & !info.link_speed_supported, 0);
        assert_eq!(port.guids()[0], PORT_GUID);
    }
}

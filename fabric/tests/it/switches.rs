//! Hosts A and B at a switch S, whose tables a subnet manager at A writes.

use std::time::Duration;

use polyverbs_fabric::query::{self, QueryError, Route};
use polyverbs_fabric::subnet::{Arrival, LinkError};
use polyverbs_management::Address;
use polyverbs_wire::layout::Octets;
use polyverbs_wire::mad::notice::{
    KeyViolation, LinkErrors, LinkState, MKeyViolation, Notice, trap,
};
use polyverbs_wire::mad::perf::PERF_CLASS;
use polyverbs_wire::mad::smp::{
    LinearForwardingTable, NodeInfo, PhysicalState, PortInfo, PortState, Smp, SwitchInfo,
};
use polyverbs_wire::mad::{self, MAD_LEN, method};

use crate::rig::Rig;

const SWITCHED: &str = "Switch 3 \"S\"\n[1] \"A\"[1]\n[2] \"B\"[1]\n\nCa 1 \"A\"\n\nCa 1 \"B\"\n";
const A: u16 = 1;
const S: u16 = 2;
const B: u16 = 3;

fn directed(ports: &[u8]) -> Route {
    Route::Directed(ports.to_vec())
}

/// The routes of A, of S and of B.
fn routes() -> [Route; 3] {
    [directed(&[]), directed(&[1]), directed(&[1, 2])]
}

fn change(rig: &mut Rig, route: &Route, port: u32, change: impl Fn(&mut PortInfo)) {
    let mut info: PortInfo = query::get(rig, route, port).unwrap();
    (info.port_state, info.physical_state) = (PortState::NO_CHANGE, PhysicalState::NO_CHANGE);
    change(&mut info);
    query::set(rig, route, port, &info).unwrap();
}

/// The subnet as a subnet manager leaves it.
fn configured() -> Rig {
    let mut rig = Rig::new(SWITCHED);
    for (route, lid) in routes().iter().zip([A, S, B]) {
        change(&mut rig, route, 0, |it| {
            (it.lid, it.sm_lid, it.subnet_timeout) = (lid, A, 18);
        });
    }
    let [a, s, b] = &routes();
    let mut info: SwitchInfo = query::get(&mut rig, s, 0).unwrap();
    info.linear_fdb_top = B;
    query::set(&mut rig, s, 0, &info).unwrap();
    let mut table: LinearForwardingTable = query::get(&mut rig, s, 0).unwrap();
    table.ports.0[1..4].copy_from_slice(&[1, 0, 2]);
    query::set(&mut rig, s, 0, &table).unwrap();
    for state in [PortState::ARMED, PortState::ACTIVE] {
        for (route, port) in [(a, 1), (s, 1), (s, 2), (b, 1)] {
            change(&mut rig, route, port, |it| it.port_state = state);
        }
    }
    rig
}

#[test]
fn a_directed_walk_crosses_a_switch_without_tables() {
    let mut rig = Rig::new(SWITCHED);
    let found = query::walk(&mut rig).unwrap();
    let [a, s, b] = &*found else {
        panic!("{found:?}")
    };
    assert_eq!((&*s.description, s.info.node_type), ("S", 2));
    assert_eq!(a.ports[&1].peer, Some((s.info.node_guid, 1)));
    assert_eq!(s.ports[&2].peer, Some((b.info.node_guid, 1)));
    assert_eq!(s.ports[&3].info.port_state, PortState::DOWN);
    assert_eq!(b.route, [1, 2]);
}

#[test]
fn requests_cross_a_switch_by_the_table_that_was_written() {
    let mut rig = configured();
    for lid in [A, S, B] {
        let info: PortInfo = query::get(&mut rig, &Route::Lid(lid), 0).unwrap();
        assert_eq!(info.lid, lid);
    }
    let [_, s, _] = &routes();
    let mut table: LinearForwardingTable = query::get(&mut rig, s, 0).unwrap();
    table.ports.0[3] = 0xff;
    query::set(&mut rig, s, 0, &table).unwrap();
    let lost = query::get::<NodeInfo>(&mut rig, &Route::Lid(B), 0);
    assert_eq!(lost, Err(QueryError::TimedOut));
    let port = rig.subnet.node(0).unwrap().port(1).unwrap();
    assert_eq!(port.totals.rcv_switch_relay_errors, 1);
}

#[test]
fn a_packet_ends_though_the_tables_lead_it_in_a_circle() {
    let two = format!("{SWITCHED}\nSwitch 1 \"T\"\n[1] \"S\"[3]\n");
    let mut rig = Rig::new(&two);
    change(&mut rig, &directed(&[]), 0, |it| it.lid = A);
    for (route, back) in [(directed(&[1]), 3), (directed(&[1, 3]), 1)] {
        let mut info: SwitchInfo = query::get(&mut rig, &route, 0).unwrap();
        info.linear_fdb_top = B;
        query::set(&mut rig, &route, 0, &info).unwrap();
        let mut table: LinearForwardingTable = query::get(&mut rig, &route, 0).unwrap();
        table.ports.0[usize::from(B)] = back;
        query::set(&mut rig, &route, 0, &table).unwrap();
    }
    let lost = query::get::<NodeInfo>(&mut rig, &Route::Lid(B), 0);
    assert_eq!(lost, Err(QueryError::TimedOut));
    let (_, t) = rig.subnet.named("T").unwrap();
    assert!(t.port(1).unwrap().totals.rcv_pkts > 10);
}

fn trap_of(arrival: &Arrival) -> (u64, Notice) {
    let decoded = mad::decode(&arrival.mad).unwrap();
    assert_eq!(decoded.header.method(), method::TRAP);
    let smp: Smp = Octets(*decoded.data).header();
    (decoded.header.transaction_id(), smp.data.header())
}

#[test]
fn a_switch_repeats_its_trap_until_it_is_repressed() {
    let mut rig = configured();
    let (port, start) = (rig.end("S", 2), Duration::from_secs(1));
    rig.subnet.set_link(port, false);
    rig.subnet.expire(start);
    let first = rig.subnet.poll_arrival().unwrap();
    let (transaction, notice) = trap_of(&first);
    assert_eq!(
        (notice.trap_number, notice.issuer_lid),
        (trap::LINK_STATE, S)
    );
    assert_eq!(notice.details.header::<LinkState>().lid, S);
    assert_eq!((first.at, first.from.lid), (rig.at, S));
    let info: SwitchInfo = query::get(&mut rig, &Route::Lid(S), 0).unwrap();
    assert!(info.port_state_change);

    rig.subnet.expire(start);
    assert_eq!(rig.subnet.poll_arrival(), None, "it is not yet time");
    let later = rig.subnet.next_deadline().unwrap();
    assert_eq!(later - start, Duration::from_nanos(4096 << 18));
    rig.subnet.expire(later);
    let again = rig.subnet.poll_arrival().unwrap();
    assert_eq!(trap_of(&again).0, transaction);

    let mut repress = again.mad;
    repress[3] = method::TRAP_REPRESS;
    rig.subnet.send(rig.at, repress, &again.from, later);
    assert_eq!(rig.subnet.next_deadline(), None);
    assert_eq!(rig.subnet.poll_arrival(), None);
}

#[test]
fn a_new_subnet_manager_is_announced_by_its_port() {
    let mut rig = configured();
    let b = rig.end("B", 1);
    rig.subnet.set_sm(b, true);
    rig.subnet.expire(Duration::ZERO);
    let arrival = rig.subnet.poll_arrival().unwrap();
    let (_, notice) = trap_of(&arrival);
    assert_eq!(
        (notice.trap_number, notice.issuer_lid),
        (trap::LOCAL_CHANGE, B)
    );
}

// covers 8.68
#[test]
fn a_wrong_m_key_is_counted_and_reported_without_an_answer() {
    let mut rig = configured();
    let [_, _, b] = &routes();
    change(&mut rig, b, 1, |info| {
        (info.m_key, info.m_key_protect_bits) = (7, 2);
    });
    let refused = query::get::<NodeInfo>(&mut rig, b, 0);
    assert_eq!(refused, Err(QueryError::TimedOut));
    rig.subnet.expire(Duration::ZERO);
    let (_, notice) = trap_of(&rig.subnet.poll_arrival().unwrap());
    assert_eq!((notice.trap_number, notice.issuer_lid), (trap::M_KEY, B));
    let details: MKeyViolation = notice.details.header();
    assert_eq!((details.method, details.attribute_id), (method::GET, 0x11));
    assert!(details.is_directed);
    let port = rig.end("B", 1);
    let node = rig.subnet.node(port.node).unwrap();
    assert_eq!(node.port(1).unwrap().info().m_key_violations, 1);
}

// covers 8.69
#[test]
fn a_wrong_q_key_at_queue_pair_1_is_counted_and_reported() {
    let mut rig = configured();
    let to = Address {
        lid: B,
        qpn: 1,
        q_key: 5,
        ..Address::default()
    };
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, PERF_CLASS, 1, method::GET]);
    rig.subnet.send(rig.at, mad, &to, Duration::ZERO);
    assert_eq!(rig.subnet.poll_arrival(), None);
    rig.subnet.expire(Duration::ZERO);
    let (_, notice) = trap_of(&rig.subnet.poll_arrival().unwrap());
    assert_eq!((notice.trap_number, notice.issuer_lid), (trap::Q_KEY, B));
    let details: KeyViolation = notice.details.header();
    let seen = (details.destination_lid, details.key, details.destination_qp);
    assert_eq!(seen, (B, 5, 1));
}

#[test]
fn an_error_of_a_link_is_counted_and_reported_by_its_node() {
    let mut rig = configured();
    let port = rig.end("S", 2);
    for (error, number) in [
        (LinkError::Integrity, trap::LOCAL_LINK_INTEGRITY),
        (LinkError::Overrun, trap::BUFFER_OVERRUN),
        (LinkError::FlowControl, trap::FLOW_CONTROL),
    ] {
        rig.subnet.fail_link(port, error);
        rig.subnet.expire(Duration::ZERO);
        let (_, notice) = trap_of(&rig.subnet.poll_arrival().unwrap());
        assert_eq!((notice.trap_number, notice.issuer_lid), (number, S));
        let details: LinkErrors = notice.details.header();
        assert_eq!((details.lid, details.port_num), (S, 2));
    }
    let node = rig.subnet.node(port.node).unwrap();
    let (counters, _) = node.port(2).unwrap().counters();
    assert_eq!(counters.local_link_integrity_errors, 1);
    assert_eq!(counters.excessive_buffer_overrun_errors, 1);
}

#[test]
fn a_port_without_a_subnet_manager_sends_no_trap() {
    let mut rig = Rig::new(SWITCHED);
    let port = rig.end("S", 2);
    rig.subnet.set_link(port, false);
    assert_eq!(rig.subnet.next_deadline(), None);
}

#[test]
fn a_link_that_one_end_takes_down_comes_up_at_both() {
    let mut rig = configured();
    let [_, s, b] = &routes();
    change(&mut rig, s, 2, |it| it.port_state = PortState::DOWN);
    for (route, port) in [(s, 2), (b, 1)] {
        let info: PortInfo = query::get(&mut rig, route, port).unwrap();
        assert_eq!(info.port_state, PortState::INIT);
    }
    change(&mut rig, s, 2, |it| {
        it.physical_state = PhysicalState::DISABLED
    });
    let gone = query::get::<PortInfo>(&mut rig, b, 0);
    assert_eq!(gone, Err(QueryError::TimedOut));
    change(&mut rig, s, 2, |it| {
        it.physical_state = PhysicalState::POLLING
    });
    let info: PortInfo = query::get(&mut rig, b, 0).unwrap();
    assert_eq!(info.port_state, PortState::INIT);
}

//! Links, routes and states of a fabric, as a program sees them.

use polyverbs_fabric::query::{self, QueryError, Route};
use polyverbs_wire::mad::smp::{NodeInfo, PhysicalState, PortInfo, PortState};

use crate::rig::{BACK_TO_BACK, Rig};

fn directed(ports: &[u8]) -> Route {
    Route::Directed(ports.to_vec())
}

#[test]
fn a_directed_request_reaches_its_own_node_and_the_next() {
    let mut rig = Rig::new(BACK_TO_BACK);
    let own: NodeInfo = query::get(&mut rig, &directed(&[]), 0).unwrap();
    let next: NodeInfo = query::get(&mut rig, &directed(&[1]), 0).unwrap();
    assert_eq!((own.local_port_num, next.local_port_num), (1, 1));
    assert_ne!(own.node_guid, next.node_guid);
    let beyond = query::get::<NodeInfo>(&mut rig, &directed(&[1, 1]), 0);
    assert_eq!(
        beyond,
        Err(QueryError::TimedOut),
        "an adapter forwards nothing"
    );
    let other = query::get::<NodeInfo>(&mut rig, &directed(&[2]), 0);
    assert_eq!(other, Err(QueryError::TimedOut), "there is no port 2");
}

#[test]
fn ports_are_initializing_when_their_link_is_there() {
    let mut rig = Rig::new(BACK_TO_BACK);
    let info: PortInfo = query::get(&mut rig, &directed(&[1]), 1).unwrap();
    assert_eq!(info.port_state, PortState::INIT);
    assert_eq!(info.physical_state, PhysicalState::LINK_UP);
    assert_eq!((info.link_width_active, info.link_speed_ext_active), (2, 2));
}

#[test]
fn a_link_that_is_cut_answers_again_when_it_is_joined() {
    let mut rig = Rig::new(BACK_TO_BACK);
    let b = rig.end("B", 1);
    rig.subnet.set_link(b, false);
    let cut = query::get::<NodeInfo>(&mut rig, &directed(&[1]), 0);
    assert_eq!(cut, Err(QueryError::TimedOut));
    let own: PortInfo = query::get(&mut rig, &directed(&[]), 1).unwrap();
    assert_eq!(own.port_state, PortState::DOWN);
    rig.subnet.set_link(b, true);
    query::get::<NodeInfo>(&mut rig, &directed(&[1]), 0).unwrap();
}

#[test]
fn a_walk_finds_both_nodes_and_the_link_between_them() {
    let mut rig = Rig::new(BACK_TO_BACK);
    let found = query::walk(&mut rig).unwrap();
    let [a, b] = &*found else { panic!("{found:?}") };
    assert_eq!((&*a.description, &*b.description), ("A", "B"));
    assert_eq!(a.ports[&1].peer, Some((b.info.node_guid, 1)));
}

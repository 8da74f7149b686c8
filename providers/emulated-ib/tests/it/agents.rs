//! Agents of programs at a port of an InfiniBand network: which agent a MAD reaches, and when requests come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use polyverbs_wire::layout::{Header as _, Octets};
use polyverbs_wire::mad::perf::PERF_CLASS;
use polyverbs_wire::mad::smp::{
    DIRECTED_CLASS, Hops, NodeInfo, PERMISSIVE_LID, PhysicalState, PortInfo, PortState as State,
    Smp,
};
use polyverbs_wire::mad::{
    self, Attribute, ClassPortInfo, DATA_LEN, GSI_Q_KEY, GSI_QP, MadHeader, method, status,
};
use verbs_api::capability::PortState;
use verbs_api::completion::Notify;
use verbs_api::ids::{Gid, LinkAddress};
use verbs_api::objects::management::{
    AgentEvent, AgentRegistration, MAD_LEN, MadAddress, MadPatience, ManagementAgent, RESPONSE,
};
use verbs_api::qp::AddressVector;
use verbs_api::{VerbError, wr};

use crate::subnet::{activate, answers, carried, connected, deliver, get, managed, port};
use crate::support::{Fate, Rig, Setup, Side, poll};

const PING_CLASS: u8 = 0x32;
const OUI: [u8; 3] = [0x00, 0x14, 0x05];
const METHOD: usize = 3;

const PATIENT: Option<MadPatience> = Some(MadPatience {
    timeout: Duration::from_secs(1),
    retries: 2,
});

fn ping() -> [u8; MAD_LEN] {
    let header = MadHeader {
        base_version: 1,
        management_class: PING_CLASS,
        class_version: 1,
        method: method::GET,
        transaction_id: 5,
        ..MadHeader::default()
    };
    let mut mad = mad::encode(&header, &[0; DATA_LEN]);
    mad[37..40].copy_from_slice(&OUI);
    mad
}

fn pinged() -> AgentRegistration {
    AgentRegistration::new(PING_CLASS, 1)
        .oui(OUI)
        .methods([method::GET])
}

fn register(side: &Side, registration: AgentRegistration) -> ManagementAgent {
    side.context.register_agent(1, registration).unwrap()
}

/// An agent that receives answers to its own requests only.
fn client(side: &Side) -> ManagementAgent {
    register(side, AgentRegistration::new(PERF_CLASS, 1))
}

fn path(address: LinkAddress) -> AddressVector {
    AddressVector {
        is_global: false,
        ..AddressVector::new(address, Gid::default(), 1)
    }
}

fn by_lid(lid: u16) -> MadAddress {
    MadAddress::general_services(path(LinkAddress::Lid(lid)))
}

/// The port at the other end of the link, as directed MADs reach it.
fn neighbour(side: &Side) -> MadAddress {
    MadAddress::subnet_management(path(side.address()))
}

fn echo(agent: &ManagementAgent, event: AgentEvent) {
    let AgentEvent::Received { mut mad, from } = event else {
        panic!("{event:?}");
    };
    mad[METHOD] |= RESPONSE;
    agent.send(&mad, &from, None).unwrap();
}

/// The header of a MAD that has arrived.
#[track_caller]
fn received(event: Option<AgentEvent>) -> MadHeader {
    let Some(AgentEvent::Received { mad, .. }) = event else {
        panic!("{event:?}");
    };
    MadHeader::of(mad::decode(&mad).unwrap().header)
}

fn argument<T: std::fmt::Debug>(result: Result<T, VerbError>) -> &'static str {
    match result {
        Err(VerbError::InvalidArgument { argument, .. }) => argument,
        other => panic!("{other:?}"),
    }
}

// covers 5.05 8.61 8.63
#[test]
fn an_agent_answers_in_the_call_that_delivers_a_request() {
    let rig = managed();
    activate(&rig, &rig.b, 5);
    let agent = register(&rig.b, pinged());
    agent.on_event(echo);
    rig.wire.forget();
    deliver(&rig.b, &carried(&rig, &rig.b, GSI_QP, GSI_Q_KEY, &ping()));
    let answers = answers(&rig, &rig.b);
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].payload[METHOD], method::GET | RESPONSE);
    assert_eq!(answers[0].header.src_qp, GSI_QP);
}

// covers 5.05 8.61
#[test]
fn a_completion_handler_answers_management_datagrams() {
    let rig = connected();
    let (agent, client) = (register(&rig.b, pinged()), client(&rig.a));
    client.send(&ping(), &by_lid(5), PATIENT).unwrap();
    rig.b.receive(1, 0, 8);
    let handled = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&handled);
    rig.b.cq.on_completion(move |cq| {
        poll(cq);
        while let Some(event) = agent.poll_event() {
            echo(&agent, event);
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    rig.b.cq.arm(Notify::Next).unwrap();
    assert_eq!(client.poll_event(), None);
    rig.a.post(wr::Send::new(rig.a.sge(0, 8)).signaled(1));
    assert_eq!(handled.load(Ordering::Relaxed), 1);
    assert_eq!(received(client.poll_event()).method, method::GET | RESPONSE);
}

// covers 8.70
#[test]
fn an_answer_reaches_the_program_that_has_asked() {
    let rig = connected();
    let clients = [client(&rig.a), client(&rig.a)];
    let sent = clients.each_ref().map(|client| {
        let mad = get::<ClassPortInfo>(PERF_CLASS);
        client.send(&mad, &by_lid(5), PATIENT).unwrap()
    });
    assert_ne!(sent[0], sent[1]);
    rig.run();
    for (client, transaction_id) in clients.iter().zip(sent) {
        let answer = received(client.poll_event());
        assert_eq!(answer.transaction_id, transaction_id);
        assert_eq!(answer.status, status::OK);
        assert_eq!(client.poll_event(), None);
    }
}

// covers 8.71
#[test]
fn a_request_is_sent_again_until_it_times_out() {
    let rig = connected();
    let client = client(&rig.a);
    rig.wire.forget();
    rig.wire.rule(|_| Fate::Drop);
    let start = rig.now();
    let mad = get::<ClassPortInfo>(PERF_CLASS);
    let transaction_id = client.send(&mad, &by_lid(5), PATIENT).unwrap();
    assert_eq!(
        argument(client.send(&mad, &by_lid(5), PATIENT)),
        "transaction_id"
    );
    rig.run();
    let Some(AgentEvent::TimedOut { mad, to }) = client.poll_event() else {
        panic!("the request has timed out");
    };
    let header = MadHeader::of(mad::decode(&mad).unwrap().header);
    assert_eq!((header.transaction_id, to.qpn.value()), (transaction_id, 1));
    let sent: Vec<_> = rig.wire.times().iter().map(|(at, _)| at.0).collect();
    let start = start.as_nanos() as u64;
    let second = 1_000_000_000;
    assert_eq!(sent, [start, start + second, start + 2 * second]);
    assert_eq!(rig.now(), Duration::from_nanos(start + 3 * second));
}

// covers 8.71
#[test]
fn the_requests_of_a_program_time_out_one_by_one() {
    let rig = connected();
    let client = client(&rig.a);
    rig.wire.rule(|_| Fate::Drop);
    for (id, seconds) in [(1, 3), (2, 1), (3, 2)] {
        let mut mad = get::<ClassPortInfo>(PERF_CLASS);
        mad[15] = id;
        let patience = MadPatience {
            timeout: Duration::from_secs(seconds),
            retries: 0,
        };
        client.send(&mad, &by_lid(5), Some(patience)).unwrap();
    }
    for expected in [2, 3, 1] {
        rig.run_for(Duration::from_secs(1));
        let Some(AgentEvent::TimedOut { mad, .. }) = client.poll_event() else {
            panic!("request {expected} has timed out");
        };
        assert_eq!(mad[15], expected);
        assert_eq!(client.poll_event(), None);
    }
}

// covers 8.71
#[test]
fn a_cancelled_request_is_flushed_and_its_answer_dropped() {
    let rig = connected();
    let client = client(&rig.a);
    rig.wire.rule(|_| Fate::Hold);
    let mad = get::<ClassPortInfo>(PERF_CLASS);
    let transaction_id = client.send(&mad, &by_lid(5), PATIENT).unwrap();
    assert!(client.cancel(PERF_CLASS, transaction_id).unwrap());
    assert!(!client.cancel(PERF_CLASS, transaction_id).unwrap());
    let event = client.poll_event();
    assert!(
        matches!(event, Some(AgentEvent::Flushed { .. })),
        "{event:?}"
    );
    rig.wire.pass();
    rig.release();
    rig.run();
    assert_eq!(client.poll_event(), None);
}

// covers 8.69
#[test]
fn a_method_of_a_class_has_one_owner_at_a_port() {
    let rig = managed();
    let owner = register(&rig.b, pinged());
    let again = |side: &Side| side.context.register_agent(1, pinged());
    assert_eq!(argument(again(&rig.b)), "methods");
    again(&rig.a).expect("the other port");
    drop(owner);
    again(&rig.b).expect("the owner has gone");
    let reserved = AgentRegistration::new(0, 1);
    assert_eq!(argument(rig.b.context.register_agent(1, reserved)), "class");
}

// covers 8.62
#[test]
fn programs_have_no_agents_on_ethernet() {
    let rig = Rig::unconnected(Setup::default());
    let refused = rig.a.context.register_agent(1, pinged());
    assert_eq!(
        refused.err(),
        Some(VerbError::UnsupportedVerb("register_agent"))
    );
}

#[test]
fn an_agent_that_does_not_fetch_keeps_a_bounded_number() {
    let rig = managed();
    activate(&rig, &rig.b, 5);
    let agent = register(&rig.b, pinged());
    let request = carried(&rig, &rig.b, GSI_QP, GSI_Q_KEY, &ping());
    for _ in 0..1500 {
        deliver(&rig.b, &request);
    }
    assert_eq!(std::iter::from_fn(|| agent.poll_event()).count(), 1024);
    assert_eq!(agent.lost_events(), 1500 - 1024);
}

/// A directed MAD over this many hops, each by port 1.
fn directed<A: Attribute>(hops: u8, method: u8, attribute: &A) -> [u8; MAD_LEN] {
    let mut header = MadHeader {
        base_version: 1,
        management_class: DIRECTED_CLASS,
        class_version: 1,
        method,
        transaction_id: 9,
        attribute_id: A::ID,
        ..MadHeader::default()
    };
    let place = Hops {
        count: hops,
        ..Hops::default()
    };
    place.put(&mut header);
    let mut smp = Smp {
        dr_slid: PERMISSIVE_LID,
        dr_dlid: PERMISSIVE_LID,
        data: Octets::holding(attribute),
        ..Smp::default()
    };
    smp.initial_path.0[1..=usize::from(hops)].fill(1);
    mad::encode(&header, &smp.to_view().0)
}

fn answered<A: Attribute>(event: Option<AgentEvent>) -> A {
    let Some(AgentEvent::Received { mad, .. }) = event else {
        panic!("{event:?}");
    };
    let decoded = mad::decode(&mad).unwrap();
    assert_eq!(decoded.header.status() & !Hops::RETURNING, status::OK);
    Octets(*decoded.data).header::<Smp>().data.header()
}

#[test]
fn a_program_asks_its_own_node_without_a_hop() {
    let rig = managed();
    let client = client(&rig.a);
    let mad = directed(0, method::GET, &NodeInfo::default());
    client.send(&mad, &neighbour(&rig.b), PATIENT).unwrap();
    assert!(rig.wire.log().is_empty(), "nothing leaves the port");
    assert_eq!(answered::<NodeInfo>(client.poll_event()).num_ports, 1);
}

#[test]
fn a_route_that_begins_at_another_port_is_refused() {
    let rig = managed();
    let client = client(&rig.a);
    let mut mad = directed(1, method::GET, &NodeInfo::default());
    mad[129] = 2;
    assert_eq!(
        argument(client.send(&mad, &neighbour(&rig.b), PATIENT)),
        "mad"
    );
    mad[129] = 1;
    client.send(&mad, &neighbour(&rig.b), PATIENT).unwrap();
    rig.run();
    assert_eq!(answered::<NodeInfo>(client.poll_event()).num_ports, 1);
}

/// Configures the port that is this many hops from A's.
fn manage(rig: &Rig, client: &ManagementAgent, hops: u8, change: impl FnOnce(&mut PortInfo)) {
    let to = neighbour(&rig.b);
    let ask = |mad: [u8; MAD_LEN]| -> PortInfo {
        client.send(&mad, &to, PATIENT).unwrap();
        rig.run();
        answered(client.poll_event())
    };
    let mut info = ask(directed(hops, method::GET, &PortInfo::default()));
    (info.port_state, info.physical_state) = (State::NO_CHANGE, PhysicalState::NO_CHANGE);
    change(&mut info);
    ask(directed(hops, method::SET, &info));
}

fn bring_up(rig: &Rig) {
    let manager = client(&rig.a);
    for (hops, lid) in [(0, 1), (1, 2)] {
        manage(rig, &manager, hops, |info| {
            (info.lid, info.sm_lid) = (lid, 1);
        });
        manage(rig, &manager, hops, |info| info.port_state = State::ARMED);
        manage(rig, &manager, hops, |info| info.port_state = State::ACTIVE);
    }
    for (side, lid) in [(&rig.a, 1), (&rig.b, 2)] {
        let port = port(side);
        assert_eq!((port.state, port.lid()), (PortState::Active, Some(lid)));
    }
}

#[test]
fn a_program_is_the_subnet_manager() {
    let rig = managed();
    bring_up(&rig);
    rig.connect();
    rig.a
        .post(wr::Write::new(rig.a.sge(0, 8), rig.b.remote(0)).signaled(1));
    rig.run();
    assert_eq!(rig.a.done(), [(1, verbs_api::WcStatus::Success)]);
}

// covers 8.61
#[test]
fn agents_reach_each_other_on_a_direct_network() {
    let rig = Rig::unconnected(Setup {
        managed: true,
        direct: true,
        ..Setup::default()
    });
    bring_up(&rig);
}

// covers 8.71
#[test]
fn requests_of_a_removed_device_are_flushed() {
    let rig = connected();
    let client = client(&rig.a);
    rig.wire.rule(|_| Fate::Drop);
    let mad = get::<ClassPortInfo>(PERF_CLASS);
    client.send(&mad, &by_lid(5), PATIENT).unwrap();
    rig.a.engine.remove();
    rig.run();
    let event = client.poll_event();
    assert!(
        matches!(event, Some(AgentEvent::Flushed { .. })),
        "{event:?}"
    );
    assert_eq!(client.poll_event(), None);
    assert_eq!(
        client.send(&mad, &by_lid(5), PATIENT),
        Err(VerbError::DeviceRemoved)
    );
}

// covers 8.68
#[test]
fn a_request_to_the_own_node_without_its_key_times_out() {
    let rig = managed();
    let client = client(&rig.a);
    manage(&rig, &client, 0, |info| {
        (info.m_key, info.m_key_protect_bits) = (7, 2);
    });
    let mad = directed(0, method::GET, &PortInfo::default());
    client.send(&mad, &neighbour(&rig.b), PATIENT).unwrap();
    rig.run();
    let event = client.poll_event();
    assert!(
        matches!(event, Some(AgentEvent::TimedOut { .. })),
        "{event:?}"
    );
}

//! Ports of an InfiniBand network: management datagrams to queue pairs 0 and 1 are answered in the call that delivers them.

use emulated_ib::header::{Body, Header, SendExtra};
use polyverbs_engine::network::Member as _;
use polyverbs_engine::time::Time;
use polyverbs_management::address::SMI_QP;
use polyverbs_wire::layout::{Header as _, Octets};
use polyverbs_wire::mad::perf::{self, PERF_CLASS, Perf};
use polyverbs_wire::mad::smp::{
    self, LID_CLASS, NodeInfo, PhysicalState, PortInfo, PortState as State, Smp,
};
use polyverbs_wire::mad::{
    self, Attribute, ClassPortInfo, GSI_Q_KEY, GSI_QP, MAD_LEN, MadHeader, method, status,
};
use verbs_api::capability::{PortCaps, PortState};
use verbs_api::ids::Psn;
use verbs_api::qp::QpType;

use crate::support::{OwnFrame, Rig, Setup};

/// The queue pair that the requests come from.
const REQUESTER: u32 = 0;
const TRANSACTION: u64 = 0x1234;

/// Two devices whose ports a subnet manager has not found yet.
fn managed() -> Rig {
    Rig::unconnected(Setup {
        managed: true,
        ..Setup::default()
    })
}

fn get<A: Attribute>(class: u8) -> [u8; MAD_LEN] {
    request(class, method::GET, &A::default())
}

fn set(info: &PortInfo) -> [u8; MAD_LEN] {
    request(LID_CLASS, method::SET, info)
}

fn request<A: Attribute>(class: u8, method: u8, attribute: &A) -> [u8; MAD_LEN] {
    let class_version = match class {
        PERF_CLASS => perf::CLASS_VERSION,
        _ => smp::CLASS_VERSION,
    };
    let header = MadHeader {
        base_version: 1,
        management_class: class,
        class_version,
        method,
        transaction_id: TRANSACTION,
        attribute_id: A::ID,
        ..MadHeader::default()
    };
    // The attribute is at the same place in the MADs of both classes.
    let perf = Perf {
        data: Octets::holding(attribute),
        ..Perf::default()
    };
    mad::encode(&header, &perf.to_view().0)
}

/// A frame with a MAD from A's queue pair 0 or 1 to B's.
fn carried(rig: &Rig, qpn: u32, q_key: u32, mad: &[u8]) -> OwnFrame {
    let body = Body::Datagram(q_key, SendExtra::Nothing, None);
    OwnFrame {
        header: Header::new(QpType::Ud, REQUESTER, qpn, Psn::new(7), body),
        ..rig.request(0, body, mad)
    }
}

/// Delivers a MAD to B and runs nothing else: no job of the network, no timer, no other thread.
fn deliver(rig: &Rig, frame: &OwnFrame) {
    rig.b.engine.handle_frame(frame.as_frame(), Time(1));
}

/// The MADs that B has sent since the last time that this was called.
fn answers(rig: &Rig) -> Vec<OwnFrame> {
    let mut frames = rig.wire.log();
    rig.wire.forget();
    frames.retain(|frame| frame.from == rig.b.address());
    frames
}

/// B's answer to a MAD for queue pair 0.
fn ask(rig: &Rig, mad: &[u8; MAD_LEN]) -> (MadHeader, Smp) {
    deliver(rig, &carried(rig, SMI_QP, 0, mad));
    let answers = answers(rig);
    assert_eq!(answers.len(), 1, "one answer");
    let answer = mad::decode(&answers[0].payload).unwrap();
    (
        MadHeader::of(answer.header),
        Octets(*answer.data).header::<Smp>(),
    )
}

/// Changes B's PortInfo as a subnet manager does.
fn configure(rig: &Rig, change: impl FnOnce(&mut PortInfo)) {
    let (_, smp) = ask(rig, &get::<PortInfo>(LID_CLASS));
    let mut info: PortInfo = smp.data.header();
    (info.port_state, info.physical_state) = (State::NO_CHANGE, PhysicalState::NO_CHANGE);
    change(&mut info);
    let (header, _) = ask(rig, &set(&info));
    assert_eq!(header.status, status::OK);
}

/// Gives B a LID and activates it.
fn activate(rig: &Rig) {
    configure(rig, |info| (info.lid, info.sm_lid) = (5, 1));
    configure(rig, |info| info.port_state = State::ARMED);
    configure(rig, |info| info.port_state = State::ACTIVE);
}

// covers 5.05 8.61
#[test]
fn a_mad_is_answered_in_the_call_that_delivers_it() {
    let rig = managed();
    let (header, smp) = ask(&rig, &get::<NodeInfo>(LID_CLASS));
    assert_eq!(header.method, method::GET | method::RESPONSE);
    assert_eq!(header.transaction_id, TRANSACTION);
    assert_eq!(smp.data.header::<NodeInfo>().num_ports, 1);
}

// covers 8.63
#[test]
fn an_answer_leaves_by_the_queue_pair_of_its_request() {
    let rig = managed();
    activate(&rig);
    for (qpn, q_key, mad) in [
        (SMI_QP, 0, get::<NodeInfo>(LID_CLASS)),
        (GSI_QP, GSI_Q_KEY, get::<ClassPortInfo>(PERF_CLASS)),
    ] {
        let request = carried(&rig, qpn, q_key, &mad);
        deliver(&rig, &request);
        let answers = answers(&rig);
        assert_eq!(answers.len(), 1, "queue pair {qpn}");
        let answer = &answers[0];
        assert_eq!((answer.from, answer.to), (request.to, request.from));
        let header = &answer.header;
        assert_eq!((header.src_qp, header.dest_qp), (qpn, REQUESTER));
        assert_eq!(header.body, Body::Datagram(q_key, SendExtra::Nothing, None));
    }
}

// covers 8.62 1.08
#[test]
fn only_a_port_of_an_infiniband_network_has_subnet_management() {
    let ethernet = Rig::unconnected(Setup::default());
    deliver(
        &ethernet,
        &carried(&ethernet, SMI_QP, 0, &get::<NodeInfo>(LID_CLASS)),
    );
    assert!(answers(&ethernet).is_empty());
    for (rig, has_smi) in [(ethernet, false), (managed(), true)] {
        let port = rig.b.context.query_port(1).unwrap();
        assert_eq!(port.caps.contains(PortCaps::SMI), has_smi);
        assert_eq!(port.state == PortState::Init, has_smi);
    }
}

// covers 8.69
#[test]
fn each_queue_pair_takes_its_own_mads_only() {
    let rig = managed();
    activate(&rig);
    let node_info = get::<NodeInfo>(LID_CLASS);
    let counters = get::<ClassPortInfo>(PERF_CLASS);
    for (qpn, q_key, mad) in [
        (SMI_QP, 0, counters),
        (GSI_QP, GSI_Q_KEY, node_info),
        (GSI_QP, GSI_Q_KEY + 1, counters),
    ] {
        deliver(&rig, &carried(&rig, qpn, q_key, &mad));
        assert!(answers(&rig).is_empty(), "queue pair {qpn}, {q_key:#x}");
    }
    let port = rig.b.context.query_port(1).unwrap();
    assert_eq!(port.qkey_viol_cntr, 1);
}

// covers 8.64
#[test]
fn what_is_not_a_mad_is_dropped() {
    let rig = managed();
    let mad = get::<NodeInfo>(LID_CLASS);
    let mut longer = mad.to_vec();
    longer.push(0);
    for payload in [&[][..], &mad[..MAD_LEN - 1], &longer] {
        deliver(&rig, &carried(&rig, SMI_QP, 0, payload));
    }
    let mut damaged = carried(&rig, SMI_QP, 0, &mad);
    damaged.damaged = true;
    deliver(&rig, &damaged);
    let mut no_datagram = carried(&rig, SMI_QP, 0, &mad);
    no_datagram.header.body = Body::Acknowledge;
    deliver(&rig, &no_datagram);
    assert!(answers(&rig).is_empty());
}

// covers 8.65
#[test]
fn a_request_that_no_agent_takes_is_refused_with_a_status() {
    const SUBNET_ADMINISTRATION: u8 = 3;
    let rig = managed();
    activate(&rig);
    let mad = get::<ClassPortInfo>(SUBNET_ADMINISTRATION);
    deliver(&rig, &carried(&rig, GSI_QP, GSI_Q_KEY, &mad));
    let answers = answers(&rig);
    let answer = mad::decode(&answers[0].payload).unwrap().header;
    assert_eq!(answer.status(), status::METHOD_AND_ATTRIBUTE);
}

#[test]
fn a_port_that_is_not_active_takes_subnet_management_only() {
    let rig = managed();
    let counters = get::<ClassPortInfo>(PERF_CLASS);
    deliver(&rig, &carried(&rig, GSI_QP, GSI_Q_KEY, &counters));
    assert!(answers(&rig).is_empty(), "the port is in the state INIT");
    ask(&rig, &get::<NodeInfo>(LID_CLASS));
}

#[test]
fn a_port_that_a_subnet_manager_disables_does_not_answer() {
    let rig = managed();
    let (_, smp) = ask(&rig, &get::<PortInfo>(LID_CLASS));
    let mut info: PortInfo = smp.data.header();
    info.port_state = State::DOWN;
    info.physical_state = PhysicalState::DISABLED;
    for mad in [set(&info), get::<NodeInfo>(LID_CLASS)] {
        deliver(&rig, &carried(&rig, SMI_QP, 0, &mad));
        assert!(answers(&rig).is_empty());
    }
    let port = rig.b.context.query_port(1).unwrap();
    assert_eq!(port.state, PortState::Down);
}

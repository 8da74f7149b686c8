//! Ports of an InfiniBand network: management datagrams to queue pairs 0 and 1 are answered in the call that delivers them.

use emulated_ib::header::{Body, Header, SendExtra};
use polyverbs_engine::network::Member as _;
use polyverbs_engine::time::Time;
use polyverbs_io::emulated::{EmulatedError, EmulatedKind as _, EmulatedOptions};
use polyverbs_io::sim::Contract;
use polyverbs_management::address::SMI_QP;
use polyverbs_wire::layout::{Header as _, Octets};
use polyverbs_wire::mad::perf::{self, PERF_CLASS, Perf, PortCounters};
use polyverbs_wire::mad::smp::{
    self, LID_CLASS, NodeInfo, PKeyTable, PhysicalState, PortInfo, PortState as State, SlToVlTable,
    Smp,
};
use polyverbs_wire::mad::{
    self, Attribute, ClassPortInfo, GSI_Q_KEY, GSI_QP, MAD_LEN, MadHeader, method, status,
};
use verbs_api::capability::{Mtu, PhysState, PortAttributes, PortCaps, PortState};
use verbs_api::event::EventType;
use verbs_api::ids::{LinkAddress, Psn};
use verbs_api::qp::{AddressVector, QpType};
use verbs_api::{QpOptions, WcStatus, wr};

use crate::support::{OwnFrame, Rig, Setup, Side, connect, poll};

/// The queue pair that the requests come from.
pub(crate) const REQUESTER: u32 = 0;
const TRANSACTION: u64 = 0x1234;

/// Two devices whose ports a subnet manager has not found yet.
pub(crate) fn managed() -> Rig {
    Rig::unconnected(Setup {
        managed: true,
        ..Setup::default()
    })
}

pub(crate) fn get<A: Attribute>(class: u8) -> [u8; MAD_LEN] {
    request(class, method::GET, &A::default())
}

pub(crate) fn set<A: Attribute>(attribute: &A) -> [u8; MAD_LEN] {
    request(LID_CLASS, method::SET, attribute)
}

pub(crate) fn request<A: Attribute>(class: u8, method: u8, attribute: &A) -> [u8; MAD_LEN] {
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

/// A frame with a MAD to queue pair 0 or 1 of a device, which the other device might have sent.
pub(crate) fn carried(rig: &Rig, to: &Side, qpn: u32, q_key: u32, mad: &[u8]) -> OwnFrame {
    let body = Body::Datagram(q_key, SendExtra::Nothing, None);
    let from = [&rig.a, &rig.b].map(Side::address);
    OwnFrame {
        from: from[usize::from(to.address() == from[0])],
        to: to.address(),
        header: Header::new(QpType::Ud, REQUESTER, qpn, Psn::new(7), body),
        payload: mad.to_vec(),
        damaged: false,
    }
}

/// Delivers a MAD and runs nothing else: no job of the network, no timer, no other thread.
pub(crate) fn deliver(to: &Side, frame: &OwnFrame) {
    to.engine.handle_frame(frame.as_frame(), Time(1));
}

/// The frames that a device has sent since the log was last emptied.
pub(crate) fn answers(rig: &Rig, of: &Side) -> Vec<OwnFrame> {
    let mut frames = rig.wire.log();
    rig.wire.forget();
    frames.retain(|frame| frame.from == of.address());
    frames
}

/// The answer of a device to a MAD for queue pair 0.
fn ask(rig: &Rig, side: &Side, mad: &[u8; MAD_LEN]) -> (MadHeader, Smp) {
    rig.wire.forget();
    deliver(side, &carried(rig, side, SMI_QP, 0, mad));
    let answers = answers(rig, side);
    assert_eq!(answers.len(), 1, "one answer");
    let answer = mad::decode(&answers[0].payload).unwrap();
    (
        MadHeader::of(answer.header),
        Octets(*answer.data).header::<Smp>(),
    )
}

/// The PortInfo of a device as a write that changes nothing.
fn port_info(rig: &Rig, side: &Side) -> PortInfo {
    let (_, smp) = ask(rig, side, &get::<PortInfo>(LID_CLASS));
    let mut info: PortInfo = smp.data.header();
    (info.port_state, info.physical_state) = (State::NO_CHANGE, PhysicalState::NO_CHANGE);
    info
}

/// Changes the PortInfo of a device as a subnet manager does.
pub(crate) fn configure(rig: &Rig, side: &Side, change: impl FnOnce(&mut PortInfo)) {
    let mut info = port_info(rig, side);
    change(&mut info);
    let (header, _) = ask(rig, side, &set(&info));
    assert_eq!(header.status, status::OK);
}

/// Gives a device a LID and activates its port.
pub(crate) fn activate(rig: &Rig, side: &Side, lid: u16) {
    configure(rig, side, |info| (info.lid, info.sm_lid) = (lid, 1));
    configure(rig, side, |info| info.port_state = State::ARMED);
    configure(rig, side, |info| info.port_state = State::ACTIVE);
}

pub(crate) fn port(side: &Side) -> PortAttributes {
    side.context.query_port(1).unwrap()
}

// covers 5.05 8.61
#[test]
fn a_mad_is_answered_in_the_call_that_delivers_it() {
    let rig = managed();
    let (header, smp) = ask(&rig, &rig.b, &get::<NodeInfo>(LID_CLASS));
    assert_eq!(header.method, method::GET | method::RESPONSE);
    assert_eq!(header.transaction_id, TRANSACTION);
    assert_eq!(smp.data.header::<NodeInfo>().num_ports, 1);
}

// covers 8.63
#[test]
fn an_answer_leaves_by_the_queue_pair_of_its_request() {
    let rig = managed();
    activate(&rig, &rig.b, 5);
    for (qpn, q_key, mad) in [
        (SMI_QP, 0, get::<NodeInfo>(LID_CLASS)),
        (GSI_QP, GSI_Q_KEY, get::<ClassPortInfo>(PERF_CLASS)),
    ] {
        let request = carried(&rig, &rig.b, qpn, q_key, &mad);
        deliver(&rig.b, &request);
        let answers = answers(&rig, &rig.b);
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
    let request = carried(
        &ethernet,
        &ethernet.b,
        SMI_QP,
        0,
        &get::<NodeInfo>(LID_CLASS),
    );
    deliver(&ethernet.b, &request);
    assert!(answers(&ethernet, &ethernet.b).is_empty());
    for (rig, has_smi) in [(ethernet, false), (managed(), true)] {
        let port = port(&rig.b);
        assert_eq!(port.caps.contains(PortCaps::SMI), has_smi);
        assert_eq!(port.state == PortState::Init, has_smi);
    }
}

// covers 8.69
#[test]
fn each_queue_pair_takes_its_own_mads_only() {
    let rig = managed();
    activate(&rig, &rig.b, 5);
    let node_info = get::<NodeInfo>(LID_CLASS);
    let counters = get::<ClassPortInfo>(PERF_CLASS);
    for (qpn, q_key, mad) in [
        (SMI_QP, 0, counters),
        (GSI_QP, GSI_Q_KEY, node_info),
        (GSI_QP, GSI_Q_KEY + 1, counters),
    ] {
        deliver(&rig.b, &carried(&rig, &rig.b, qpn, q_key, &mad));
        assert!(
            answers(&rig, &rig.b).is_empty(),
            "queue pair {qpn}, {q_key:#x}"
        );
    }
    let port = port(&rig.b);
    assert_eq!(port.qkey_viol_cntr, 1);
}

// covers 8.64
#[test]
fn frames_without_a_whole_mad_are_dropped() {
    let rig = managed();
    let mad = get::<NodeInfo>(LID_CLASS);
    let mut longer = mad.to_vec();
    longer.push(0);
    for payload in [&[][..], &mad[..MAD_LEN - 1], &longer] {
        deliver(&rig.b, &carried(&rig, &rig.b, SMI_QP, 0, payload));
    }
    let mut damaged = carried(&rig, &rig.b, SMI_QP, 0, &mad);
    damaged.damaged = true;
    deliver(&rig.b, &damaged);
    let mut no_datagram = carried(&rig, &rig.b, SMI_QP, 0, &mad);
    no_datagram.header.body = Body::Acknowledge;
    deliver(&rig.b, &no_datagram);
    assert!(answers(&rig, &rig.b).is_empty());
}

// covers 8.65
#[test]
fn a_request_that_no_agent_takes_is_refused_with_a_status() {
    const SUBNET_ADMINISTRATION: u8 = 3;
    let rig = managed();
    activate(&rig, &rig.b, 5);
    let mad = get::<ClassPortInfo>(SUBNET_ADMINISTRATION);
    deliver(&rig.b, &carried(&rig, &rig.b, GSI_QP, GSI_Q_KEY, &mad));
    let answers = answers(&rig, &rig.b);
    let answer = mad::decode(&answers[0].payload).unwrap().header;
    assert_eq!(answer.status(), status::METHOD_AND_ATTRIBUTE);
}

#[test]
fn a_port_that_is_not_active_takes_subnet_management_only() {
    let rig = managed();
    let counters = get::<ClassPortInfo>(PERF_CLASS);
    deliver(&rig.b, &carried(&rig, &rig.b, GSI_QP, GSI_Q_KEY, &counters));
    assert!(
        answers(&rig, &rig.b).is_empty(),
        "the port is in the state INIT"
    );
    ask(&rig, &rig.b, &get::<NodeInfo>(LID_CLASS));
}

#[test]
fn a_port_that_a_subnet_manager_disables_does_not_answer() {
    let rig = managed();
    let mut info = port_info(&rig, &rig.b);
    info.port_state = State::DOWN;
    info.physical_state = PhysicalState::DISABLED;
    for mad in [set(&info), get::<NodeInfo>(LID_CLASS)] {
        deliver(&rig.b, &carried(&rig, &rig.b, SMI_QP, 0, &mad));
        assert!(answers(&rig, &rig.b).is_empty());
    }
    let port = port(&rig.b);
    assert_eq!(port.state, PortState::Down);
}

// covers 6.20
#[test]
fn programs_see_each_step_of_a_subnet_manager() {
    let rig = managed();
    let before = port(&rig.b);
    assert_eq!((before.state, before.lid()), (PortState::Init, Some(0)));
    configure(&rig, &rig.b, |info| {
        (info.lid, info.lmc, info.sm_lid, info.sm_sl) = (8, 2, 1, 3);
        info.neighbor_mtu = Mtu::Mtu2048 as u8;
        info.gid_prefix = 0xfec0 << 48;
    });
    let configured = port(&rig.b);
    assert_eq!(configured.lid(), Some(8));
    let subnet = configured.subnet;
    assert_eq!((subnet.lmc, subnet.sm_lid, subnet.sm_sl), (2, 1, 3));
    assert_eq!(configured.gids[0].gid.0[..2], [0xfe, 0xc0]);
    assert_eq!(
        configured.active_mtu,
        Mtu::Mtu1024,
        "the link carries no more"
    );
    assert_eq!(
        rig.b.events(),
        [
            EventType::LidChange,
            EventType::SmChange,
            EventType::GidChange
        ]
    );
    configure(&rig, &rig.b, |info| info.port_state = State::ARMED);
    assert_eq!(port(&rig.b).state, PortState::Armed);
    assert_eq!(rig.b.events(), []);
    configure(&rig, &rig.b, |info| info.port_state = State::ACTIVE);
    assert_eq!(port(&rig.b).state, PortState::Active);
    assert_eq!(rig.b.events(), [EventType::PortActive]);
    configure(&rig, &rig.b, |info| info.client_reregister = true);
    assert_eq!(rig.b.events(), [EventType::ClientReregister]);
}

#[test]
fn programs_see_the_p_keys_of_the_subnet_manager() {
    let rig = managed();
    assert_eq!(port(&rig.b).pkeys[..2], [0xffff, 0]);
    let mut table = PKeyTable::default();
    table.p_keys[..2].copy_from_slice(&[0x7fff, 0x8001]);
    ask(&rig, &rig.b, &set(&table));
    assert_eq!(port(&rig.b).pkeys[..3], [0x7fff, 0x8001, 0]);
    assert_eq!(rig.b.events(), [EventType::PkeyChange]);
}

// covers 6.20
#[test]
fn a_subnet_manager_retrains_the_link() {
    let rig = managed();
    activate(&rig, &rig.b, 5);
    rig.b.events();
    configure(&rig, &rig.b, |info| info.port_state = State::DOWN);
    let retrained = port(&rig.b);
    assert_eq!(
        (retrained.state, retrained.phys_state, retrained.lid()),
        (PortState::Init, PhysState::LinkUp, Some(5))
    );
    assert_eq!(rig.b.events(), [EventType::PortErr]);
}

// covers 6.20
#[test]
fn the_port_follows_its_link() {
    let states = |rig: &Rig| {
        [PhysState::Disabled, PhysState::LinkUp].map(|state| {
            rig.b.engine.set_link_state(state);
            (port(&rig.b).state, rig.b.events())
        })
    };
    let rig = managed();
    activate(&rig, &rig.b, 5);
    rig.b.events();
    let down = (PortState::Down, vec![EventType::PortErr]);
    // A subnet manager has to find the port again.
    assert_eq!(states(&rig), [down.clone(), (PortState::Init, vec![])]);
    let ethernet = Rig::unconnected(Setup::default());
    let active = (PortState::Active, vec![EventType::PortActive]);
    assert_eq!(states(&ethernet), [down, active]);
}

/// Connected queue pairs of active ports with the LIDs 4 and 5.
pub(crate) fn connected() -> Rig {
    let rig = managed();
    activate(&rig, &rig.a, 4);
    activate(&rig, &rig.b, 5);
    rig.connect();
    rig
}

fn write(rig: &Rig) -> WcStatus {
    let data = rig.a.sge(0, 3000);
    rig.a
        .post(wr::Write::new(data, rig.b.remote(0)).signaled(1));
    rig.run();
    poll(&rig.a.cq)[0].status
}

// covers 6.21
#[test]
fn queue_pairs_reach_each_other_by_lid() {
    let rig = connected();
    let path = rig.a.path();
    assert_eq!(path.address, LinkAddress::Lid(4));
    rig.a.write(0, b"by LID");
    assert_eq!(write(&rig), WcStatus::Success);
    assert_eq!(rig.b.read(0, 6), b"by LID");
    configure(&rig, &rig.b, |info| info.lid = 6);
    assert_eq!(write(&rig), WcStatus::RetryExcErr, "no port has LID 5");
}

// covers 6.21
#[test]
fn a_service_level_has_packets_of_its_own_lane() {
    let rig = managed();
    activate(&rig, &rig.a, 4);
    let mtu_of = |sl| {
        let path = AddressVector { sl, ..rig.a.path() };
        let qp = rig.a.pd.create_qp(QpOptions::rc(&rig.a.cq)).wait().unwrap();
        connect(&qp, path, rig.a.qp.qp_num(), &rig.setup, 0, 0);
        qp.query().unwrap().attributes.path_mtu
    };
    assert_eq!(mtu_of(3), Some(Mtu::Mtu1024));
    // Lane 15 carries no data, and of the eight lanes that the port has, the subnet manager has chosen two.
    let mut table = SlToVlTable::default();
    (table.vls[3], table.vls[4], table.vls[5]) = (15, 1, 2);
    ask(&rig, &rig.a, &set(&table));
    configure(&rig, &rig.a, |info| info.operational_vls = 2);
    let mtus = [3, 4, 5].map(mtu_of);
    assert_eq!(
        mtus,
        [Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu256].map(Some),
        "of lanes 15, 1 and 2"
    );
}

#[test]
fn a_port_that_is_not_active_carries_no_data() {
    let rig = connected();
    configure(&rig, &rig.b, |info| info.port_state = State::DOWN);
    assert_eq!(write(&rig), WcStatus::RetryExcErr);
}

// covers 8.73
#[test]
fn the_counters_of_a_port_are_those_of_its_packets() {
    let rig = connected();
    let counters = || {
        let request = PortCounters {
            port_select: 1,
            ..PortCounters::default()
        };
        let mad = request_of_counters(&request);
        rig.wire.forget();
        deliver(&rig.b, &carried(&rig, &rig.b, GSI_QP, GSI_Q_KEY, &mad));
        let answers = answers(&rig, &rig.b);
        let answer = mad::decode(&answers[0].payload).unwrap();
        let perf: Perf = Octets(*answer.data).header();
        perf.data.header::<PortCounters>()
    };
    let before = counters();
    assert_eq!(write(&rig), WcStatus::Success);
    let after = counters();
    // A write of 3000 bytes in three packets of 24 bytes around the payload, of which the first has 16 more.
    assert_eq!(after.rcv_pkts - before.rcv_pkts, 3);
    assert_eq!(after.rcv_data - before.rcv_data, (3 * 24 + 16 + 3000) / 4);
    let sent = after.xmit_pkts - before.xmit_pkts;
    let acknowledges = sent - 1;
    assert!(acknowledges > 0);
    // The answer to the first request for the counters is a packet, too.
    let mad_words = 72;
    assert_eq!(
        after.xmit_data - before.xmit_data,
        mad_words + acknowledges * 28 / 4
    );
    let shown = rig.b.context.counters();
    let total = |name| shown.iter().find(|it| it.0 == name).unwrap().1;
    assert_eq!(total("port_rcv_packets"), u64::from(after.rcv_pkts));
}

fn request_of_counters(counters: &PortCounters) -> [u8; MAD_LEN] {
    request(PERF_CLASS, method::GET, counters)
}

#[test]
fn a_program_makes_a_device_with_a_managed_port() {
    let options = EmulatedOptions {
        managed: true,
        ..EmulatedOptions::default()
    };
    let device = emulated_ib::PROVIDER.0.make(&options).unwrap();
    let port = device.attributes().ports.swap_remove(0);
    assert_eq!((port.state, port.lid()), (PortState::Init, Some(0)));
    assert_eq!(port.caps, PortCaps::INFINIBAND);
    let refused = options.check(Contract::Stream);
    assert!(matches!(refused, Err(EmulatedError::Managed)), "iWARP");
    let on_wire = EmulatedOptions {
        at: Some(([127, 0, 0, 1], 4791).into()),
        ..options
    };
    let refused = on_wire.check(Contract::Datagram);
    assert!(matches!(refused, Err(EmulatedError::Managed)), "an address");
}

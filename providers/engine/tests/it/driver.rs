//! The contract of drivers, tested with the driver of a vendor in several forms: FEATURES 6.01 to 6.11 and 6.21.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;

use acme_fabric::agents::{LINK_STATE, SET_LINK};
use acme_fabric::{Body, Common, Form, Full, Header, Hooks, Partial, Plain, SHORT_PACKETS, form};
use bmme as _;
use polyverbs_engine::device::{Device as Engine, DeviceOptions};
use polyverbs_engine::emulation::{Emulation, EmulationPart, Gains};
use polyverbs_engine::fault::Fault;
use polyverbs_engine::link::{Deliver, Frame, Input, Link, OwnedFrame, SharedLink};
use polyverbs_engine::management::MAD_LEN;
use polyverbs_engine::network::{Member as _, Network, Progress};
use polyverbs_engine::operation::{Arrived, Octets, OperationEmulation, TargetMemory};
use polyverbs_engine::pin::pin;
use polyverbs_engine::qpn::QpnPool;
use polyverbs_engine::time::{Host, Time};
use verbs_api::objects::management::{AgentEvent, AgentRegistration, MadAddress};
use verbs_api::probe::Probe;
use verbs_api::provider::{DeviceOps, EventSink, Mutex, Operation};
use verbs_api::qp::{AddressVector, QpAttributes, QpState, QpType};
use verbs_api::*;
use verbs_api::{
    capability::{BaselineGaps, DeviceAttributes, FeatureSet, Grant, Mtu, PhysState, PortState},
    completion::{Notify, WcOpcode},
    event::{EventSubject, EventType},
    extension::{ExtensionDescriptor, ExtensionOperation, Extensions, FeatureInfo, Part, feature},
    ids::{Gid, LinkAddress, Psn},
    wr::{self, PostReason, ReceiveRequest, WorkRequest},
};

/// A clock that a test sets.
#[derive(Default)]
struct Clock {
    now: AtomicU64,
    /// No thread can be started that would run jobs.
    has_no_thread: AtomicBool,
}

impl Host for Clock {
    fn now(&self) -> Time {
        Time(self.now.load(Ordering::SeqCst))
    }

    fn wake_at(&self, _: Time) {}

    fn prepare(&self) -> Result<(), VerbError> {
        match self.has_no_thread.load(Ordering::SeqCst) {
            true => Err(VerbError::Resources("threads")),
            false => Ok(()),
        }
    }

    fn random(&self) -> u64 {
        0
    }
}

/// A link without delay, which keeps frames back while a test holds it.
#[derive(Default)]
struct Wire {
    state: Mutex<State>,
    /// Frames come from other processes.
    has_input: bool,
    is_polled: AtomicBool,
}

#[derive(Default)]
struct State {
    under_way: VecDeque<OwnedFrame<Header>>,
    held: Option<Vec<OwnedFrame<Header>>>,
    answers: usize,
}

impl Wire {
    fn with_input() -> Self {
        Self {
            has_input: true,
            ..Self::default()
        }
    }

    /// Returns how many answers have been sent since the last call.
    fn answers(&self) -> usize {
        std::mem::take(&mut self.state.lock().answers)
    }

    fn hold(&self) {
        self.state.lock().held = Some(Vec::new());
    }

    fn release(&self) {
        let mut state = self.state.lock();
        let held = state.held.take().unwrap_or_default();
        state.under_way.extend(held);
    }
}

impl Link<Header> for Wire {
    fn max_frame(&self) -> Option<usize> {
        None
    }

    fn send(&self, frame: Frame<'_, Header>, _: Time) {
        let state = &mut *self.state.lock();
        let frame = frame.to_owned();
        state.answers += usize::from(matches!(frame.header.body, Body::Answer(_)));
        match &mut state.held {
            Some(held) => held.push(frame),
            None => state.under_way.push_back(frame),
        }
    }

    fn input(&self) -> Option<&dyn Input> {
        self.has_input.then_some(self)
    }

    fn progress(&self, now: Time, network: &dyn Deliver<Header>) -> bool {
        let mut any = false;
        loop {
            let frame = self.state.lock().under_way.pop_front();
            let Some(frame) = frame else { return any };
            network.deliver(frame.as_frame(), now);
            any = true;
        }
    }

    fn next_due(&self) -> Option<Time> {
        None
    }
}

impl Input for Wire {
    fn polled(&self) {}

    fn give_way(&self) {}

    fn is_polled(&self) -> bool {
        self.is_polled.load(Ordering::SeqCst)
    }

    fn hand_back(&self) {
        self.is_polled.store(false, Ordering::SeqCst);
    }
}

/// Two queue pairs of two devices.
struct Rig<D: Form> {
    clock: Arc<Clock>,
    network: Arc<Network<Engine<D>>>,
    wire: Arc<Wire>,
    hooks: Arc<Hooks>,
    a: Side<D>,
    b: Side<D>,
}

struct Side<D: Form> {
    engine: Arc<Engine<D>>,
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    memory: Memory,
    mr: Mr,
}

form! {
    /// Numbers its queue pairs itself, and leaves it to the engine to free the numbers.
    Unbalanced:
    fn alloc_qpn(&self, _: &QpnPool) -> Option<u32> {
        self.0.take_number()
    }
}

form! {
    /// Sends its answers when nothing more arrives.
    Settling:
    fn settle(qp: &Qp<Self>, cx: &mut Cx<'_, Self>) {
        frames::settle(qp, cx);
    }
}

/// What a form holds, at this address.
fn common(address: LinkAddress, hooks: &Arc<Hooks>) -> Common {
    let mut common = Common::new("acme", address, (0x9000, 0xa000), Arc::clone(hooks));
    common.max_mtu = Mtu::Mtu512;
    common.attributes.gaps = BaselineGaps::empty();
    common.attributes.limits.max_qp = 64;
    common.attributes.ports[0].active_mtu = Mtu::Mtu2048;
    common
}

impl<D: Form> Rig<D> {
    fn new(framed: bool) -> Self {
        Self::on(Wire::default(), framed, |_| ())
    }

    fn on(wire: Wire, framed: bool, change: fn(&mut Common)) -> Self {
        let clock = Arc::new(Clock::default());
        let wire = Arc::new(wire);
        let link = framed.then(|| Arc::clone(&wire) as SharedLink<Header>);
        let network = Network::new(Arc::clone(&clock) as Arc<dyn Host>, link);
        let hooks = Arc::new(Hooks::default());
        // The two addresses belong to different link layers: one is a MAC, the other an IP.
        let addresses = [
            LinkAddress::Mac([2; 6]),
            LinkAddress::Ip([10, 0, 0, 2].into()),
        ];
        let [a, b] = addresses.map(|address| {
            let mut common = common(address, &hooks);
            change(&mut common);
            Side::new(&network, D::from(common))
        });
        let rig = Self {
            clock,
            network,
            wire,
            hooks,
            a,
            b,
        };
        connect(&rig.a.qp, &rig.b).unwrap();
        connect(&rig.b.qp, &rig.a).unwrap();
        rig
    }

    fn advance_to(&self, nanoseconds: u64) {
        self.clock.now.store(nanoseconds, Ordering::SeqCst);
        self.network.handle_timeout(Time(nanoseconds));
    }
}

impl<D: Form> Side<D> {
    fn new(network: &Arc<Network<Engine<D>>>, driver: D) -> Self {
        let engine = Engine::new(driver, network, DeviceOptions::default()).unwrap();
        let device = Device::of(Arc::clone(&engine) as Arc<dyn DeviceOps>);
        let context = device.open(&Requirements::new()).unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(256).wait().unwrap();
        let qp = pd
            .create_qp(QpOptions::rc(&cq).max_send_wr(16))
            .wait()
            .unwrap();
        let memory = Memory::zeroed(4096).unwrap();
        let mr = pd
            .register(&memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)
            .wait()
            .unwrap();
        Self {
            engine,
            context,
            pd,
            cq,
            qp,
            memory,
            mr,
        }
    }

    fn sge(&self, offset: usize, length: u32) -> Sge {
        self.mr.sge(offset, length).unwrap()
    }

    fn receive(&self, wr_id: u64, offset: usize, length: u32) {
        self.qp
            .post_receive(ReceiveRequest::new(wr_id, self.sge(offset, length)))
            .unwrap();
    }

    fn done(&self) -> Vec<(u64, WcStatus)> {
        let mut slots: [Completion; 256] = std::array::from_fn(|_| Completion::default());
        let done = self.cq.poll(&mut slots).unwrap();
        done.iter().map(|done| (done.wr_id, done.status)).collect()
    }

    fn events(&self) -> Vec<EventType> {
        std::iter::from_fn(|| self.context.poll_event())
            .map(|event| event.event_type())
            .collect()
    }

    fn state(&self) -> QpState {
        self.qp.query().unwrap().state
    }

    fn to_error(&self) {
        self.qp
            .modify(QpAttributes::new().qp_state(QpState::Err))
            .wait()
            .unwrap();
    }
}

fn connect<D: Form>(qp: &Qp, peer: &Side<D>) -> Result<(), VerbError> {
    connect_through(
        qp,
        peer,
        AddressVector::new(peer.engine.address(), Gid([1; 16]), 1),
    )
}

fn connect_through<D: Form>(qp: &Qp, peer: &Side<D>, path: AddressVector) -> Result<(), VerbError> {
    let init = QpAttributes::new()
        .qp_state(QpState::Init)
        .pkey_index(0)
        .port_num(1);
    let rtr = QpAttributes::new()
        .qp_state(QpState::Rtr)
        .ah_attr(path)
        .path_mtu(Mtu::Mtu4096)
        .dest_qp_num(peer.qp.qp_num())
        .rq_psn(Psn::new(0))
        .max_dest_rd_atomic(0)
        .min_rnr_timer(1);
    let rts = QpAttributes::new()
        .qp_state(QpState::Rts)
        .sq_psn(Psn::new(0))
        .timeout(0)
        .retry_cnt(0)
        .rnr_retry(7)
        .max_rd_atomic(0);
    for step in [init.qp_access_flags(Access::REMOTE_WRITE), rtr, rts] {
        qp.modify(step).wait()?;
    }
    Ok(())
}

fn ok<const N: usize>(ids: [u64; N]) -> [(u64, WcStatus); N] {
    ids.map(|id| (id, WcStatus::Success))
}

// Every mix of defaults and overrides must pass this.
fn suite<D: Form>() {
    for framed in [false, true] {
        let rig: Rig<D> = Rig::new(framed);
        let (a, b) = (&rig.a, &rig.b);
        assert_eq!((a.state(), b.state()), (QpState::Rts, QpState::Rts));
        a.memory.write(0, b"octets of the message").unwrap();
        b.receive(1, 100, 64);
        a.qp.post_one(wr::Send::new(a.sge(0, 21)).signaled(10))
            .unwrap();
        a.qp.post_one(wr::Write::new(a.sge(0, 6), b.mr.remote(200)).signaled(11))
            .unwrap();
        assert_eq!(
            (a.done(), b.done()),
            (ok([10, 11]).to_vec(), ok([1]).to_vec())
        );
        assert_eq!(b.memory.to_vec(100, 21).unwrap(), b"octets of the message");
        assert_eq!(b.memory.to_vec(200, 6).unwrap(), b"octets");
        let mut batch = Batch::with_capacity(4);
        for wr_id in 0..4 {
            batch.push(wr::Write::new(a.sge(0, 8), b.mr.remote(8 * wr_id)).signaled(wr_id));
        }
        a.qp.post(&mut batch).unwrap();
        assert_eq!(a.done(), ok([0, 1, 2, 3]));
        if !framed {
            // There is no receive yet: the request waits in the queue, and later requests wait after it.
            a.qp.post_one(wr::Send::new(a.sge(0, 21)).signaled(12))
                .unwrap();
            a.qp.post_one(wr::Write::new(a.sge(0, 8), b.mr.remote(0)).signaled(13))
                .unwrap();
            assert_eq!(a.done(), []);
            b.receive(2, 100, 64);
            assert_eq!(
                (a.done(), b.done()),
                (ok([12, 13]).to_vec(), ok([2]).to_vec())
            );
        }
        b.receive(3, 0, 64);
        let outside = RemoteAddress::new(b.mr.iova() + 4090, b.mr.rkey());
        a.qp.post_one(wr::Write::new(a.sge(0, 8), outside).signaled(14))
            .unwrap();
        a.qp.post_one(wr::Write::new(a.sge(0, 8), b.mr.remote(0)).signaled(15))
            .unwrap();
        let ended = [(14, WcStatus::RemAccessErr), (15, WcStatus::WrFlushErr)];
        assert_eq!(a.done(), ended);
        assert_eq!(b.done(), [(3, WcStatus::WrFlushErr)]);
        assert_eq!(b.events(), [EventType::QpAccessErr]);
        assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Err));
        let left = Arc::downgrade(&rig.a.engine);
        drop(rig);
        // Another test may read memory of this process for a moment longer.
        while left.strong_count() > 0 {
            thread::yield_now();
        }
    }
}

// covers 6.05 6.21
#[test]
fn drivers_of_any_mix_pass_the_same_suite() {
    suite::<Plain>();
    suite::<Partial>();
    suite::<Full>();
}

fn describe(change: impl Fn(&mut DeviceAttributes)) -> Result<(), VerbError> {
    let network = Network::new(Arc::new(Clock::default()), None);
    let address = LinkAddress::Lid(7);
    let make = |common| Engine::new(Plain::from(common), &network, DeviceOptions::default());
    let mut described = common(address, &Arc::default());
    change(&mut described.attributes);
    let made = make(described).map(drop);
    // The failed creation leaves nothing, so the address is free.
    assert!(network.device(address).is_none() && network.devices().is_empty());
    make(common(address, &Arc::default())).unwrap();
    made
}

struct Listener;

impl EventSink for Listener {
    fn event(&self, _: EventType, _: EventSubject) {}
}

#[test]
fn a_device_keeps_no_state_of_closed_contexts() {
    let network = Network::new(Arc::new(Clock::default()), None);
    let driver = Plain::from(common(LinkAddress::Lid(7), &Arc::default()));
    let device = Engine::new(driver, &network, DeviceOptions::default()).unwrap();
    let listeners = [(); 3].map(|()| Arc::new(Listener) as Arc<dyn EventSink>);
    let open = |sink| DeviceOps::open(&*device, &Grant::default(), Arc::clone(sink)).unwrap();
    let contexts = listeners.each_ref().map(open);
    drop(contexts);
    let kept = listeners.map(|sink| (Arc::strong_count(&sink), Arc::weak_count(&sink)));
    assert_eq!(kept, [(1, 0); 3]);
}

fn argument(error: Result<(), VerbError>) -> &'static str {
    match error {
        Err(VerbError::InvalidArgument { argument, .. }) => argument,
        other => panic!("{other:?}"),
    }
}

// covers 6.01 6.02
#[test]
fn a_description_that_lacks_a_part_registers_nothing() {
    describe(|_| ()).unwrap();
    assert_eq!(argument(describe(|all| all.name.clear())), "name");
    assert_eq!(argument(describe(|all| all.ports.clear())), "ports");
    assert_eq!(argument(describe(|all| all.ports[0].port = 0)), "ports");
    assert_eq!(argument(describe(|all| all.ports[0].gids.clear())), "ports");
    assert_eq!(
        argument(describe(|all| all.ports[0].pkeys.clear())),
        "ports"
    );
    assert_eq!(
        argument(describe(|all| all.limits.phys_port_cnt = 0)),
        "ports"
    );
    let two_kinds = Features::WINDOW_2A | Features::WINDOW_2B;
    assert!(describe(|all| all.features = two_kinds - Features::WINDOW_2B).is_ok());
}

// covers 6.03
/// [`Plain`] has only the parts without a default, so it shows that a driver needs no others.
#[test]
fn a_driver_without_any_optional_part_is_complete() {
    let rig: Rig<Plain> = Rig::new(false);
    let calls = [
        "alloc_qpn",
        "free_qpn",
        "path_mtu",
        "check_post",
        "check_path",
        "disconnect",
        "handle_mad",
        "set_link_state",
    ];
    assert!(calls.iter().all(|call| rig.hooks.count(call) == 0));
    assert_eq!(
        rig.a.qp.query().unwrap().attributes.path_mtu,
        Some(Mtu::Mtu2048),
        "the engine's own"
    );
    let next = rig.a.pd.create_qp(QpOptions::rc(&rig.a.cq)).wait().unwrap();
    let numbers = [&rig.a.qp, &next].map(|qp| qp.qp_num().value());
    assert_eq!(numbers, [0x11, 0x12], "the engine's own");
}

/// A management datagram for queue pair 0 of B, which wants B's link in this state.
fn wants_link(rig: &Rig<impl Form>, state: PhysState) -> OwnedFrame<Header> {
    let mut mad = vec![0; MAD_LEN];
    (mad[3], mad[LINK_STATE]) = (SET_LINK, state as u8);
    OwnedFrame {
        from: rig.a.engine.address(),
        to: rig.b.engine.address(),
        header: Header::mad(0, 0, 0),
        payload: mad,
        damaged: false,
    }
}

/// How the driver answers when nothing but the call that delivers a datagram runs.
fn deliver_mad<D: Form>(rig: &Rig<D>, state: PhysState) -> Vec<OwnedFrame<Header>> {
    let frame = wants_link(rig, state);
    rig.b.engine.handle_frame(frame.as_frame(), Time(0));
    rig.wire.state.lock().under_way.drain(..).collect()
}

fn state_of_port(side: &Side<impl Form>) -> PortState {
    side.context.query_port(1).unwrap().state
}

// covers 5.05 6.04 8.61
#[test]
fn agents_of_a_driver_answer_in_the_call_that_delivers() {
    let rig: Rig<Full> = Rig::new(true);
    let answers = deliver_mad(&rig, PhysState::Disabled);
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].to, rig.a.engine.address());
    assert_eq!(answers[0].payload[3], SET_LINK | 0x80);
    assert_eq!(rig.hooks.count("set_link_state"), 1);
    assert_eq!(state_of_port(&rig.b), PortState::Down);
    assert_eq!(rig.b.events(), [EventType::PortErr]);
    deliver_mad(&rig, PhysState::LinkUp);
    assert_eq!(state_of_port(&rig.b), PortState::Active);
    assert_eq!(rig.b.events(), [EventType::PortActive]);
}

// covers 6.03 8.62
#[test]
fn a_driver_without_agents_answers_no_datagram() {
    let rig: Rig<Plain> = Rig::new(true);
    assert!(deliver_mad(&rig, PhysState::Disabled).is_empty());
    assert_eq!(state_of_port(&rig.b), PortState::Active);
}

// covers 6.04 8.69
#[test]
fn the_driver_registers_the_agents_of_programs() {
    let registration = AgentRegistration::new(3, 2);
    let plain: Rig<Plain> = Rig::new(false);
    let refused = plain.a.context.register_agent(1, registration);
    let unsupported = VerbError::UnsupportedVerb("register_agent");
    assert_eq!(refused.err(), Some(unsupported));
    let rig: Rig<Full> = Rig::new(false);
    let agent = rig.a.context.register_agent(1, registration).unwrap();
    assert_eq!(rig.hooks.count("register_agent"), 1);
    let path = AddressVector::new(rig.b.engine.address(), Gid([1; 16]), 1);
    let from = MadAddress::general_services(path);
    let mad = [7; MAD_LEN];
    agent.send(&mad, &from, None).unwrap();
    assert_eq!(agent.poll_event(), Some(AgentEvent::Received { mad, from }));
    assert!(rig.a.context.register_agent(2, registration).is_err());
}

fn follows_its_link<D: Form>() -> usize {
    let rig: Rig<D> = Rig::new(false);
    for (link, state, event) in [
        (PhysState::Disabled, PortState::Down, EventType::PortErr),
        (PhysState::LinkUp, PortState::Active, EventType::PortActive),
    ] {
        rig.a.engine.set_link_state(link);
        assert_eq!(state_of_port(&rig.a), state);
        assert_eq!(rig.a.events(), [event]);
    }
    rig.hooks.count("set_link_state")
}

// covers 6.04 6.20
#[test]
fn the_driver_or_the_engine_brings_the_link_into_a_state() {
    assert_eq!(follows_its_link::<Plain>(), 0);
    assert_eq!(follows_its_link::<Partial>(), 0);
    assert_eq!(follows_its_link::<Full>(), 2);
}

// covers 6.04 6.22
#[test]
fn a_path_has_the_mtu_of_its_service_level() {
    fn of_level<D: Form>(sl: u8) -> Option<Mtu> {
        let rig: Rig<D> = Rig::new(false);
        let qp = rig.a.pd.create_qp(QpOptions::rc(&rig.a.cq)).wait().unwrap();
        let path = AddressVector {
            sl,
            ..AddressVector::new(rig.b.engine.address(), Gid([1; 16]), 1)
        };
        connect_through(&qp, &rig.b, path).unwrap();
        qp.query().unwrap().attributes.path_mtu
    }
    assert_eq!(of_level::<Plain>(0), of_level::<Plain>(SHORT_PACKETS));
    assert_eq!(of_level::<Full>(0), Some(Mtu::Mtu512));
    assert_eq!(of_level::<Full>(SHORT_PACKETS), Some(Mtu::Mtu256));
}

// covers 6.04
#[test]
fn counters_of_the_driver_are_next_to_those_of_the_engine() {
    fn shown<D: Form>() -> Option<u64> {
        let rig: Rig<D> = Rig::new(true);
        deliver_mad(&rig, PhysState::LinkUp);
        let counters = rig.b.context.counters();
        assert!(counters.iter().any(|(name, _)| *name == "sends"));
        let own = counters.iter().find(|(name, _)| *name == "acme_mads");
        own.map(|(_, value)| *value)
    }
    assert_eq!(shown::<Plain>(), None);
    assert_eq!(shown::<Partial>(), Some(0), "without agents");
    assert_eq!(shown::<Full>(), Some(1));
}

// covers 6.04
#[test]
fn an_override_replaces_the_default_and_no_number_leaks() {
    let rig: Rig<Full> = Rig::new(false);
    assert_eq!(
        rig.a.qp.query().unwrap().attributes.path_mtu,
        Some(Mtu::Mtu512)
    );
    assert!(rig.a.qp.qp_num().value() >= 0x9000);
    let busy = AddressVector {
        traffic_class: 1,
        ..AddressVector::new(rig.b.engine.address(), Gid([1; 16]), 1)
    };
    assert!(rig.a.pd.create_ah(busy).wait().is_err());
    let other = rig.a.pd.create_qp(QpOptions::rc(&rig.a.cq)).wait().unwrap();
    assert!(connect_through(&other, &rig.b, busy).is_err());
    drop(other);
    let before = rig.hooks.count("express");
    rig.a
        .qp
        .post_one(wr::Write::new(rig.a.sge(0, 8), rig.b.mr.remote(0)).signaled(1))
        .unwrap();
    assert_eq!(rig.hooks.count("express") - before, 1);
    balanced::<Full>();
    let hooks = &rig.hooks;
    drop(rig.a);
    assert_eq!(
        hooks.count("alloc_qpn"),
        hooks.count("free_qpn") + 1,
        "that of the other side"
    );
    balanced::<Unbalanced>();
    balanced::<Partial>();
    balanced::<Plain>();
}

// Creates as many queue pairs as the limit allows, repeatedly.
fn balanced<D: Form>() {
    let rig: Rig<D> = Rig::new(false);
    for _ in 0..3 {
        let make = || rig.a.pd.create_qp(QpOptions::rc(&rig.a.cq)).wait();
        let all: Vec<_> = (0..63).map(|_| make().unwrap()).collect();
        assert_eq!(make().err(), Some(VerbError::Resources("max_qp")));
        let mut numbers: Vec<_> = all.iter().map(|qp| qp.qp_num().value()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 63);
    }
}

// covers 6.06
#[test]
fn one_table_defines_the_operations() {
    let rig: Rig<Plain> = Rig::new(false);
    let service = |qp_type: QpType| qp_type.operations();
    assert!(service(QpType::Rc).is_all());
    let list: [(WorkRequest<'_>, Operations, WcOpcode); 14] = [
        (wr::Send::new(()).into(), Operations::SEND, WcOpcode::Send),
        (
            wr::SendWithImmediate::new((), [0; 4]).into(),
            Operations::SEND_WITH_IMM,
            WcOpcode::Send,
        ),
        (
            wr::SendWithInvalidate::new((), RKey::new(1)).into(),
            Operations::SEND_WITH_INV,
            WcOpcode::Send,
        ),
        (
            wr::Write::new((), RemoteAddress::default()).into(),
            Operations::WRITE,
            WcOpcode::RdmaWrite,
        ),
        (
            wr::WriteWithImmediate::new((), RemoteAddress::default(), [0; 4]).into(),
            Operations::WRITE_WITH_IMM,
            WcOpcode::RdmaWrite,
        ),
        (
            wr::Read::new((), RemoteAddress::default()).into(),
            Operations::READ,
            WcOpcode::RdmaRead,
        ),
        (
            wr::ReadWithInvalidate::new(Sge::default(), RemoteAddress::default()).into(),
            Operations::READ_WITH_INV,
            WcOpcode::RdmaRead,
        ),
        (
            wr::CompareSwap::new((), RemoteAddress::default(), 0, 0).into(),
            Operations::ATOMIC_CMP_AND_SWP,
            WcOpcode::CompSwap,
        ),
        (
            wr::FetchAdd::new((), RemoteAddress::default(), 0).into(),
            Operations::ATOMIC_FETCH_AND_ADD,
            WcOpcode::FetchAdd,
        ),
        (
            wr::AtomicWrite::new((), RemoteAddress::default()).into(),
            Operations::ATOMIC_WRITE,
            WcOpcode::AtomicWrite,
        ),
        (
            wr::Flush::new(RemoteAddress::default(), 0, Access::FLUSH_GLOBAL).into(),
            Operations::FLUSH,
            WcOpcode::Flush,
        ),
        (
            wr::FastRegister::default().into(),
            Operations::FAST_REGISTER,
            WcOpcode::FastRegister,
        ),
        (
            wr::LocalInvalidate::new(RKey::new(1)).into(),
            Operations::LOCAL_INV,
            WcOpcode::LocalInv,
        ),
        (
            wr::BindWindow::default().into(),
            Operations::BIND_MW,
            WcOpcode::BindMw,
        ),
    ];
    let mut all = Operations::empty();
    for (request, operation, opcode) in list {
        assert_eq!(
            (request.operation(), request.wc_opcode()),
            (operation, opcode)
        );
        all |= operation;
        // The queue pair was created for the baseline: other operations are refused, and take no slot.
        if !Operations::BASELINE.contains(operation) {
            let refused = rig.a.qp.post_one(request).unwrap_err();
            // The device lacks the features of these operations, and the error reports that.
            let missing = operation.missing_features(Features::empty());
            assert_eq!(
                refused.reason,
                PostReason::OperationNeeds { operation, missing }
            );
        }
        for qp_type in [QpType::Uc, QpType::Ud] {
            let options = match qp_type {
                QpType::Uc => QpOptions::uc(&rig.a.cq),
                _ => QpOptions::ud(&rig.a.cq),
            };
            let made = rig.a.pd.create_qp(options.only(operation)).wait();
            let lacks = operation.missing_features(Features::empty());
            let legal = service(qp_type).contains(operation) && lacks.is_empty();
            assert_eq!(made.is_ok(), legal, "{qp_type:?} {operation:?}");
        }
    }
    assert!(all.is_all(), "every bit has its request");
    assert_eq!(Operations::from_bits(1 << 31), None);
    assert_eq!(WcOpcode::from_code(0x6e).extension(), None);
    fill(&rig, rig.a.qp.cap().max_send_wr);
}

// Checks that the queue has exactly this much room: a send without a receive blocks the following requests.
fn fill<D: Form>(rig: &Rig<D>, room: u32) {
    for wr_id in 0..room {
        rig.a
            .qp
            .post_one(wr::Send::new(rig.a.sge(0, 8)).signaled(wr_id.into()))
            .unwrap();
    }
    let refused = rig
        .a
        .qp
        .post_one(wr::Send::new(rig.a.sge(0, 8)))
        .unwrap_err();
    assert_eq!(refused.reason, PostReason::QueueFull { max: room });
}

// covers 6.07
#[test]
fn a_request_that_the_driver_refuses_uses_no_slot() {
    let rig: Rig<Partial> = Rig::new(false);
    rig.hooks.refuses.store(true, Ordering::SeqCst);
    let write = |wr_id| wr::Write::new(rig.a.sge(0, 8), rig.b.mr.remote(0)).signaled(wr_id);
    let refused = rig.a.qp.post_one(write(1)).unwrap_err();
    assert_eq!(
        refused.reason,
        PostReason::InlineNotAllowed,
        "the driver's own reason"
    );
    let mut batch = Batch::with_capacity(2);
    batch.push(write(2));
    batch.push(write(3));
    let error = rig.a.qp.post(&mut batch).unwrap_err();
    assert_eq!((error.index, batch.len()), (0, 2));
    assert_eq!((rig.hooks.count("execute"), rig.a.done()), (0, vec![]));
    rig.hooks.refuses.store(false, Ordering::SeqCst);
    rig.a.qp.post(&mut batch).unwrap();
    assert_eq!(rig.a.done(), ok([2, 3]));
    fill(&rig, rig.a.qp.cap().max_send_wr);
    // The driver also refuses a request that would only be queued.
    rig.hooks.refuses.store(true, Ordering::SeqCst);
    assert_eq!(
        rig.a.qp.post_one(write(9)).unwrap_err().reason,
        PostReason::InlineNotAllowed
    );
}

// covers 6.08
#[test]
fn the_poster_sends_a_request_only_on_an_idle_queue() {
    let rig: Rig<Plain> = Rig::new(false);
    let (a, b) = (&rig.a, &rig.b);
    rig.hooks.take();
    a.qp.post_one(wr::Write::new(a.sge(0, 8), b.mr.remote(0)).signaled(1))
        .unwrap();
    assert_eq!(
        rig.hooks.take(),
        ["execute"],
        "tried once, and not scheduled"
    );
    assert_eq!(a.done(), ok([1]));
    a.qp.post_one(wr::Send::new(a.sge(0, 8)).signaled(2))
        .unwrap();
    rig.hooks.take();
    a.qp.post_one(wr::Write::new(a.sge(0, 8), b.mr.remote(0)).signaled(3))
        .unwrap();
    // The engine does not try the new request, and the driver does not try the one that waits: its peer still has no receive.
    assert_eq!(rig.hooks.take(), ["pump"]);
    assert_eq!(a.done(), []);
    // Handlers run with no lock held, so they can post to the queue that called them.
    let (qp, sge, to) = (a.qp.clone(), a.sge(0, 8), b.mr.remote(0));
    a.cq.on_completion(move |_| {
        qp.post_one(wr::Write::new(sge, to).signaled(4)).unwrap();
    });
    a.cq.arm(Notify::Next).unwrap();
    b.receive(1, 100, 64);
    assert_eq!(a.done(), ok([2, 3, 4]));
}

// covers 6.09
#[test]
fn frames_sent_during_another_threads_delivery_are_delivered() {
    const EACH: u64 = 50_000;
    let rig: Rig<Plain> = Rig::new(true);
    let (a, b) = (&rig.a, &rig.b);
    // No thread drives the network later, so a lost wake-up would stay lost.
    thread::scope(|scope| {
        for (from, to) in [(a, b), (b, a)] {
            scope.spawn(move || {
                let mut next = 0;
                for wr_id in 0..EACH {
                    let write = || wr::Write::new(from.sge(0, 8), to.mr.remote(64)).signaled(wr_id);
                    while from.qp.post_one(write()).is_err() {
                        // The other thread delivers the frames.
                        thread::yield_now();
                        next = in_order(from, next);
                    }
                    next = in_order(from, next);
                }
                while next < EACH {
                    thread::yield_now();
                    next = in_order(from, next);
                }
            });
        }
    });
}

/// Two devices whose answers wait until nothing more arrives, while pollers poll frequently.
fn settling() -> Rig<Settling> {
    let rig: Rig<Settling> = Rig::on(Wire::with_input(), true, Common::keep_answers);
    rig.wire.is_polled.store(true, Ordering::SeqCst);
    rig
}

impl Rig<Settling> {
    // A sends messages, and B polls them without answering.
    fn deliver<const N: usize>(&self, ids: [u64; N]) {
        for wr_id in ids {
            self.b.receive(wr_id, 0, 64);
            let send = wr::Send::new(self.a.sge(0, 8)).signaled(wr_id);
            self.a.qp.post_one(send).unwrap();
        }
        assert_eq!(self.b.done(), ok(ids));
        assert_eq!(self.wire.answers(), 0);
    }
}

#[test]
fn answers_leave_with_the_next_poll_that_finds_nothing() {
    let rig = settling();
    rig.deliver([0, 1, 2]);
    assert_eq!(rig.b.done(), []);
    assert_eq!(rig.wire.answers(), 3);
    assert_eq!(rig.a.done(), ok([0, 1, 2]));
}

#[test]
fn answers_wait_for_more_empty_polls_after_a_send() {
    let rig = settling();
    rig.deliver([0, 1, 2]);
    rig.a.receive(9, 0, 64);
    rig.b.qp.post_one(wr::Send::new(rig.b.sge(0, 8))).unwrap();
    for _ in 0..8 {
        assert_eq!(rig.b.done(), []);
    }
    assert_eq!(rig.wire.answers(), 0);
    for _ in 0..16 {
        assert_eq!(rig.b.done(), []);
    }
    // The answer includes that to the last message.
    assert_eq!(rig.wire.answers(), 4);
    assert_eq!(rig.a.done(), ok([9, 0, 1, 2]));
    // The wait applies only once.
    rig.deliver([3]);
    assert_eq!(rig.b.done(), []);
    assert_eq!(rig.wire.answers(), 1);
}

#[test]
fn without_pollers_answers_leave_before_progress_returns() {
    let rig = settling();
    rig.b.receive(1, 0, 64);
    rig.a
        .qp
        .post_one(wr::Send::new(rig.a.sge(0, 8)).signaled(1))
        .unwrap();
    assert_eq!(rig.wire.answers(), 0);
    assert!(rig.network.progress());
    assert_eq!(rig.wire.answers(), 1);
    // The answer was delivered in the same call, too.
    assert_eq!(rig.a.done(), ok([1]));
    assert_eq!(rig.b.done(), ok([1]));
}

#[test]
fn a_look_by_the_links_thread_delivers_without_settling() {
    let rig = settling();
    rig.b.receive(1, 0, 64);
    let send = wr::Send::new(rig.a.sge(0, 8)).signaled(1);
    rig.a.qp.post_one(send).unwrap();
    assert!(rig.network.look());
    assert_eq!(rig.wire.answers(), 0);
    assert!(rig.network.progress());
    assert_eq!(rig.wire.answers(), 1);
    assert_eq!(rig.b.done(), ok([1]));
}

/// A link on which something arrives with each poll, and another thread leaves a note meanwhile, a million times.
struct Endless {
    network: OnceLock<Weak<dyn Progress>>,
    looks: AtomicU64,
    /// Sending leaves an event to deliver.
    tells: AtomicBool,
    wakes: AtomicU64,
    input: Wire,
}

const ENDLESS: u64 = 1_000_000;

impl Link<Header> for Endless {
    fn max_frame(&self) -> Option<usize> {
        None
    }

    fn send(&self, _: Frame<'_, Header>, _: Time) {}

    fn flush(&self) -> bool {
        self.tells.load(Ordering::SeqCst)
    }

    fn progress(&self, _: Time, _: &dyn Deliver<Header>) -> bool {
        let goes_on = self.looks.fetch_add(1, Ordering::SeqCst) < ENDLESS;
        if goes_on && let Some(network) = self.network.get().and_then(Weak::upgrade) {
            assert!(!network.progress());
        }
        goes_on
    }

    fn next_due(&self) -> Option<Time> {
        None
    }

    fn input(&self) -> Option<&dyn Input> {
        Some(&self.input)
    }
}

impl Host for Endless {
    fn now(&self) -> Time {
        Time(7)
    }

    fn wake_at(&self, at: Time) {
        assert_eq!(at, Time(7));
        self.wakes.fetch_add(1, Ordering::SeqCst);
    }

    fn random(&self) -> u64 {
        0
    }
}

#[test]
fn a_call_ends_although_frames_and_notes_never_end() {
    let wire = Arc::new(Endless {
        network: OnceLock::new(),
        looks: AtomicU64::new(0),
        tells: AtomicBool::new(false),
        wakes: AtomicU64::new(0),
        input: Wire::default(),
    });
    let link = Some(Arc::clone(&wire) as SharedLink<Header>);
    let network: Arc<Network<Engine<Plain>>> =
        Network::new(Arc::clone(&wire) as Arc<dyn Host>, link);
    // No other thread polls: the next poll finds the frames that one call leaves.
    assert!(network.progress());
    assert!(Progress::look(&*network));
    let wakes = || wire.wakes.swap(0, Ordering::SeqCst);
    assert_eq!(wakes(), 0);
    // No other thread polls for the result of sending, or after a note, so another thread does it soon.
    wire.tells.store(true, Ordering::SeqCst);
    assert!(network.progress());
    assert_eq!(wakes(), 1);
    wire.tells.store(false, Ordering::SeqCst);
    let weak = Arc::downgrade(&network);
    assert!(wire.network.set(weak).is_ok());
    assert!(network.progress());
    assert_eq!(wakes(), 1);
    assert!(Progress::look(&*network));
    assert_eq!(wakes(), 1);
    let looks = wire.looks.load(Ordering::SeqCst);
    assert!(looks < 1000, "{looks}");
}

#[test]
fn a_queue_pair_is_refused_if_no_thread_can_run_its_jobs() {
    let rig = Rig::<Plain>::new(true);
    let create = || rig.a.pd.create_qp(QpOptions::rc(&rig.a.cq)).wait();
    rig.clock.has_no_thread.store(true, Ordering::SeqCst);
    let refused = create().unwrap_err();
    assert!(
        matches!(refused, VerbError::Resources("threads")),
        "{refused}"
    );
    rig.clock.has_no_thread.store(false, Ordering::SeqCst);
    create().unwrap();
}

#[test]
fn answers_leave_with_a_poll_that_may_be_the_last() {
    let rig = settling();
    rig.wire.is_polled.store(false, Ordering::SeqCst);
    rig.b.receive(1, 0, 64);
    rig.a.qp.post_one(wr::Send::new(rig.a.sge(0, 8))).unwrap();
    assert_eq!(rig.b.done(), ok([1]));
    assert_eq!(rig.wire.answers(), 1);
}

#[test]
fn answers_leave_before_a_poller_sleeps() {
    let rig = settling();
    rig.deliver([1]);
    rig.b.cq.arm(Notify::Next).unwrap();
    assert_eq!(rig.wire.answers(), 1);
    assert!(!rig.wire.is_polled.load(Ordering::SeqCst));
}

#[test]
fn answers_leave_with_a_control_verb() {
    let rig = settling();
    let (a, b) = (&rig.a, &rig.b);
    // Programs create the objects of the next connection before they poll the last one again.
    let verbs: [fn(&Side<Settling>); 5] = [
        |side| drop(side.context.alloc_pd().wait().unwrap()),
        |side| drop(side.context.create_cq(1).wait().unwrap()),
        |side| {
            drop(
                side.pd
                    .register(&side.memory, Access::empty())
                    .wait()
                    .unwrap(),
            )
        },
        |side| drop(side.pd.create_qp(QpOptions::rc(&side.cq)).wait().unwrap()),
        Side::to_error,
    ];
    for verb in verbs {
        rig.deliver([2]);
        verb(b);
        assert_eq!(rig.wire.answers(), 1);
        assert_eq!(a.done(), ok([2]));
    }
}

#[test]
fn answers_leave_before_their_queue_pair_is_destroyed() {
    let mut rig = settling();
    let options = QpOptions::rc(&rig.b.cq);
    let other = rig.b.pd.create_qp(options).wait().unwrap();
    rig.deliver([1]);
    drop(std::mem::replace(&mut rig.b.qp, other));
    assert_eq!(rig.wire.answers(), 1);
    assert_eq!(rig.a.done(), ok([1]));
}

fn in_order<D: Form>(side: &Side<D>, mut next: u64) -> u64 {
    for (wr_id, status) in side.done() {
        assert_eq!((wr_id, status), (next, WcStatus::Success));
        next += 1;
    }
    next
}

// covers 6.10
#[test]
fn a_queue_pair_is_flushed_while_its_frames_are_out() {
    let rig: Rig<Full> = Rig::new(true);
    let (a, b) = (&rig.a, &rig.b);
    rig.wire.hold();
    for wr_id in 0..3 {
        a.qp.post_one(wr::Write::new(a.sge(0, 8), b.mr.remote(0)).signaled(wr_id))
            .unwrap();
    }
    assert_eq!(a.done(), []);
    rig.hooks.take();
    // The flush waits for no frame, and holds no lock for one.
    a.to_error();
    let flushed: Vec<_> = (0..3).map(|wr_id| (wr_id, WcStatus::WrFlushErr)).collect();
    assert_eq!(a.done(), flushed);
    assert!(
        rig.hooks.take().contains(&"disconnect"),
        "the driver was notified"
    );
    // Frames that return find no request.
    rig.wire.release();
    rig.network.progress();
    assert_eq!((a.done(), a.state()), (vec![], QpState::Err));
}

#[test]
fn verbs_that_remove_memory_wait_for_pins_that_may_use_it() {
    let rig: Rig<Plain> = Rig::new(false);
    let Side { pd, mr, .. } = &rig.a;
    let other = pd.register(Memory::zeroed(64).unwrap(), Access::LOCAL_WRITE);
    let other = other.wait().unwrap();
    let pin = pin();
    let change =
        mr.rereg(verbs_api::memory::MrReregister::new().memory(Memory::zeroed(64).unwrap()));
    let end = other.deregister();
    assert!(!change.is_done() && !end.is_done());
    drop(pin);
    change.wait().unwrap();
    end.wait().unwrap();
}

// covers 6.10
#[test]
fn the_driver_sees_a_failure_before_the_flush() {
    let rig: Rig<Full> = Rig::new(false);
    let (a, b) = (&rig.a, &rig.b);
    a.qp.post_one(wr::Send::new(a.sge(0, 100)).signaled(1))
        .unwrap();
    a.qp.post_one(wr::Write::new(a.sge(0, 8), b.mr.remote(0)).signaled(2))
        .unwrap();
    rig.hooks.take();
    // The receive is too short for the message that waits.
    b.receive(1, 0, 8);
    assert_eq!(
        a.done(),
        [(1, WcStatus::RemInvReqErr), (2, WcStatus::WrFlushErr)]
    );
    let order = rig.hooks.take();
    let place = |call| order.iter().position(|noted| *noted == call).unwrap();
    assert!(
        place("execute") < place("before_flush") && place("before_flush") < place("disconnect")
    );
    assert_eq!(
        order.iter().filter(|call| **call == "before_flush").count(),
        1
    );
}

// covers 6.11
#[test]
fn entering_the_error_state_twice_has_no_effect() {
    let rig: Rig<Plain> = Rig::new(false);
    let (a, b) = (&rig.a, &rig.b);
    // A queue pair is called at the time that it requested: it tries its message again, and the peer still has no receive.
    a.qp.post_one(wr::Send::new(a.sge(0, 8)).signaled(1))
        .unwrap();
    rig.advance_to(1_000_000_000);
    assert_eq!(rig.hooks.count("handle_timeout"), 1);
    a.receive(2, 0, 8);
    a.to_error();
    a.to_error();
    let flushed = [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(a.done(), flushed);
    // Neither the receive for which it waited nor the time that it requested has an effect on the failed queue pair.
    b.receive(3, 0, 8);
    rig.advance_to(2_000_000_000);
    assert_eq!(rig.hooks.count("handle_timeout"), 1);
    assert_eq!((a.done(), b.done()), (vec![], vec![]));
    assert_eq!((a.events(), b.events()), (vec![], vec![]));
    a.receive(4, 0, 8);
    assert_eq!(a.done(), [(4, WcStatus::WrFlushErr)]);
    // A fault of the peer that occurs twice is reported once.
    let outside = RemoteAddress::new(0, RKey::new(0xff00));
    let other = rig.b.pd.create_qp(QpOptions::rc(&b.cq)).wait().unwrap();
    connect(&other, a).unwrap();
    let _ = other.post_one(wr::Write::new(b.sge(0, 8), outside));
    assert_eq!(a.events(), []);
}

#[test]
fn a_time_that_an_earlier_one_has_replaced_causes_no_call() {
    let rig: Rig<Plain> = Rig::new(false);
    let qp = rig.a.engine.qp(rig.a.qp.qp_num().value()).unwrap();
    let wake_at = |at| qp.wake_at(&mut qp.requester(), Time(at));
    for at in [300, 200, 100] {
        wake_at(at);
    }
    rig.advance_to(100);
    assert_eq!(rig.hooks.count("handle_timeout"), 1);
    // The driver requests a time again that was replaced: it is called once.
    wake_at(200);
    rig.advance_to(200);
    assert_eq!(rig.hooks.count("handle_timeout"), 2);
    wake_at(400);
    rig.advance_to(300);
    assert_eq!(rig.hooks.count("handle_timeout"), 2);
    rig.advance_to(400);
    assert_eq!(rig.hooks.count("handle_timeout"), 3);
}

bitflags::bitflags! {
    #[derive(Clone, Copy)]
    struct Halves: u64 {
        const WHOLE = 1;
        const HIDDEN = 1 << 1;
    }
}

impl FeatureSet for Halves {
    const SET: &'static str = "halves";
}

const WHOLE: FeatureInfo = feature!(Halves::WHOLE, "for tests");

static HALVE: ExtensionOperation = ExtensionOperation::new("halves", "HALVE", 1, &WHOLE);

/// An emulation with an operation, or a gain, that the descriptor does not describe.
struct Untold {
    operations: &'static [&'static dyn OperationEmulation],
    own: u64,
}

impl Emulation for Untold {
    fn gains(&self, _: &DeviceAttributes) -> Gains {
        Gains {
            own: self.own,
            ..Gains::default()
        }
    }

    fn operations(&self) -> &'static [&'static dyn OperationEmulation] {
        self.operations
    }
}

impl OperationEmulation for Untold {
    fn operation(&self) -> &'static ExtensionOperation {
        &HALVE
    }

    fn respond(&self, _: &Arrived<'_>, _: &TargetMemory<'_>, _: &mut Octets) -> Result<(), Fault> {
        Ok(())
    }
}

static NOTHING: Untold = Untold {
    operations: &[],
    own: 1,
};
static OPERATES: Untold = Untold {
    operations: &[&NOTHING],
    own: 1,
};
static HIDES: Untold = Untold {
    operations: &[],
    own: 3,
};

// covers 1.17
#[test]
fn an_emulation_and_its_extension_list_the_same_operations() {
    const PROBES: &[Probe] = &[Probe::new(
        &WHOLE,
        "halves.whole",
        "1",
        "it is there",
        |_| Ok(()),
    )];
    let halves = |part: &'static dyn Part| {
        let parts: &'static [&'static dyn Part] = Box::leak(Box::new([part]));
        let halves = ExtensionDescriptor::new("halves", "for tests");
        halves.features(&[WHOLE]).probes(PROBES).parts(parts)
    };
    let operations = || -> &'static [&'static ExtensionOperation] { vec![&HALVE].leak() };
    let add = |descriptor| Extensions::new().add(Box::leak(Box::new(descriptor)));
    let error = |descriptor| add(descriptor).unwrap_err().to_string();

    static WITHOUT: EmulationPart = EmulationPart(&NOTHING);
    assert_eq!(
        error(halves(&WITHOUT).operations(operations())),
        "extension halves lacks an emulation of HALVE (of polyverbs-engine)"
    );
    static WITH: EmulationPart = EmulationPart(&OPERATES);
    assert_eq!(
        error(halves(&WITH)),
        "extension halves lacks a description of HALVE (of polyverbs-engine)"
    );
    add(halves(&WITH).operations(operations())).unwrap();

    // Undescribed bits are detected only when a device is created.
    static HIDING: EmulationPart = EmulationPart(&HIDES);
    let mut extensions = Extensions::new();
    extensions
        .add(Box::leak(Box::new(halves(&HIDING))))
        .unwrap();
    let network = Network::<Engine<Plain>>::new(Arc::new(Clock::default()), None);
    let options = DeviceOptions {
        extensions: Some(extensions),
        ..DeviceOptions::default()
    };
    let driver = Plain::from(common(LinkAddress::InProcess(1), &Arc::default()));
    let refused = Engine::new(driver, &network, options).err().unwrap();
    let refused = refused.to_string();
    assert!(
        refused.contains("the emulation of halves gains bits 0x2"),
        "{refused}"
    );
    assert!(network.device(LinkAddress::InProcess(1)).is_none());
}

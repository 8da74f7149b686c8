//! Two devices in virtual time, connected by a link on which a test can watch every frame, drop, duplicate and hold frames,
//! and inject frames of its own.
#![allow(dead_code, unreachable_pub)]

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use bmme as _;
use emulated_ib::InfiniBand;
use emulated_ib::header::{Aeth, Body, Header, Nak, Syndrome, SyndromeKind};
use emulated_ib::subnet::{Subnet, SubnetLink, SubnetPort};
use polyverbs_engine::device::{Device as Engine, DeviceOptions};
use polyverbs_engine::link::{Deliver, Exchange, Frame, Input, Link, OwnedFrame, SharedLink};
use polyverbs_engine::network::Network;
use polyverbs_engine::time::Time;
use polyverbs_io::sim::Simulation;
use verbs_api::provider::Mutex;
use verbs_api::qp::{AddressVector, QpAttributes, QpState, QpType};
use verbs_api::*;
use verbs_api::{
    capability::Mtu,
    event::EventType,
    ids::{Guid, LinkAddress, Psn, Qpn},
    wr::{ReceiveRequest, WorkRequest},
};

pub type OwnFrame = OwnedFrame<Header>;

/// The fate of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    Drop,
    Twice,
    /// The frame is kept until [`Rig::release`].
    Hold,
    /// The system refuses to send the frame, with this error number.
    Refuse(i32),
}

type Rule = Box<dyn FnMut(&OwnFrame) -> Fate + std::marker::Send>;

#[derive(Default)]
struct State {
    under_way: VecDeque<OwnFrame>,
    held: Vec<OwnFrame>,
    log: Vec<(Time, OwnFrame)>,
    rule: Option<Rule>,
    exchange: Option<Exchange>,
    answered: usize,
    crowded: Option<LinkAddress>,
}

/// A link without delay that follows the test's rules.
pub struct Wire {
    mtu: Option<usize>,
    joined: Option<usize>,
    is_polled: bool,
    state: Mutex<State>,
}

impl Wire {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Sets the rule that decides the fate of each frame from now on.
    pub fn rule(&self, rule: impl FnMut(&OwnFrame) -> Fate + std::marker::Send + 'static) {
        self.state().rule = Some(Box::new(rule));
    }

    /// Lets every frame pass from now on.
    pub fn pass(&self) {
        self.state().rule = None;
    }

    /// Makes the link report this exchange, as if frames went through shared memory.
    pub fn set_exchange(&self, exchange: Exchange) {
        self.state().exchange = Some(exchange);
    }

    /// Makes the link report from now on that frames to this address, and to no other, wait for room in shared memory.
    pub fn set_crowded(&self, to: Option<LinkAddress>) {
        self.state().crowded = to;
    }

    /// Returns how many frames the devices had sent when they last reported that they had answered all.
    pub fn answered(&self) -> usize {
        self.state().answered
    }

    /// Returns the frames that the devices have sent so far.
    pub fn log(&self) -> Vec<OwnFrame> {
        self.state()
            .log
            .iter()
            .map(|(_, frame)| frame.clone())
            .collect()
    }

    /// Returns the frames that the devices have sent so far, and when each was sent.
    pub fn times(&self) -> Vec<(Time, OwnFrame)> {
        self.state().log.clone()
    }

    pub fn forget(&self) {
        self.state().log.clear();
    }

    pub fn inject(&self, frame: OwnFrame) {
        self.state().under_way.push_back(frame);
    }
}

impl Link<Header> for Wire {
    fn max_frame(&self) -> Option<usize> {
        self.mtu
    }

    fn max_joined(&self, _to: LinkAddress, _qpn: u32) -> Option<usize> {
        self.joined
    }

    fn exchange(&self, _to: LinkAddress, _qpn: u32) -> Option<Exchange> {
        self.state().exchange
    }

    fn is_crowded(&self, to: LinkAddress, _qpn: u32) -> bool {
        self.state().crowded == Some(to)
    }

    fn all_answered(&self) {
        let mut state = self.state();
        state.answered = state.log.len();
    }

    fn send(&self, frame: Frame<'_, Header>, now: Time) {
        let mut frame = frame.to_owned();
        frame.header.joined |= self.joined.is_some();
        assert!(
            self.joined
                .or(self.mtu)
                .is_none_or(|mtu| frame.payload.len() <= mtu),
            "{frame:?} is longer than the link's frames"
        );
        let mut state = self.state();
        state.log.push((now, frame.clone()));
        let fate = state.rule.as_mut().map_or(Fate::Pass, |rule| rule(&frame));
        match fate {
            Fate::Pass => state.under_way.push_back(frame),
            Fate::Drop => {}
            Fate::Twice => state.under_way.extend([frame.clone(), frame]),
            Fate::Hold => state.held.push(frame),
            Fate::Refuse(errno) => {
                let (qpn, body) = (frame.header.src_qp, Body::Refused(errno));
                let (from, to) = (frame.to, frame.from);
                state.under_way.push_back(OwnFrame {
                    from,
                    to,
                    header: Header::new(QpType::Rc, Header::UNKNOWN_QP, qpn, Psn::default(), body),
                    payload: Vec::new(),
                    damaged: false,
                });
            }
        }
    }

    fn progress(&self, now: Time, network: &dyn Deliver<Header>) -> bool {
        let count = self.state().under_way.len();
        for _ in 0..count {
            let Some(frame) = self.state().under_way.pop_front() else {
                break;
            };
            network.deliver(frame.as_frame(), now);
        }
        count > 0
    }

    fn next_due(&self) -> Option<Time> {
        (!self.state().under_way.is_empty()).then_some(Time(0))
    }

    fn input(&self) -> Option<&dyn Input> {
        self.is_polled.then_some(self)
    }
}

impl Input for Wire {
    fn polled(&self) {}

    fn give_way(&self) {}

    fn is_polled(&self) -> bool {
        true
    }

    fn hand_back(&self) {}
}

/// How the two queue pairs are created and connected.
#[derive(Clone, Copy)]
pub struct Setup {
    pub qp_type: QpType,
    /// The path MTU; `None` if a message is one frame.
    pub mtu: Option<Mtu>,
    pub access: Access,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub a_psn: u32,
    pub b_psn: u32,
    pub srq: Option<u32>,
    pub max_recv_wr: u32,
    pub max_recv_sge: u32,
    pub cqe: u32,
    pub sq_sig_all: bool,
    /// There is no link: the devices reach each other directly.
    pub direct: bool,
    /// Frames arrive when a thread polls, which it does frequently.
    pub polled: bool,
    /// The link carries several packets in one frame of at most this many bytes.
    pub joined: Option<usize>,
    pub windows_2a: bool,
    /// The ports are those of an InfiniBand network, which a subnet manager configures.
    pub managed: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            mtu: Some(Mtu::Mtu1024),
            access: ALL_REMOTE,
            timeout: 10,
            retry_cnt: 7,
            rnr_retry: 6,
            min_rnr_timer: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            a_psn: 1000,
            b_psn: 2000,
            srq: None,
            max_recv_wr: 64,
            max_recv_sge: 4,
            cqe: 256,
            sq_sig_all: false,
            direct: false,
            polled: false,
            joined: None,
            windows_2a: false,
            managed: false,
        }
    }
}

pub const ALL_REMOTE: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

pub const MEMORY: usize = 1 << 18;

/// One of the two devices and its objects.
pub struct Side {
    pub engine: Arc<Engine<InfiniBand>>,
    pub context: Context,
    pub pd: Pd,
    pub cq: Cq,
    pub srq: Option<Srq>,
    pub qp: Qp,
    pub memory: Memory,
    pub mr: Mr,
}

/// Both sides, the link and the clock.
pub struct Rig {
    pub simulation: Simulation,
    pub network: Arc<Network<Engine<InfiniBand>>>,
    pub wire: Arc<Wire>,
    pub setup: Setup,
    pub a: Side,
    pub b: Side,
}

impl Rig {
    pub fn new(setup: Setup) -> Self {
        let rig = Self::unconnected(setup);
        rig.connect();
        rig
    }

    pub fn rc() -> Self {
        Self::new(Setup::default())
    }

    pub fn uc() -> Self {
        Self::new(Setup {
            qp_type: QpType::Uc,
            ..Setup::default()
        })
    }

    pub fn ud() -> Self {
        Self::new(Setup {
            qp_type: QpType::Ud,
            ..Setup::default()
        })
    }

    pub fn unconnected(setup: Setup) -> Self {
        let simulation = Simulation::new();
        let mtu = setup.mtu.map(|mtu| mtu.octets() as usize);
        let wire = Arc::new(Wire {
            mtu,
            joined: setup.joined,
            is_polled: setup.polled,
            state: Mutex::default(),
        });
        let link = Arc::clone(&wire) as SharedLink<Header>;
        let subnet = SubnetLink::new(Arc::clone(&link));
        let link = match setup.managed {
            true => Arc::clone(&subnet) as SharedLink<Header>,
            false => link,
        };
        let network = simulation.network::<InfiniBand>((!setup.direct).then_some(link));
        let a = Side::new(&network, &subnet, 1, &setup);
        let b = Side::new(&network, &subnet, 2, &setup);
        Self {
            simulation,
            network,
            wire,
            setup,
            a,
            b,
        }
    }

    pub fn connect(&self) {
        self.a
            .connect(&self.b, &self.setup, self.setup.a_psn, self.setup.b_psn);
        self.b
            .connect(&self.a, &self.setup, self.setup.b_psn, self.setup.a_psn);
    }

    /// Runs until nothing is due.
    #[track_caller]
    pub fn run(&self) {
        self.simulation.run_until_idle().unwrap();
    }

    #[track_caller]
    pub fn run_for(&self, duration: Duration) {
        self.simulation.run_for(duration).unwrap();
    }

    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.simulation.now().0)
    }

    /// Returns a frame as A's queue pair would send it to B's, with the number `offset` after A's first.
    pub fn request(&self, offset: u32, body: Body, payload: &[u8]) -> OwnFrame {
        OwnFrame {
            from: LinkAddress::InProcess(1),
            to: LinkAddress::InProcess(2),
            header: Header {
                service: self.a.qp.qp_type(),
                dest_qp: self.b.qp.qp_num().value(),
                src_qp: self.a.qp.qp_num().value(),
                psn: Psn::new(self.setup.a_psn).plus(offset),
                ack_req: true,
                solicited: false,
                xrc: None,
                aeth: Aeth::ack(0, None),
                ip: emulated_ib::header::IpFields::default(),
                icrc_unverified: false,
                awaited: false,
                joined: false,
                mtu_shift: self
                    .setup
                    .mtu
                    .map_or(0, |mtu| mtu.octets().trailing_zeros() as u8),
                acknowledges: None,
                body,
            },
            payload: payload.to_vec(),
            damaged: false,
        }
    }

    /// Delivers the frames that were held.
    pub fn release(&self) {
        let mut state = self.wire.state();
        let held = std::mem::take(&mut state.held);
        state.under_way.extend(held);
        drop(state);
        self.network.progress();
    }

    /// Delivers frames of A to B together.
    pub fn inject(&self, frames: impl IntoIterator<Item = OwnFrame>) {
        for frame in frames {
            self.wire.inject(frame);
        }
        self.network.progress();
    }

    /// Returns an answer of B to A for A's number at `offset`.
    pub fn answer(&self, offset: u32, answer: impl Into<Answer>, payload: &[u8]) -> OwnFrame {
        let Answer { body, syndrome } = answer.into();
        let mut frame = self.request(offset, body, payload);
        frame.header.aeth.syndrome = syndrome;
        std::mem::swap(&mut frame.from, &mut frame.to);
        std::mem::swap(&mut frame.header.src_qp, &mut frame.header.dest_qp);
        frame
    }

    // Returns the distance of a frame's number from A's first.
    fn offset(&self, frame: &OwnFrame) -> i32 {
        frame.header.psn.distance_from(Psn::new(self.setup.a_psn))
    }

    /// Returns B's answers, with numbers relative to A's first.
    pub fn answers(&self) -> Vec<(i32, Answer)> {
        let log = self.wire.log();
        let answers = log.iter().filter(|frame| {
            frame.from == LinkAddress::InProcess(2) && !frame.header.body.is_request()
        });
        answers
            .map(|frame| (self.offset(frame), Answer::of(&frame.header)))
            .collect()
    }

    /// Returns A's requests, with numbers relative to A's first.
    pub fn requests(&self) -> Vec<(i32, Body)> {
        let log = self.wire.log();
        let requests = log
            .iter()
            .filter(|frame| frame.header.body.is_request() && frame.from != self.b.address());
        requests
            .map(|frame| (self.offset(frame), frame.header.body))
            .collect()
    }

    /// Returns the NAKs among the answers.
    pub fn naks(&self) -> Vec<(i32, Nak)> {
        let naks =
            self.answers()
                .into_iter()
                .filter_map(|(psn, answer)| match answer.syndrome.kind() {
                    SyndromeKind::Nak(nak) => Some((psn, nak)),
                    _ => None,
                });
        naks.collect()
    }
}

/// The content of an answer without its credits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    pub body: Body,
    pub syndrome: Syndrome,
}

pub const ACK: Answer = acknowledge(Syndrome::ack(Syndrome::NO_LIMIT));

pub const fn nak(nak: Nak) -> Answer {
    acknowledge(Syndrome::nak(nak))
}

pub const fn rnr(timer: u8) -> Answer {
    acknowledge(Syndrome::rnr_nak(timer))
}

const fn acknowledge(syndrome: Syndrome) -> Answer {
    Answer {
        body: Body::Acknowledge,
        syndrome,
    }
}

impl Answer {
    pub fn of(header: &Header) -> Self {
        let answer = Self::from(header.body);
        match header.aeth.syndrome {
            syndrome if syndrome.is_ack() => answer,
            syndrome => Self { syndrome, ..answer },
        }
    }
}

impl From<Body> for Answer {
    fn from(body: Body) -> Self {
        Self { body, ..ACK }
    }
}

impl Side {
    fn new(
        network: &Arc<Network<Engine<InfiniBand>>>,
        subnet: &SubnetLink,
        number: u64,
        setup: &Setup,
    ) -> Self {
        let address = LinkAddress::InProcess(number);
        let driver = InfiniBand {
            name: format!("ib{number}"),
            address,
            windows_2a: setup.windows_2a,
            management: None,
            subnet: setup.managed.then(|| {
                let guid = Guid::software(Transport::InfiniBand, address.ip_or_stand_in());
                let port = Arc::new(SubnetPort::new(&format!("ib{number}"), guid));
                subnet.attach(address, &port);
                Subnet::Own(port)
            }),
        };
        let engine = Engine::new(driver, network, DeviceOptions::default()).unwrap();
        let device = Device::of(Arc::clone(&engine) as Arc<dyn verbs_api::provider::DeviceOps>);
        let context = device
            .open(&Requirements::everything_of(&device.attributes()))
            .unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(setup.cqe).wait().unwrap();
        let srq = setup.srq.map(|size| {
            pd.create_srq(SrqOptions::new(size).max_sge(4))
                .wait()
                .unwrap()
        });
        let memory = Memory::zeroed(MEMORY).unwrap();
        let mr = pd
            .register(&memory, Access::LOCAL_WRITE | Access::MW_BIND | ALL_REMOTE)
            .wait()
            .unwrap();
        let qp = make_qp(&pd, &cq, srq.as_ref(), setup);
        Self {
            engine,
            context,
            pd,
            cq,
            srq,
            qp,
            memory,
            mr,
        }
    }

    pub fn address(&self) -> LinkAddress {
        self.engine.address()
    }

    pub fn connect(&self, peer: &Self, setup: &Setup, sq_psn: u32, rq_psn: u32) {
        connect(
            &self.qp,
            peer.path(),
            peer.qp.qp_num(),
            setup,
            sq_psn,
            rq_psn,
        );
    }

    /// Returns the path to this side.
    pub fn path(&self) -> AddressVector {
        let port = self.context.query_port(1).unwrap();
        AddressVector::new(port.address, port.gids[0].gid, 1)
    }

    pub fn write(&self, offset: usize, octets: &[u8]) {
        self.memory.write(offset, octets).unwrap();
    }

    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        self.memory.to_vec(offset, length).unwrap()
    }

    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        self.mr.sge(offset, length as u32).unwrap()
    }

    pub fn remote(&self, offset: usize) -> RemoteAddress {
        self.mr.remote(offset as u64)
    }

    pub fn receive(&self, wr_id: u64, offset: usize, length: usize) {
        let request = ReceiveRequest::new(wr_id, self.sge(offset, length));
        match &self.srq {
            Some(srq) => srq.post_receive(request).unwrap(),
            None => self.qp.post_receive(request).unwrap(),
        }
    }

    #[track_caller]
    pub fn post<'a>(&self, request: impl Into<WorkRequest<'a>>) {
        self.qp.post_one(request).unwrap();
    }

    /// Returns all completions.
    pub fn completions(&self) -> Vec<Completion> {
        poll(&self.cq)
    }

    /// Returns the ids and statuses of all completions.
    pub fn done(&self) -> Vec<(u64, WcStatus)> {
        self.completions()
            .iter()
            .map(|done| (done.wr_id, done.status))
            .collect()
    }

    pub fn state(&self) -> QpState {
        self.qp.query().unwrap().state
    }

    /// Returns the events since the last call, except those that a connection was established.
    pub fn events(&self) -> Vec<EventType> {
        let all = std::iter::from_fn(|| self.context.poll_event().map(|event| event.event_type()));
        all.filter(|event| *event != EventType::CommEst).collect()
    }

    pub fn modify(&self, attributes: QpAttributes) -> Result<(), VerbError> {
        self.qp.modify(attributes).wait()
    }

    #[track_caller]
    pub fn go_to(&self, state: QpState) {
        self.modify(QpAttributes::new().qp_state(state)).unwrap();
    }

    pub fn counters(&self) -> verbs_api::qp::QpCounters {
        self.qp.counters()
    }
}

pub fn poll(cq: &Cq) -> Vec<Completion> {
    let mut all = Vec::new();
    loop {
        let mut slots: [Completion; 16] = Default::default();
        let count = cq.poll(&mut slots).unwrap().len();
        all.extend(slots.into_iter().take(count));
        if count == 0 {
            return all;
        }
    }
}

pub fn make_qp(pd: &Pd, cq: &Cq, srq: Option<&Srq>, setup: &Setup) -> Qp {
    let options = match setup.qp_type {
        QpType::Uc => QpOptions::uc(cq),
        QpType::Ud => QpOptions::ud(cq),
        _ => QpOptions::rc(cq),
    };
    let mut options = options
        .max_send_sge(4)
        .max_recv_sge(setup.max_recv_sge)
        .max_recv_wr(setup.max_recv_wr);
    if setup.qp_type == QpType::Rc {
        options = options.operations(
            Operations::LOCAL_INV
                | Operations::FAST_REGISTER
                | Operations::SEND_WITH_INV
                | Operations::BIND_MW
                | Operations::FLUSH
                | Operations::ATOMIC_WRITE,
        );
    }
    if let Some(srq) = srq {
        options = options.srq(srq);
    }
    if setup.sq_sig_all {
        options = options.sq_sig_all();
    }
    pd.create_qp(options).wait().unwrap()
}

pub fn init(setup: &Setup) -> QpAttributes {
    let init = QpAttributes::new()
        .qp_state(QpState::Init)
        .pkey_index(0)
        .port_num(1);
    if setup.qp_type == QpType::Ud {
        init.qkey(0x1111)
    } else {
        init.qp_access_flags(setup.access)
    }
}

pub fn rtr(setup: &Setup, path: AddressVector, peer: Qpn, rq_psn: u32) -> QpAttributes {
    let rtr = QpAttributes::new().qp_state(QpState::Rtr);
    if setup.qp_type == QpType::Ud {
        return rtr;
    }
    let mtu = setup.mtu.unwrap_or(Mtu::Mtu1024);
    let rtr = rtr
        .ah_attr(path)
        .path_mtu(mtu)
        .dest_qp_num(peer)
        .rq_psn(Psn::new(rq_psn));
    if setup.qp_type == QpType::Uc {
        return rtr;
    }
    rtr.max_dest_rd_atomic(setup.max_dest_rd_atomic)
        .min_rnr_timer(setup.min_rnr_timer)
}

pub fn rts(setup: &Setup, sq_psn: u32) -> QpAttributes {
    let rts = QpAttributes::new()
        .qp_state(QpState::Rts)
        .sq_psn(Psn::new(sq_psn));
    if setup.qp_type != QpType::Rc {
        return rts;
    }
    rts.timeout(setup.timeout)
        .retry_cnt(setup.retry_cnt)
        .rnr_retry(setup.rnr_retry)
        .max_rd_atomic(setup.max_rd_atomic)
}

pub fn connect(qp: &Qp, path: AddressVector, peer: Qpn, setup: &Setup, sq_psn: u32, rq_psn: u32) {
    for step in [
        init(setup),
        rtr(setup, path, peer, rq_psn),
        rts(setup, sq_psn),
    ] {
        qp.modify(step).wait().unwrap();
    }
}

/// Returns bytes that depend on their position.
pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|index| (index as u32).wrapping_mul(2_654_435_761).rotate_left(9) as u8 ^ seed)
        .collect()
}

pub fn ok(ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    ids.into_iter().map(|id| (id, WcStatus::Success)).collect()
}

/// Returns the same stretch with another key, which the device must refuse.
#[allow(unsafe_code)]
pub fn with_lkey(sge: Sge, lkey: u32) -> Sge {
    // SAFETY: no buffer pool has this key.
    unsafe { Sge::from_raw(sge.addr(), sge.length(), verbs_api::ids::LKey::new(lkey)) }
}

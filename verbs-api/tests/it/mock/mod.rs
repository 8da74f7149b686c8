//! A provider without a transport: commands complete when the test says so, and everything else is minimal.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use verbs_api::objects::{Holder, ObjectId};
use verbs_api::provider::Mutex;
use verbs_api::provider::*;
use verbs_api::qp::{AddressVector, QpAttributes, QpCap, QpState, QpStatus, QpType, check_modify};
use verbs_api::*;
use verbs_api::{
    capability::{
        AtomicScope, BaselineGaps, DeviceAttributes, GidEntry, GidType, Grant, Identity, Limits,
        Mtu, PortAttributes, PortCaps,
    },
    completion::{Notify, WcOpcode},
    event::{EventSubject, EventType},
    extension::Extensions,
    ids::{Gid, Guid, LKey, LinkAddress, Port, Qpn},
    memory::MwType,
    wr::{self, PostReason, ReceiveRequest, SendFlags, WorkRequest},
};

type Command = Box<dyn FnOnce() + Send>;

/// The interface by which a test controls and observes the device.
#[derive(Default)]
pub struct Mock {
    delayed: AtomicBool,
    commands: Mutex<VecDeque<Command>>,
    fail: Mutex<Vec<&'static str>>,
    live: Mutex<BTreeMap<&'static str, i64>>,
    sinks: Mutex<Vec<Arc<dyn EventSink>>>,
    numbers: AtomicU32,
    /// The holders that the deregistration of any region reports with Busy; none if it succeeds.
    pub bound: Mutex<Vec<Holder>>,
    /// Operations and flags in the order in which they were posted.
    pub posted: Mutex<Vec<(Operations, SendFlags, u64)>>,
    /// Whether posts are recorded: off where allocations are counted.
    pub record: AtomicBool,
    pub closed: AtomicU32,
    holds: AtomicBool,
    held: Mutex<VecDeque<(Arc<MockCq>, Cqe)>>,
    overran: AtomicBool,
    late: AtomicBool,
    cqs: Mutex<Vec<Weak<dyn CompletionSink>>>,
    /// The completion vectors of the queues that were made.
    pub comp_vectors: Mutex<Vec<u32>>,
    /// Whether new completion queues have a descriptor of their own.
    pub own_descriptors: AtomicBool,
    /// Whether the device itself connects queue pairs, instead of by modifying them.
    pub connects: AtomicBool,
}

/// A completion in a queue.
struct Cqe {
    wr_id: u64,
    status: WcStatus,
    opcode: WcOpcode,
    loan: memory::Loan,
    byte_len: u32,
}

impl Mock {
    /// Makes commands wait for [`run`](Self::run) from now on.
    pub fn delay(&self) {
        self.delayed.store(true, Ordering::SeqCst);
    }

    /// Executes one waiting command; returns whether there was one.
    pub fn run(&self) -> bool {
        let command = self.commands.lock().pop_front();
        command.map(|command| command()).is_some()
    }

    pub fn run_all(&self) {
        while self.run() {}
    }

    pub fn waiting(&self) -> usize {
        self.commands.lock().len()
    }

    /// Makes the next command of this name fail because the device is out of resources.
    pub fn fail_next(&self, verb: &'static str) {
        self.fail.lock().push(verb);
    }

    /// The number of objects of this kind that were made and not destroyed.
    pub fn live(&self, kind: &'static str) -> i64 {
        self.live.lock().get(kind).copied().unwrap_or(0)
    }

    pub fn event(&self, context: usize, event: EventType, subject: EventSubject) {
        let sink = Arc::clone(&self.sinks.lock()[context]);
        sink.event(event, subject);
    }

    /// Sends an unaffiliated event to every context.
    pub fn broadcast(&self, event: EventType, subject: EventSubject) {
        let sinks = self.sinks.lock().clone();
        sinks.iter().for_each(|sink| sink.event(event, subject));
    }

    /// Makes requests complete only when the test says so, from now on.
    pub fn hold(&self) {
        self.holds.store(true, Ordering::SeqCst);
    }

    /// Completes one of the requests that are held, counted from the oldest.
    pub fn complete(&self, index: usize, status: WcStatus) {
        let held = self.held.lock().remove(index);
        let (cq, cqe) = held.expect("a request is held");
        cq.push(Cqe { status, ..cqe });
    }

    pub fn held(&self) -> usize {
        self.held.lock().len()
    }

    /// The oldest held request completes while a queue is armed, too late for the result of arming to
    /// report it.
    pub fn complete_late(&self) {
        self.late.store(true, Ordering::SeqCst);
    }

    /// Makes every completion queue overrun.
    pub fn overrun(&self) {
        self.overran.store(true, Ordering::SeqCst);
        let cqs = self.cqs.lock().clone();
        cqs.iter()
            .filter_map(Weak::upgrade)
            .for_each(|cq| cq.notify());
    }

    pub fn remove(&self) {
        self.broadcast(EventType::DeviceRemoved, EventSubject::Device);
    }

    fn count(&self, kind: &'static str, by: i64) {
        *self.live.lock().entry(kind).or_default() += by;
    }

    fn admitted(&self, verb: &'static str) -> Result<(), VerbError> {
        let mut fail = self.fail.lock();
        match fail.iter().position(|&failing| failing == verb) {
            Some(place) => {
                fail.remove(place);
                Err(VerbError::Resources("test resources"))
            }
            None => Ok(()),
        }
    }

    fn command<T: 'static + Send>(
        &self,
        verb: &'static str,
        reply: Reply<T>,
        carry_out: impl FnOnce() -> Result<T, VerbError> + Send + 'static,
    ) {
        let admitted = self.admitted(verb);
        let command = move || reply.send(admitted.and_then(|()| carry_out()));
        if self.delayed.load(Ordering::SeqCst) {
            self.commands.lock().push_back(Box::new(command));
        } else {
            command();
        }
    }

    fn make<T: ?Sized + Send + Sync + 'static>(
        self: &Arc<Self>,
        kind: &'static str,
        reply: Reply<Arc<T>>,
        make: impl FnOnce(Part) -> Arc<T> + Send + 'static,
    ) {
        let part = Part {
            mock: Arc::clone(self),
            kind,
        };
        self.command(kind, reply, move || {
            part.mock.count(kind, 1);
            Ok(make(part))
        });
    }
}

/// The common part of every object of the mock.
pub struct Part {
    mock: Arc<Mock>,
    kind: &'static str,
}

impl Part {
    fn destroy(&self, verb: &'static str, reply: Reply<()>) {
        let (mock, kind) = (Arc::clone(&self.mock), self.kind);
        self.mock.command(verb, reply, move || {
            mock.count(kind, -1);
            Ok(())
        });
    }
}

pub struct MockDevice {
    pub mock: Arc<Mock>,
    pub attributes: DeviceAttributes,
}

/// Attributes of an InfiniBand-like device that has every core feature but one kind of window.
pub fn attributes(name: &str) -> DeviceAttributes {
    let port = |port| PortAttributes {
        active_mtu: Mtu::Mtu1024,
        gids: vec![GidEntry::new(Gid([port; 16]), GidType::RoceV2)],
        ..PortAttributes::new(
            port,
            PortCaps::ROCE_V2,
            LinkAddress::InProcess(u64::from(port)),
        )
    };
    DeviceAttributes {
        name: name.into(),
        provider: "mock",
        transport: Transport::InfiniBand,
        identity: Identity::default(),
        node_guid: Guid::default(),
        sys_image_guid: Guid::default(),
        features: Features::all() - Features::WINDOW_2A - Features::READ_WITH_INVALIDATE,
        extensions: Vec::new(),
        gaps: BaselineGaps::empty(),
        limits: Limits {
            max_qp: 1000,
            max_qp_wr: 1024,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_sge_rd: 4,
            max_inline_data: 128,
            max_msg_sz: 1 << 31,
            max_cq: 100,
            max_cqe: 4096,
            num_comp_vectors: 2,
            max_mr: 1000,
            max_mr_size: 1 << 40,
            max_mw: 100,
            max_pd: 100,
            max_ah: 100,
            max_srq: 100,
            max_srq_wr: 1024,
            max_srq_sge: 4,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            max_res_rd_atom: 16_000,
            max_fast_reg_page_list_len: 256,
            page_size_cap: !0xfff,
            max_mcast_grp: 10,
            max_mcast_qp_attach: 10,
            max_comp_cntr: 100,
            phys_port_cnt: 2,
            local_ca_ack_delay: 15,
        },
        atomic_cap: AtomicScope::Hca,
        masked_atomic_cap: AtomicScope::None,
        ports: vec![port(1), port(2)],
    }
}

/// Attributes of an iWARP-like device.
pub fn iwarp(name: &str) -> DeviceAttributes {
    let mut attributes = attributes(name);
    attributes.transport = Transport::Iwarp;
    attributes.features = Features::IWARP_MANDATORY | Features::SRQ;
    attributes.limits.max_sge_rd = 1;
    attributes.gaps = BaselineGaps::NO_UD
        | BaselineGaps::NO_UC
        | BaselineGaps::NO_SEND_WITH_IMMEDIATE
        | BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE;
    attributes
}

impl DeviceOps for MockDevice {
    fn attributes(&self) -> DeviceAttributes {
        self.attributes.clone()
    }

    fn open(
        &self,
        _: &Grant,
        events: Arc<dyn EventSink>,
    ) -> Result<Arc<dyn ContextOps>, VerbError> {
        self.mock.sinks.lock().push(events);
        let attributes = self.attributes.clone();
        Ok(Arc::new(MockContext {
            mock: Arc::clone(&self.mock),
            attributes,
        }))
    }
}

pub struct MockContext {
    mock: Arc<Mock>,
    attributes: DeviceAttributes,
}

impl ContextOps for MockContext {
    fn query_port(&self, port: Port) -> Result<PortAttributes, VerbError> {
        Ok(self.attributes.ports[usize::from(port) - 1].clone())
    }

    fn alloc_pd(&self, reply: Reply<Arc<dyn PdOps>>) {
        self.mock.make("pd", reply, |part| Arc::new(MockPd(part)));
    }

    fn create_cq(&self, init: CqInit, reply: Reply<Arc<dyn CqOps>>) {
        let sink = Arc::downgrade(&init.sink);
        self.mock.cqs.lock().push(sink);
        self.mock.make("cq", reply, move |part| {
            let queue = Mutex::new(VecDeque::with_capacity(64));
            part.mock.comp_vectors.lock().push(init.comp_vector);
            let own = part.mock.own_descriptors.load(Ordering::SeqCst);
            Arc::new(MockCq {
                part,
                init,
                queue,
                notices: own.then(|| UnixStream::pair().unwrap()),
                armed: AtomicBool::new(false),
            })
        });
    }

    fn close(&self) {
        self.mock.closed.fetch_add(1, Ordering::SeqCst);
    }
}

pub struct MockCq {
    part: Part,
    init: CqInit,
    queue: Mutex<VecDeque<Cqe>>,
    armed: AtomicBool,
    // Each notification is a byte in this pair of sockets.
    notices: Option<(UnixStream, UnixStream)>,
}

impl MockCq {
    fn complete(self: &Arc<Self>, cqe: Cqe) {
        let mock = &self.part.mock;
        if mock.holds.load(Ordering::SeqCst) {
            mock.held.lock().push_back((Arc::clone(self), cqe));
        } else {
            self.push(cqe);
        }
    }

    fn push(&self, cqe: Cqe) {
        self.queue.lock().push_back(cqe);
        if self.armed.swap(false, Ordering::SeqCst) {
            if let Some((to, _)) = &self.notices {
                (&mut { to }).write_all(&[1]).unwrap();
            }
            self.init.sink.notify();
        }
    }
}

impl CqOps for MockCq {
    fn cqe(&self) -> u32 {
        self.init.cqe
    }

    fn poll(&self, completions: &mut [Completion]) -> Result<usize, VerbError> {
        let mut queue = self.queue.lock();
        let mut filled = 0;
        for slot in completions {
            let Some(cqe) = queue.pop_front() else {
                break;
            };
            slot.wr_id = cqe.wr_id;
            slot.status = cqe.status;
            slot.opcode = cqe.opcode;
            // SAFETY: the loan left the queue with the one completion that carries it.
            unsafe { slot.set_loan(cqe.loan) };
            slot.byte_len = cqe.byte_len;
            filled += 1;
        }
        if filled == 0 && self.part.mock.overran.load(Ordering::SeqCst) {
            return Err(VerbError::CqOverrun);
        }
        Ok(filled)
    }

    fn arm(&self, _: Notify) -> Result<bool, VerbError> {
        self.part.mock.admitted("arm")?;
        self.armed.store(true, Ordering::SeqCst);
        let has_some = !self.queue.lock().is_empty();
        let mock = &self.part.mock;
        if mock.late.swap(false, Ordering::SeqCst) {
            mock.complete(0, WcStatus::Success);
        }
        Ok(has_some)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.notices.as_ref().map(|(_, from)| from.as_fd())
    }

    fn drain(&self) {
        if let Some((_, from)) = &self.notices {
            from.set_nonblocking(true).unwrap();
            while (&mut { from }).read(&mut [0; 8]).is_ok() {}
        }
    }

    fn destroy(&self, reply: Reply<()>) {
        self.part.destroy("destroy_cq", reply);
    }
}

pub struct MockPd(Part);

impl PdOps for MockPd {
    fn reg_mr(&self, init: MrInit, reply: Reply<Arc<dyn MrOps>>) {
        self.0.mock.make("mr", reply, move |part| {
            let index = part.mock.numbers.fetch_add(1, Ordering::SeqCst) + 1;
            let remote = init.access.exposes();
            Arc::new(MockMr {
                part,
                key: index << 8 | 0x42,
                remote,
            })
        });
    }

    fn alloc_mr(&self, _: ObjectId, _: u32, reply: Reply<Arc<dyn MrOps>>) {
        self.0.mock.make("mr", reply, |part| {
            let index = part.mock.numbers.fetch_add(1, Ordering::SeqCst) + 1;
            Arc::new(MockMr {
                part,
                key: index << 8,
                remote: true,
            })
        });
    }

    fn alloc_mw(&self, _: ObjectId, _: MwType, reply: Reply<Arc<dyn MwOps>>) {
        self.0.mock.make("mw", reply, |part| Arc::new(MockMw(part)));
    }

    fn create_srq(&self, init: SrqInit, reply: Reply<Arc<dyn SrqOps>>) {
        self.0
            .mock
            .make("srq", reply, move |part| Arc::new(MockSrq(part, init)));
    }

    fn create_qp(&self, init: QpInit, reply: Reply<Arc<dyn QpOps>>) {
        self.0.mock.make("qp", reply, move |part| {
            let number = part.mock.numbers.fetch_add(1, Ordering::SeqCst) + 1;
            let send_cq = own(&init.send_cq, "send_cq").unwrap();
            let recv_cq = own(&init.recv_cq, "recv_cq").unwrap();
            let state = Mutex::new((QpState::Reset, QpAttributes::new()));
            Arc::new(MockQp {
                part,
                number,
                init,
                send_cq,
                recv_cq,
                state,
                closed: AtomicBool::new(false),
            })
        });
    }

    fn create_ah(&self, path: AddressVector, reply: Reply<Arc<dyn AhOps>>) {
        self.0
            .mock
            .make("ah", reply, move |part| Arc::new(MockAh(part, path)));
    }

    fn dealloc(&self, reply: Reply<()>) {
        self.0.destroy("dealloc_pd", reply);
    }
}

pub struct MockMr {
    part: Part,
    key: u32,
    remote: bool,
}

impl MrOps for MockMr {
    fn lkey(&self) -> LKey {
        LKey::new(self.key)
    }

    fn rkey(&self) -> RKey {
        RKey::new(if self.remote { self.key } else { 0 })
    }

    fn rereg(&self, _: MrChange, reply: Reply<()>) {
        self.part.mock.command("rereg_mr", reply, || Ok(()));
    }

    fn dereg(&self, reply: Reply<()>) {
        let mock = Arc::clone(&self.part.mock);
        self.part.mock.command("dereg_mr", reply, move || {
            let bound = mock.bound.lock().clone();
            if !bound.is_empty() {
                return Err(VerbError::Busy(bound));
            }
            mock.count("mr", -1);
            Ok(())
        });
    }
}

pub struct MockMw(Part);

impl MwOps for MockMw {
    fn rkey(&self) -> RKey {
        RKey::new(0x0007_7700)
    }

    fn dealloc(&self, reply: Reply<()>) {
        self.0.mock.bound.lock().clear();
        self.0.destroy("dealloc_mw", reply);
    }
}

pub struct MockSrq(Part, SrqInit);

impl SrqOps for MockSrq {
    fn post(&self, _: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)> {
        Ok(())
    }

    fn modify(&self, _: Option<u32>, _: Option<u32>, reply: Reply<()>) {
        self.0.mock.command("modify_srq", reply, || Ok(()));
    }

    fn max_sge(&self) -> u32 {
        self.1.max_sge
    }

    fn query(&self) -> Result<(u32, u32), VerbError> {
        self.0.mock.admitted("query_srq")?;
        Ok((self.1.max_wr, self.1.srq_limit))
    }

    fn destroy(&self, reply: Reply<()>) {
        self.0.destroy("destroy_srq", reply);
    }
}

pub struct MockAh(Part, AddressVector);

impl AhOps for MockAh {
    fn path(&self) -> AddressVector {
        self.1
    }

    fn destroy(&self, reply: Reply<()>) {
        self.0.destroy("destroy_ah", reply);
    }
}

pub struct MockQp {
    part: Part,
    number: u32,
    init: QpInit,
    send_cq: Arc<MockCq>,
    recv_cq: Arc<MockCq>,
    state: Mutex<(QpState, QpAttributes)>,
    closed: AtomicBool,
}

impl PostOps for MockQp {
    fn post_send(&self, requests: &[WorkRequest<'_>]) -> Result<(), (usize, PostReason)> {
        if self.closed.load(Ordering::SeqCst) {
            return Err((0, PostReason::InvalidHandle));
        }
        let state = self.state.lock().0;
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err((0, PostReason::InvalidState(state)));
        }
        let max = self.cap().max_send_wr;
        let room = (max as usize).saturating_sub(self.send_cq.queue.lock().len());
        let posted = requests.len().min(room);
        for request in &requests[..posted] {
            let common = request.common();
            if self.part.mock.record.load(Ordering::Relaxed) {
                let entry = (request.operation(), common.flags, common.wr_id);
                self.part.mock.posted.lock().push(entry);
            }
            let loan = request.data().sges().loan;
            if common.flags.contains(SendFlags::SIGNALED) || self.init.sq_sig_all {
                self.send_cq.complete(Cqe {
                    wr_id: common.wr_id,
                    status: WcStatus::Success,
                    opcode: request.wc_opcode(),
                    loan,
                    byte_len: 0,
                });
            } else {
                // SAFETY: the request has retired, and nothing else holds its loan.
                unsafe { loan.release() };
            }
        }
        if posted == requests.len() {
            Ok(())
        } else {
            Err((posted, PostReason::QueueFull { max }))
        }
    }

    fn post_recv(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)> {
        if self.closed.load(Ordering::SeqCst) {
            return Err((0, PostReason::InvalidHandle));
        }
        for request in requests {
            let byte_len = request.data.len() as u32;
            let loan = request.data.sges().loan;
            self.recv_cq.complete(Cqe {
                wr_id: request.wr_id,
                status: WcStatus::Success,
                opcode: WcOpcode::Recv,
                loan,
                byte_len,
            });
        }
        Ok(())
    }
}

impl QpOps for MockQp {
    fn poster(&self) -> &(dyn PostOps + 'static) {
        self
    }

    fn admit(&self, open: bool) {
        self.closed.store(!open, Ordering::SeqCst);
    }

    fn qp_num(&self) -> Qpn {
        Qpn::new(self.number)
    }

    fn cap(&self) -> QpCap {
        // A device may grant more than was requested.
        QpCap {
            max_send_wr: self.init.cap.max_send_wr.next_power_of_two(),
            ..self.init.cap
        }
    }

    fn modify(&self, attributes: QpAttributes, reply: Reply<()>) {
        let checked = {
            let mut state = self.state.lock();
            check_modify(self.init.qp_type, state.0, &attributes, 16, 16, 2).map(|to| {
                *state = (to, state.1.merged(&attributes));
            })
        };
        self.part
            .mock
            .command("modify_qp", reply, move || checked.map_err(VerbError::from));
    }

    fn connect(self: Arc<Self>, peer: &QpEndpoint, steps: [QpAttributes; 3], reply: Reply<()>) {
        if !self.part.mock.connects.load(Ordering::SeqCst) {
            return modify_in_turn(self, steps, reply);
        }
        let attributes = QpAttributes::new().dest_qp_num(peer.qp_num);
        *self.state.lock() = (QpState::Rts, attributes);
        reply.send(Ok(()));
    }

    fn query(&self) -> Result<QpStatus, VerbError> {
        self.part.mock.admitted("query_qp")?;
        let (state, attributes) = *self.state.lock();
        Ok(QpStatus {
            state,
            sq_draining: false,
            attributes,
            cap: self.cap(),
        })
    }

    fn bind_mw(&self, _: wr::BindWindow<'_>) -> Result<RKey, PostReason> {
        Ok(RKey::new(0x0007_7701))
    }

    fn attach_multicast(&self, _: Gid, reply: Reply<()>) {
        self.part.mock.command("attach_mcast", reply, || Ok(()));
    }

    fn detach_multicast(&self, _: Gid, reply: Reply<()>) {
        self.part.mock.command("detach_mcast", reply, || Ok(()));
    }

    fn destroy(&self, reply: Reply<()>) {
        self.part.destroy("destroy_qp", reply);
    }
}

/// A provider whose devices are the last set that the test has put in.
pub struct MockProvider {
    pub name: &'static str,
    pub version: u32,
    devices: Mutex<Result<Vec<Arc<MockDevice>>, VerbError>>,
}

impl MockProvider {
    /// A provider without devices.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            version: CONTRACT_VERSION,
            devices: Mutex::new(Ok(Vec::new())),
        }
    }

    pub fn put(&self, devices: &[&Arc<MockDevice>]) {
        *self.devices.lock() = Ok(devices.iter().copied().cloned().collect());
    }

    /// Makes the provider fail to list its devices until the test puts some in.
    pub fn fail(&self, error: VerbError) {
        *self.devices.lock() = Err(error);
    }
}

impl Provider for MockProvider {
    fn name(&self) -> &'static str {
        self.name
    }

    fn contract_version(&self) -> u32 {
        self.version
    }

    fn devices(&self, _: &Extensions) -> Result<DeviceList, VerbError> {
        let devices = self.devices.lock().clone()?;
        Ok(devices.into_iter().map(|device| device as _).collect())
    }

    fn refresh(&self, _: DeviceList, extensions: &Extensions) -> Result<DeviceList, VerbError> {
        self.devices(extensions)
    }
}

pub fn device(attributes: DeviceAttributes) -> Arc<MockDevice> {
    Arc::new(MockDevice {
        mock: Arc::default(),
        attributes,
    })
}

/// A registry takes only providers that live as long as the process.
pub fn provider(name: &'static str, devices: &[&Arc<MockDevice>]) -> &'static MockProvider {
    let provider = Box::leak(Box::new(MockProvider::new(name)));
    provider.put(devices);
    provider
}

/// A device with these attributes, opened for every feature that it has.
pub fn open_with(attributes: DeviceAttributes) -> (Arc<Mock>, Device, Context) {
    let everything = Requirements::everything_of(&attributes);
    let made = device(attributes);
    made.mock.record.store(true, Ordering::SeqCst);
    let mut registry = Registry::new();
    registry.add_provider(provider("mock", &[&made])).unwrap();
    let device = registry.devices().next().unwrap().clone();
    let context = device.open(&everything).unwrap();
    (Arc::clone(&made.mock), device, context)
}

/// An InfiniBand-like device, opened for every feature that it has.
pub fn open() -> (Arc<Mock>, Context) {
    let (mock, _, context) = open_with(attributes("mock0"));
    (mock, context)
}

/// A connected pair, its domain and its completion queue.
pub fn pair(context: &Context) -> (Pd, Cq, Qp, Qp) {
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(256).wait().unwrap();
    let qp = || pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let (a, b) = (qp(), qp());
    connect_pair(&a, &b, Access::empty()).wait().unwrap();
    (pd, cq, a, b)
}

pub const ALL_TYPES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

/// A scatter/gather entry of invented numbers: the mock accesses no memory.
#[allow(unsafe_code)]
pub const fn sge(addr: u64, length: u32, lkey: u32) -> Sge {
    // SAFETY: no key of the mock refers to memory.
    unsafe { Sge::from_raw(addr, length, LKey::new(lkey)) }
}

//! Two devices with a connected pair of queue pairs, and between them a stream that a test can inspect and change.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use emulated_iwarp::header::{Body, Header, Message};
use emulated_iwarp::{Iwarp, ServiceDelay};
use polyverbs_engine::device::{Device, DeviceOptions};
use polyverbs_engine::link::{Deliver, Frame, Link, OwnedFrame, SharedLink, TrySend};
use polyverbs_engine::network::{Network, Progress};
use polyverbs_engine::time::{Host, Time};
use polyverbs_wire::iwarp::{Terminate, terminate};
use verbs_api::provider::{DeviceOps, Mutex};
use verbs_api::qp::QpState;
use verbs_api::{
    Access, Completion, Context, Cq, Memory, Mr, Operations, PathOptions, Pd, Qp, QpOptions,
    RemoteAddress, Requirements, Sge, WcStatus,
    completion::{WcFlags, WcOpcode},
    event::EventType,
    ids::LinkAddress,
    wr::WorkRequest,
};

/// Every right that a region can have.
pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// Every operation of this device.
pub(crate) fn operations() -> Operations {
    (Operations::BASELINE - Operations::SEND_WITH_IMM)
        | Operations::LOCAL_INV
        | Operations::BIND_MW
        | Operations::SEND_WITH_INV
        | Operations::READ_WITH_INV
        | Operations::FAST_REGISTER
}

/// A clock that does not advance until it is set.
#[derive(Default)]
struct Clock(AtomicU64);

impl Host for Clock {
    fn now(&self) -> Time {
        Time(self.0.load(Ordering::SeqCst))
    }

    fn wake_at(&self, _: Time) {}

    fn random(&self) -> u64 {
        0
    }
}

type Tamper = Box<dyn FnMut(&mut OwnedFrame<Header>) -> bool + Send>;

/// A stream link without delay: all frames arrive in order when the lab settles.
#[derive(Default)]
pub(crate) struct Wire {
    max_frame: Option<usize>,
    queue: Mutex<VecDeque<OwnedFrame<Header>>>,
    seen: Mutex<Vec<OwnedFrame<Header>>>,
    tamper: Mutex<Option<Tamper>>,
    full: Mutex<Option<LinkAddress>>,
}

impl Wire {
    /// Changes frames when they arrive; `false` drops the frame.
    pub(crate) fn tamper(
        &self,
        tamper: impl FnMut(&mut OwnedFrame<Header>) -> bool + Send + 'static,
    ) {
        *self.tamper.lock() = Some(Box::new(tamper));
    }

    /// From now on frames of this end find no room; `None` makes room for all.
    pub(crate) fn fill(&self, from: Option<LinkAddress>) {
        *self.full.lock() = from;
    }

    /// Puts a frame onto the stream.
    pub(crate) fn inject(&self, frame: OwnedFrame<Header>) {
        self.queue.lock().push_back(frame);
    }

    /// The messages that were sent so far.
    pub(crate) fn seen(&self) -> Vec<Message> {
        let seen = self.seen.lock();
        seen.iter().map(|frame| frame.header.message).collect()
    }

    /// The Terminates that were sent.
    pub(crate) fn terminates(&self) -> Vec<Terminate> {
        let seen = self.seen.lock();
        let is_terminate = |frame: &&OwnedFrame<Header>| {
            matches!(frame.header.message, Message::Untagged(_, Body::Terminate))
        };
        let said = seen.iter().filter(is_terminate);
        said.map(|frame| terminate::decode(&frame.payload).unwrap().0)
            .collect()
    }
}

impl Link<Header> for Wire {
    fn max_frame(&self) -> Option<usize> {
        self.max_frame
    }

    fn send(&self, frame: Frame<'_, Header>, _: Time) {
        self.seen.lock().push(frame.to_owned());
        self.queue.lock().push_back(frame.to_owned());
    }

    fn try_send(&self, frame: Frame<'_, Header>, now: Time) -> TrySend {
        if *self.full.lock() == Some(frame.from) {
            return TrySend::NoRoom;
        }
        match self.max_frame {
            Some(most) if frame.payload.len() > most => return TrySend::TooLong(most),
            _ => self.send(frame, now),
        }
        TrySend::Sent
    }

    fn progress(&self, now: Time, network: &dyn Deliver<Header>) -> bool {
        let Some(mut frame) = self.queue.lock().pop_front() else {
            return false;
        };
        let passes = self
            .tamper
            .lock()
            .as_mut()
            .is_none_or(|tamper| tamper(&mut frame));
        if passes {
            network.deliver(frame.as_frame(), now);
        }
        true
    }

    fn next_due(&self) -> Option<Time> {
        (!self.queue.lock().is_empty()).then_some(Time(0))
    }
}

/// A completion without the buffers that it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) wr_id: u64,
    pub(crate) status: WcStatus,
    pub(crate) opcode: WcOpcode,
    pub(crate) byte_len: u32,
    pub(crate) flags: WcFlags,
    pub(crate) imm: [u8; 4],
}

/// Layer, type and code of a Terminate.
pub(crate) type Code = (u8, u8, u8);

/// One side of the lab: an open device and a queue pair with some memory.
pub(crate) struct Side {
    pub(crate) device: Arc<Device<Iwarp>>,
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) memory: Memory,
    pub(crate) mr: Mr,
}

impl Side {
    fn new(network: &Arc<Network<Device<Iwarp>>>, number: u64, service: ServiceDelay) -> Self {
        let driver = Iwarp::new(format!("iw{number}"), LinkAddress::InProcess(number))
            .service_delay(service);
        let device = Device::new(driver, network, DeviceOptions::default()).unwrap();
        let ops: Arc<dyn DeviceOps> = Arc::clone(&device) as _;
        let opened = verbs_api::Device::of(ops);
        let context = opened
            .open(&Requirements::everything_of(&opened.attributes()))
            .unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(256).wait().unwrap();
        let options = QpOptions::rc(&cq)
            .operations(operations())
            .max_send_sge(4)
            .max_recv_sge(4);
        let qp = pd.create_qp(options).wait().unwrap();
        let memory = Memory::zeroed(65536).unwrap();
        let mr = pd.register(&memory, ALL).wait().unwrap();
        Self {
            device,
            context,
            pd,
            cq,
            qp,
            memory,
            mr,
        }
    }

    /// Connects to a peer.
    pub(crate) fn connect(&self, peer: &Self, options: PathOptions) {
        self.qp
            .connect(&peer.qp.endpoint().unwrap(), options)
            .wait()
            .unwrap();
    }

    /// Registers all memory again with these rights.
    pub(crate) fn register(&self, access: Access) -> Mr {
        self.pd.register(&self.memory, access).wait().unwrap()
    }

    pub(crate) fn sge(&self, offset: usize, length: u32) -> Sge {
        self.mr.sge(offset, length).unwrap()
    }

    pub(crate) fn remote(&self, offset: u64) -> RemoteAddress {
        self.mr.remote(offset)
    }

    pub(crate) fn post<'a>(&self, request: impl Into<WorkRequest<'a>>) {
        self.qp.post_one(request).unwrap();
    }

    pub(crate) fn receive(&self, wr_id: u64, offset: usize, length: u32) {
        let request = verbs_api::wr::ReceiveRequest::new(wr_id, self.sge(offset, length));
        self.qp.post_receive(request).unwrap();
    }

    pub(crate) fn fill(&self, offset: usize, octets: &[u8]) {
        self.memory.write(offset, octets).unwrap();
    }

    pub(crate) fn octets(&self, offset: usize, length: usize) -> Vec<u8> {
        self.memory.to_vec(offset, length).unwrap()
    }

    pub(crate) fn poll(&self) -> Vec<Seen> {
        poll(&self.cq)
    }

    /// Number and status of the completions.
    pub(crate) fn statuses(&self) -> Vec<(u64, WcStatus)> {
        self.poll()
            .iter()
            .map(|seen| (seen.wr_id, seen.status))
            .collect()
    }

    pub(crate) fn state(&self) -> QpState {
        self.qp.query().unwrap().state
    }

    pub(crate) fn events(&self) -> Vec<EventType> {
        std::iter::from_fn(|| self.context.poll_event())
            .map(|event| event.event_type())
            .collect()
    }

    /// Layer, type and code of the Terminate by which the peer ended the connection.
    pub(crate) fn terminated(&self) -> Option<Code> {
        let qp = self.device.qp(self.qp.qp_num().value()).unwrap();
        let code = Iwarp::terminated(&qp)?.code();
        Some((code.layer, code.etype, code.code))
    }
}

pub(crate) fn poll(cq: &Cq) -> Vec<Seen> {
    let mut slots: Vec<Completion> = (0..64).map(|_| Completion::default()).collect();
    let polled = cq.poll(&mut slots).unwrap();
    let seen = |done: &mut Completion| Seen {
        wr_id: done.wr_id,
        status: done.status,
        opcode: done.opcode,
        byte_len: done.byte_len,
        flags: done.wc_flags,
        imm: done.imm_data,
    };
    polled.iter_mut().map(seen).collect()
}

/// Two devices on one network.
pub(crate) struct Lab {
    clock: Arc<Clock>,
    pub(crate) network: Arc<Network<Device<Iwarp>>>,
    pub(crate) wire: Option<Arc<Wire>>,
    pub(crate) a: Side,
    pub(crate) b: Side,
}

/// Options of a queue pair whose peer may write, read and operate atomically.
pub(crate) fn open() -> PathOptions {
    PathOptions::new().access(Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC)
}

impl Lab {
    /// A connected lab on a direct network.
    pub(crate) fn direct() -> Self {
        Self::unconnected(None, ServiceDelay::default()).connected(open())
    }

    /// A connected lab over a stream with frames of at most `max_frame` bytes.
    pub(crate) fn stream(max_frame: Option<usize>) -> Self {
        Self::over(max_frame, ServiceDelay::default()).connected(open())
    }

    /// A lab over a stream whose responders delay their answers; it is not connected.
    pub(crate) fn over(max_frame: Option<usize>, service: ServiceDelay) -> Self {
        Self::unconnected(
            Some(Wire {
                max_frame,
                ..Wire::default()
            }),
            service,
        )
    }

    pub(crate) fn unconnected(wire: Option<Wire>, service: ServiceDelay) -> Self {
        let clock = Arc::new(Clock::default());
        let wire = wire.map(Arc::new);
        let link = wire.clone().map(|wire| wire as SharedLink<Header>);
        let network = Network::new(Arc::clone(&clock) as Arc<dyn Host>, link);
        let (a, b) = (
            Side::new(&network, 1, service),
            Side::new(&network, 2, service),
        );
        Self {
            clock,
            network,
            wire,
            a,
            b,
        }
    }

    pub(crate) fn connected(self, options: PathOptions) -> Self {
        self.a.connect(&self.b, options);
        self.b.connect(&self.a, options);
        self
    }

    /// Runs a test on a direct network, and over streams with and without division into segments.
    pub(crate) fn everywhere(test: impl Fn(&Self)) {
        test(&Self::direct());
        test(&Self::stream(None));
        test(&Self::stream(Some(7)));
    }

    /// Delivers all frames on their way and handles everything that is due.
    pub(crate) fn settle(&self) {
        self.network.handle_timeout(self.clock.now());
    }

    /// Lets time pass until nothing is due.
    pub(crate) fn run(&self) {
        for _ in 0..10_000 {
            self.settle();
            match self.network.next_timeout() {
                None => return,
                Some(at) => _ = self.clock.0.fetch_max(at.0, Ordering::SeqCst),
            }
        }
        panic!("the network does not become idle");
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.clock
            .0
            .fetch_add(time.as_nanos() as u64, Ordering::SeqCst);
        self.settle();
    }

    pub(crate) fn wire(&self) -> &Arc<Wire> {
        self.wire.as_ref().unwrap()
    }
}

/// Gives the range another key, which the device should refuse.
#[allow(unsafe_code)]
pub(crate) fn with_lkey(sge: Sge, lkey: u32) -> Sge {
    // SAFETY: no buffer pool has this key.
    unsafe { Sge::from_raw(sge.addr(), sge.length(), verbs_api::ids::LKey::new(lkey)) }
}

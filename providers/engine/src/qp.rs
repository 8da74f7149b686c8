//! Queue pairs: posting, completing, flushing, state.
//!
//! There are three locks, each with its state on cache lines of its own: the *requester* (programs that post), the
//! *responder* (the peer's thread) and the producer of the receive ring. A thread takes them in the order requester,
//! responder, completion queue, at most one of each. An action that needs another order is an [effect](crate::effects) and
//! happens with no lock held.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU8, Ordering, fence};
use std::sync::{Arc, Weak};

use verbs_api::memory::{Loan, Span};
use verbs_api::objects::{ObjectId, ObjectKind};
use verbs_api::provider::{EventSink, PostOps, QpInit, QpOps, Reply};
use verbs_api::qp::{QpAttributes, QpCap, QpCounters, QpState, QpStatus, QpType, check_modify_of};
use verbs_api::{
    Access, Features, RKey, VerbError, WcStatus,
    completion::WcOpcode,
    event::{EventSubject, EventType},
    extension::ExtensionOperation,
    ids::{Gid, Psn, Qpn},
    wr::{self, PostReason, ReceiveRequest, SendFlags, WorkRequest},
};

use crate::commands::out_of_range;
use crate::cq::{Cq, Done, Plain};
use crate::device::driver::{Change, Driver, Executed};
use crate::device::{Cx, Device};
use crate::effects::{Effects, QpActions};
use crate::emulation::{QpExtensions, Target};
use crate::fault::Fault;
use crate::key_table::Binding;
use crate::loans;
use crate::lock::{Lock, LockClass, LockGuard};
use crate::log_event;
use crate::operation::{self, Aligned, Octets, TargetMemory};
use crate::pin::pin;
use crate::pool::{PoolRef, PoolWeak, Pooled};
use crate::receive_ring::{Receive, ReceiveConsumer, ReceiveProducer, ReceiveRing, Refused, Taken};
use crate::request::{Op, QueuedRequest, Request, SendExtra};
use crate::rules::{self, Rule};
use crate::slots::{Held, Slots};
use crate::srq::{Srq, SrqFailed};
use crate::sync::{CacheLine, Line, Mutex, prefetch};
use crate::time::Time;
use crate::trace::TracedOperation;

#[cfg(debug_assertions)]
mod broken;

/// The progress of a request in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Phase {
    /// The request has not begun.
    #[default]
    Waiting,
    /// The request has begun, but not all of it has left.
    Started,
    /// All of the request has left.
    Sent,
    /// The request has ended and waits for its turn to complete.
    Done(WcStatus),
}

/// A request of the queue, and its transport's state.
#[derive(Default)]
pub struct Wqe {
    /// The request.
    pub kept: QueuedRequest,
    /// The progress of the request.
    pub phase: Phase,
    /// The first sequence number.
    pub first: u32,
    /// The number of sequence numbers.
    pub count: u32,
    /// Bytes that have left.
    pub sent: u64,
    /// Bytes that have come back.
    pub received: u64,
}

impl Wqe {
    #[inline]
    fn of(request: &Request<'_>) -> Self {
        Self {
            kept: QueuedRequest::keep(request),
            phase: Phase::Waiting,
            first: 0,
            count: 0,
            sent: 0,
            received: 0,
        }
    }
}

/// Counters of the most frequent operations of a requester.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct SendCounters {
    pub writes: u64,
    pub sends: u64,
}

/// State that a requester rarely uses: its other counters, and data that few queue pairs have.
#[derive(Debug, Default)]
pub struct Rare {
    /// The counters of the other operations.
    pub counters: QpCounters,
    /// The `vendor_err` of the next request that fails: the system's error number for the cause.
    pub vendor_err: u32,
    timer: Option<Time>,
    windows: Vec<u32>,
}

/// Requests that wait or are under way, oldest first. The queue allocates memory with the first one.
#[derive(Default)]
#[expect(
    clippy::box_collection,
    reason = "a word in every queue pair instead of four"
)]
pub struct SendQueue(Option<Box<VecDeque<Wqe>>>);

static NO_REQUESTS: VecDeque<Wqe> = VecDeque::new();

impl SendQueue {
    /// Returns whether the queue has no request.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|queue| queue.is_empty())
    }

    /// Removes the oldest request.
    pub fn pop_front(&mut self) -> Option<Wqe> {
        self.0.as_mut()?.pop_front()
    }

    /// Returns the oldest request. This allocates no memory.
    pub fn front_mut(&mut self) -> Option<&mut Wqe> {
        self.0.as_mut()?.front_mut()
    }

    /// Returns all requests. This allocates no memory.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Wqe> {
        self.0.iter_mut().flat_map(|queue| queue.iter_mut())
    }
}

impl Deref for SendQueue {
    type Target = VecDeque<Wqe>;

    fn deref(&self) -> &VecDeque<Wqe> {
        self.0.as_deref().unwrap_or(&NO_REQUESTS)
    }
}

impl DerefMut for SendQueue {
    fn deref_mut(&mut self) -> &mut VecDeque<Wqe> {
        self.0.get_or_insert_default()
    }
}

/// Counters of a responder.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct ReceiveCounters {
    pub receives: u64,
    pub duplicates: u64,
    pub dropped: u64,
}

/// The sending half, under its lock. The fields that each plain request writes are on the first cache line, with the lock;
/// the fields that it only reads follow.
#[repr(C)]
pub struct Requester<D: Driver> {
    /// The transport's own state.
    pub driver: D::Requester,
    /// Counters of the most frequent operations.
    pub counters: SendCounters,
    loans: Loan,
    first_half_failed: bool,
    draining: bool,
    notify_drained: bool,
    /// The peer, if it is reached directly.
    pub direct: Option<QpRef<D>>,
    /// Requests that wait or are under way. It is empty if every request completes at once.
    pub queue: SendQueue,
    /// State that is rarely used, created on first use.
    pub(crate) rare: Option<Box<Rare>>,
}

/// The receiving half, under its lock, in the order of use. A peer that writes uses nothing else of the queue pair, so this
/// also has copies of the fields that the peer needs.
#[repr(C)]
pub struct Responder<D: Driver> {
    /// Its device.
    pub device: Arc<Device<D>>,
    /// Its protection domain.
    pub pd: u32,
    established: bool,
    // The half is established, and no observer sees the receives of the queue pair.
    takes_express: bool,
    last_wqe_told: bool,
    /// The transport's own state.
    pub driver: D::Responder,
    consumer: ReceiveConsumer,
    /// Counters of the receiving half.
    pub counters: ReceiveCounters,
    /// The receive that is being filled.
    pub current: Option<Receive>,
    waiting: Option<Weak<dyn QpActions>>,
}

/// The receiving half, and the state that is read without its lock.
#[repr(C)]
struct ResponderSide<D: Driver> {
    // A copy of the queue pair's state for the peer; it is stored after the original.
    state: AtomicU8,
    lock: Lock<Responder<D>>,
    // A thread that posts receives reads this, so it is not on the cache line of the lock.
    taken: Taken,
}

/// Fields that control verbs use, and the data path never.
struct Cold<D: Driver> {
    is_traced: bool,
    cap: QpCap,
    reserved_wr: u32,
    // Present if slots are not freed as soon as a request has completed.
    slots: Option<Box<Slots>>,
    me: PoolWeak<Qp<D>>,
    id: ObjectId,
    changing: Mutex<Changing>,
    events: Arc<dyn EventSink>,
}

struct Changing {
    attributes: QpAttributes,
    groups: Vec<Gid>,
    destroyed: bool,
}

/// A counted reference to a queue pair.
pub type QpRef<D> = PoolRef<Qp<D>>;

/// A queue pair, one of its device's [pool](crate::pool). The fields that posting reads come first, on one cache line; the
/// line that it writes is the other one of the pair.
#[repr(C, align(128))]
pub struct Qp<D: Driver> {
    // A `QpState`, and `CLOSED`.
    state: AtomicU8,
    sq_sig_all: bool,
    is_direct: bool,
    // An observer sees the completions, so neither side uses `Driver::express`.
    is_watched: bool,
    /// Whether its requests name the shared receive queue for which they are meant.
    pub carries_srqn: bool,
    /// The service type.
    pub qp_type: QpType,
    /// Its number.
    pub qpn: u32,
    /// Its protection domain.
    pub pd: u32,
    /// Its device.
    pub device: Arc<Device<D>>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    extensions: Option<Box<QpExtensions>>,
    cold: Box<Cold<D>>,
    requester: Lock<Requester<D>>,
    // The peer's thread reads this, so it is on no cache line that sending or posting receives writes.
    receives: ReceiveRing,
    producer: CacheLine<Lock<ReceiveProducer>>,
    responder: Line<ResponderSide<D>>,
}

/// A bit next to the state of a queue pair that takes no requests, because its handle is being destroyed or its device is
/// gone. The state itself stays, for requests of the peer.
const CLOSED: u8 = 0x80;

/// The objects with which a queue pair is created, in addition to its options.
pub(crate) struct QpParts {
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) extensions: Option<Box<QpExtensions>>,
    pub(crate) events: Arc<dyn EventSink>,
}

impl<D: Driver> Qp<D> {
    pub(crate) fn new(
        device: &Arc<Device<D>>,
        qpn: u32,
        pd: u32,
        init: &QpInit,
        parts: QpParts,
    ) -> QpRef<D> {
        let extensions = parts.extensions;
        let carries_srqn = extensions.as_ref().is_some_and(|all| all.carries_srqn());
        let is_observed = extensions.as_ref().is_some_and(|all| all.watches());
        let mut cap = init.cap;
        if parts.srq.is_some() || carries_srqn {
            cap.max_recv_wr = 0;
        }
        let requester = Requester {
            driver: D::Requester::default(),
            direct: None,
            queue: SendQueue::default(),
            counters: SendCounters::default(),
            rare: None,
            loans: Loan::NONE,
            first_half_failed: false,
            draining: false,
            notify_drained: false,
        };
        let responder = Responder {
            device: Arc::clone(device),
            pd,
            driver: D::Responder::default(),
            current: None,
            counters: ReceiveCounters::default(),
            consumer: ReceiveConsumer::default(),
            waiting: None,
            established: false,
            takes_express: false,
            last_wqe_told: false,
        };
        let is_traced = device.tracer.get().is_some();
        let qp = device.pool.make(|me| Self {
            state: AtomicU8::new(QpState::Reset as u8),
            sq_sig_all: init.sq_sig_all,
            is_direct: device.network().link().is_none(),
            is_watched: is_traced || device.strict_signaling || is_observed,
            carries_srqn,
            qp_type: init.qp_type,
            qpn,
            pd,
            device: Arc::clone(device),
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            srq: parts.srq,
            extensions,
            requester: Lock::new(LockClass::Requester, requester),
            responder: Line(ResponderSide {
                state: AtomicU8::new(QpState::Reset as u8),
                lock: Lock::new(LockClass::Responder, responder),
                taken: Taken::default(),
            }),
            receives: ReceiveRing::new(cap.max_recv_wr, cap.max_recv_sge),
            producer: CacheLine(Lock::new(LockClass::Receive, ReceiveProducer::default())),
            cold: Box::new(Cold {
                is_traced,
                cap,
                reserved_wr: init.reserved_wr,
                slots: device.strict_signaling.then(Box::default),
                me,
                id: init.id,
                changing: Mutex::new(Changing {
                    attributes: QpAttributes::new(),
                    groups: Vec::new(),
                    destroyed: false,
                }),
                events: parts.events,
            }),
        });
        qp.send_cq.attach(qpn, qp.actions());
        if !Arc::ptr_eq(&qp.send_cq, &qp.recv_cq) {
            qp.recv_cq.attach(qpn, qp.actions());
        }
        qp
    }

    /// Returns the current state. While the caller holds a lock of the queue pair, the state can change only to an error.
    #[inline]
    pub fn state(&self) -> QpState {
        QpState::from_code(self.state.load(Ordering::Acquire) & !CLOSED).unwrap_or(QpState::Err)
    }

    #[inline]
    fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Returns whether the state is RTS, for a peer that is about to lock the receiving half. This reads the copy next to
    /// that lock.
    #[inline]
    pub fn is_rts_for_peer(&self) -> bool {
        self.responder.0.state.load(Ordering::Acquire) == QpState::Rts as u8
    }

    fn set_state(&self, state: QpState) {
        let keep = |now: u8| Some(now & CLOSED | state as u8);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.state.fetch_update(set, fetch, keep);
        self.responder.0.state.store(state as u8, Ordering::Release);
    }

    /// Returns a counted reference to this queue pair.
    pub fn shared(&self) -> Option<QpRef<D>> {
        self.cold.me.upgrade()
    }

    /// Returns a reference to this queue pair that keeps nothing alive.
    pub fn downgrade(&self) -> PoolWeak<Self> {
        self.cold.me.clone()
    }

    fn actions(&self) -> Weak<dyn QpActions> {
        let me: Weak<Pooled<Self>> = self.cold.me.owner().clone();
        me
    }

    /// Locks the sending half.
    #[inline]
    pub fn requester(&self) -> LockGuard<'_, Requester<D>> {
        self.requester.lock()
    }

    /// Locks the receiving half.
    #[inline]
    pub fn responder(&self) -> LockGuard<'_, Responder<D>> {
        self.responder.0.lock.lock()
    }

    /// Reports an event of this queue pair.
    pub fn event(&self, event: EventType, effects: &mut Effects) {
        effects.event(&self.cold.events, event, EventSubject::Object(self.cold.id));
    }

    // ---- sending half

    #[inline(always)] // Each caller passes a constant for `is_whole`, so posting one request does not test it.
    fn post(
        &self,
        requests: &[WorkRequest<'_>],
        is_whole: bool,
    ) -> Result<(), (usize, PostReason)> {
        // The pin is a barrier: without this, nothing after it would be fetched before it.
        prefetch(std::ptr::from_ref(self).cast());
        self.requester.prefetch();
        // `Cx::run` would cost every request half a nanosecond for its closure.
        let pin = pin();
        let mut cx = Cx::new(&self.device, &pin);
        let result = {
            let mut requester = self.requester();
            if let Some(peer) = &requester.direct {
                pin.look_ahead(&peer.responder);
            }
            let result = match is_whole {
                true => self.check_whole(&requester, requests),
                false => Ok(()),
            };
            let result = result.and_then(|()| self.post_locked(&mut requester, requests, &mut cx));
            if D::waits(&requester) {
                self.advance(&mut requester, &mut cx);
            }
            result
        };
        let effects = Some(cx.effects).filter(|effects| !effects.is_empty());
        drop(pin);
        if let Some(effects) = effects {
            effects.run();
        }
        if !self.is_direct {
            self.device.network().send_off();
        }
        result
    }

    /// Checks that the queue pair takes all of these requests now. A request that will complete at once counts as one that
    /// holds its slot, so that a refusal does not depend on how fast the device is.
    #[cold]
    fn check_whole(
        &self,
        requester: &Requester<D>,
        requests: &[WorkRequest<'_>],
    ) -> Result<(), (usize, PostReason)> {
        if self.is_closed() {
            return Err((0, PostReason::InvalidHandle));
        }
        match self.state() {
            QpState::Rts | QpState::Sqd => {}
            QpState::Sqe | QpState::Err => return Ok(()),
            state @ (QpState::Reset | QpState::Init | QpState::Rtr) => {
                return Err((0, PostReason::InvalidState(state)));
            }
        }
        let mut held = self.held(requester);
        for (index, request) in requests.iter().map(Request::of).enumerate() {
            let checked = (self.device.driver().check_post(self, &request))
                .and_then(|()| self.check_room(held, &request));
            checked.map_err(|reason| (index, reason))?;
            let is_reserved = request.flags.contains(SendFlags::RESERVED);
            held.add(is_reserved);
        }
        Ok(())
    }

    #[inline]
    fn post_locked(
        &self,
        requester: &mut Requester<D>,
        requests: &[WorkRequest<'_>],
        cx: &mut Cx<'_, D>,
    ) -> Result<(), (usize, PostReason)> {
        let mut index = 0;
        while index < requests.len() {
            if self.is_direct
                && !self.is_watched
                && !rules::is_any_broken()
                && requester.queue.is_empty()
                && self.state.load(Ordering::Acquire) == QpState::Rts as u8
            {
                index += D::express(self, requester, &requests[index..], cx);
            }
            let Some(posted) = requests.get(index) else {
                break;
            };
            self.post_one(requester, &Request::of(posted), cx)
                .map_err(|reason| (index, reason))?;
            index += 1;
        }
        Ok(())
    }

    /// Returns whether a successful request with these flags has a completion.
    #[inline]
    pub fn is_signaled(&self, flags: SendFlags) -> bool {
        if flags.contains(SendFlags::FIRST_HALF) {
            return false;
        }
        self.sq_sig_all || flags.contains(SendFlags::SIGNALED)
    }

    /// Adds the completion of a successful request that retires no buffers.
    #[inline]
    pub fn push_plain(&self, wr_id: u64, opcode: WcOpcode, byte_len: u32, cx: &mut Cx<'_, D>) {
        let plain = Plain::new(self.qpn, opcode, false);
        self.send_cq
            .push_plain(wr_id, plain, byte_len, &mut cx.effects);
    }

    #[inline(never)]
    fn post_one(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
        cx: &mut Cx<'_, D>,
    ) -> Result<(), PostReason> {
        if self.is_closed() {
            return Err(PostReason::InvalidHandle);
        }
        match self.state() {
            QpState::Rts => {
                self.device.driver().check_post(self, request)?;
                #[cfg(debug_assertions)]
                if let Some(posted) = self.post_broken(requester, request, cx) {
                    return posted;
                }
                self.post_ready(requester, request, cx)
            }
            QpState::Sqd => {
                self.device.driver().check_post(self, request)?;
                self.take_room(requester, request)?;
                requester.push(request);
                Ok(())
            }
            QpState::Sqe | QpState::Err => {
                self.flush_requester(requester, cx);
                if let Some(slots) = &self.cold.slots {
                    slots.take(request.flags.contains(SendFlags::RESERVED));
                }
                self.complete(requester, request, flushed(), 0, cx);
                Ok(())
            }
            state @ (QpState::Reset | QpState::Init | QpState::Rtr) => {
                Err(PostReason::InvalidState(state))
            }
        }
    }

    // Posts a checked request of a queue pair in RTS.
    #[inline]
    fn post_ready(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
        cx: &mut Cx<'_, D>,
    ) -> Result<(), PostReason> {
        self.take_room(requester, request)?;
        if requester.is_next(request) {
            self.execute(requester, request, cx);
        } else {
            requester.push(request);
        }
        Ok(())
    }

    #[inline]
    fn execute(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
        cx: &mut Cx<'_, D>,
    ) {
        match D::execute(self, requester, request, cx) {
            Executed::Done(status, bytes) => self.complete(requester, request, status, bytes, cx),
            Executed::Keep => requester.push(request),
            Executed::Sent { first, count } => requester.push_sent(request, first, count),
        }
    }

    #[inline]
    fn take_room(&self, requester: &Requester<D>, request: &Request<'_>) -> Result<(), PostReason> {
        let needed = slots_needed(request);
        let for_ordinary = self.cold.cap.max_send_wr - self.cold.reserved_wr;
        let is_strict = self.is_watched && self.cold.slots.is_some();
        if !is_strict && requester.queue.len() as u32 + needed <= for_ordinary {
            return Ok(());
        }
        self.take_scarce_room(requester, request)
    }

    // A request that holds reserved slots takes none of the others.
    #[cold]
    fn take_scarce_room(
        &self,
        requester: &Requester<D>,
        request: &Request<'_>,
    ) -> Result<(), PostReason> {
        self.check_room(self.held(requester), request)?;
        if let Some(slots) = &self.cold.slots {
            slots.take(request.flags.contains(SendFlags::RESERVED));
        }
        Ok(())
    }

    // Returns how many slots of the queue are taken.
    fn held(&self, requester: &Requester<D>) -> Held {
        match &self.cold.slots {
            Some(slots) => slots.held(),
            None => requester.held(),
        }
    }

    // Checks that there is a slot for one more request.
    fn check_room(&self, held: Held, request: &Request<'_>) -> Result<(), PostReason> {
        let Held { ordinary, reserved } = held;
        let needed = slots_needed(request);
        let max = self.cold.cap.max_send_wr;
        if ordinary + reserved + needed > max {
            return Err(PostReason::QueueFull { max });
        }
        let is_reserved = request.flags.contains(SendFlags::RESERVED);
        let max = max - self.cold.reserved_wr;
        if !is_reserved && ordinary + needed > max {
            return Err(PostReason::QueueFull { max });
        }
        Ok(())
    }

    #[inline]
    fn free_slot(&self, request: &Request<'_>, is_told: bool) {
        if self.is_watched
            && let Some(slots) = &self.cold.slots
        {
            slots.complete(request.flags.contains(SendFlags::RESERVED), is_told);
        }
    }

    /// Lets the transport continue with the queue, and checks whether the queue has drained.
    pub fn advance(&self, requester: &mut Requester<D>, cx: &mut Cx<'_, D>) {
        if matches!(self.state(), QpState::Rts | QpState::Sqd) {
            D::pump(self, requester, cx);
        }
        self.check_drained(requester, cx);
    }

    fn check_drained(&self, requester: &mut Requester<D>, cx: &mut Cx<'_, D>) {
        let idle = requester
            .queue
            .front()
            .is_none_or(|wqe| wqe.phase == Phase::Waiting);
        if requester.draining && idle && self.state() == QpState::Sqd {
            requester.draining = false;
            if std::mem::take(&mut requester.notify_drained) {
                self.event(EventType::SqDrained, &mut cx.effects);
            }
        }
    }

    /// Completes a request that is in no queue: adds its completion if it has one, and handles a failure.
    #[inline]
    pub fn complete(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
        status: WcStatus,
        bytes: u32,
        cx: &mut Cx<'_, D>,
    ) {
        if self.is_watched {
            self.tell_sent(request, status);
        }
        if status.is_success() {
            requester.count(&request.op);
            requester.first_half_failed = false;
            if !self.is_signaled(request.flags) {
                self.free_slot(request, false);
                requester.retire(request.loan);
                return;
            }
            return self.push_send_completion(requester, request, status, bytes, cx);
        }
        self.complete_failed(requester, request, status, cx);
    }

    #[cold]
    fn complete_failed(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
        status: WcStatus,
        cx: &mut Cx<'_, D>,
    ) {
        let flushed = status == WcStatus::WrFlushErr;
        if !flushed {
            log_event!(
                WARN,
                "a request fails",
                qp = Qpn::new(self.qpn),
                wr_id = request.wr_id,
                status = status
            );
            self.enter_error(self.qp_type != QpType::Rc);
        }
        let second_half = request.flags.contains(SendFlags::SECOND_HALF);
        if second_half && flushed && std::mem::take(&mut requester.first_half_failed) {
            self.free_slot(request, false);
            requester.retire(request.loan);
        } else {
            requester.first_half_failed = request.flags.contains(SendFlags::FIRST_HALF);
            self.push_send_completion(requester, request, status, 0, cx);
        }
        if !flushed {
            D::before_flush(self, requester, status, cx);
            self.flush_requester(requester, cx);
            self.flush_later(&mut cx.effects);
        }
    }

    #[inline]
    fn push_send_completion(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
        status: WcStatus,
        bytes: u32,
        cx: &mut Cx<'_, D>,
    ) {
        let loan = std::mem::take(&mut requester.loans);
        let vendor_err = match (status.is_success(), &mut requester.rare) {
            (false, Some(rare)) => std::mem::take(&mut rare.vendor_err),
            _ => 0,
        };
        let done = Done {
            wr_id: request.wr_id,
            status,
            opcode: request.op.wc_opcode(),
            byte_len: bytes,
            qpn: self.qpn,
            // The request's own buffers come first, then those of the requests that it retires.
            loan: loans::join(request.loan, loan),
            vendor_err,
            ..Done::default()
        };
        self.free_slot(request, true);
        self.send_cq.push(&done, &mut cx.effects);
    }

    /// Completes the oldest request of the queue.
    pub fn complete_front(
        &self,
        requester: &mut Requester<D>,
        status: WcStatus,
        bytes: u32,
        cx: &mut Cx<'_, D>,
    ) {
        if let Some(wqe) = requester.queue.pop_front() {
            self.complete(requester, &wqe.kept.request(), status, bytes, cx);
        }
    }

    /// Completes the oldest requests as far as they have ended.
    pub fn complete_done(&self, requester: &mut Requester<D>, cx: &mut Cx<'_, D>) {
        while let Some(&Wqe {
            phase: Phase::Done(status),
            received,
            ..
        }) = requester.queue.front()
        {
            self.complete_front(requester, status, received as u32, cx);
        }
    }

    /// Flushes the remaining requests of the send queue.
    fn flush_requester(&self, requester: &mut Requester<D>, cx: &mut Cx<'_, D>) {
        while let Some(wqe) = requester.queue.pop_front() {
            // A request that had ended before the error keeps its own result.
            let (status, bytes) = match wqe.phase {
                Phase::Done(status) if status.is_success() => (status, wqe.received as u32),
                _ => (flushed(), 0),
            };
            self.complete(requester, &wqe.kept.request(), status, bytes, cx);
        }
    }

    fn flush_later(&self, effects: &mut Effects) {
        if let Some(me) = self.shared() {
            effects.flush(me.into_owner());
        }
    }

    /// Puts the queue pair into the error state, or only the send queue of an unreliable one. An effect flushes the
    /// remaining requests.
    pub fn enter_error(&self, send_queue_only: bool) {
        let to = match send_queue_only {
            true => QpState::Sqe,
            false => QpState::Err,
        };
        let change = |state: u8| {
            let from = QpState::from_code(state & !CLOSED)?;
            let may = match to {
                QpState::Sqe => matches!(from, QpState::Rts | QpState::Sqd),
                _ => !matches!(from, QpState::Reset | QpState::Err),
            };
            may.then_some(state & CLOSED | to as u8)
        };
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        if let Ok(from) = self.state.fetch_update(set, fetch, change) {
            self.responder.0.state.store(to as u8, Ordering::Release);
            let from = QpState::from_code(from & !CLOSED).unwrap_or(QpState::Err);
            self.log_state(from, to);
        }
    }

    #[cold]
    fn log_state(&self, from: QpState, to: QpState) {
        log_event!(
            DEBUG,
            "a queue pair changes its state",
            qp = Qpn::new(self.qpn),
            from = from,
            to = to
        );
    }

    /// Carries out a fast-register, an invalidate or a bind.
    pub fn local_operation(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
        cx: &Cx<'_, D>,
    ) -> WcStatus {
        let result = match request.op {
            Op::Extension(operation) => self.extension_operation(request, operation, cx),
            _ => self.manage_memory(requester, request),
        };
        let status = match result {
            Ok(()) => WcStatus::Success,
            Err(_) if matches!(request.op, Op::Bind { .. }) => WcStatus::MwBindErr,
            // A failed memory management operation has no status of its own in verbs: docs/decisions.md, 4.
            Err(_) => WcStatus::LocQpOpErr,
        };
        if self.cold.is_traced {
            self.trace(request, status);
        }
        status
    }

    fn manage_memory(
        &self,
        requester: &mut Requester<D>,
        request: &Request<'_>,
    ) -> Result<(), Fault> {
        let keys = self.device.memory_management().ok_or(Fault::Operation)?;
        let mut used = Features::empty();
        match request.op {
            Op::FastRegister {
                key,
                access,
                iova,
                length,
            } => {
                let pages = request.pages.ok_or(Fault::Operation)?;
                used.set(Features::BLOCK_LIST, pages.is_block_list());
                used.set(Features::SG_GAPS, pages.has_gaps());
                used.set(Features::ZBVA, access.contains(Access::ZERO_BASED));
                self.check_claimed(used)?;
                keys.fast_register(key.value(), self.pd, pages, access, iova, length)
            }
            Op::LocalInvalidate(key) => {
                let fenced = request.flags.contains(SendFlags::FENCE);
                used.set(Features::LOCAL_INVALIDATE_FENCE, fenced);
                self.check_claimed(used)?;
                keys.invalidate_local(key.value(), self.pd, self.qpn)
            }
            Op::Bind {
                window,
                region,
                addr,
                length,
                access,
            } => {
                used.set(Features::ZBVA, access.contains(Access::ZERO_BASED));
                self.check_claimed(used)?;
                let binding = Binding {
                    region: region.value(),
                    addr,
                    length,
                    access,
                    pd: self.pd,
                    qpn: self.qpn,
                };
                keys.bind(window.value(), &binding)?;
                requester.note_window(window.value());
                Ok(())
            }
            _ => Err(Fault::Operation),
        }
    }

    // Carries out an operation at its poster's device: on that device's memory, to which it has all rights.
    fn extension_operation(
        &self,
        request: &Request<'_>,
        operation: &'static ExtensionOperation,
        cx: &Cx<'_, D>,
    ) -> Result<(), Fault> {
        let emulation = self.device.operation(operation);
        let emulation = emulation.ok_or(Fault::UnknownOperation)?;
        let message = self.gather_message(request, operation, cx)?;
        let sink = self.gather_answer(request, operation, cx)?;
        let users = (self.pd, self.qpn);
        let keys = self.device.keys();
        let memory = TargetMemory::new(keys, cx.pin, users, Access::REMOTE, Aligned::Memory);
        let mut answer = Octets::new();
        operation::respond(emulation, &message, request.held, &memory, &mut answer)?;
        operation::place(emulation, answer, &sink);
        Ok(())
    }

    // A program cannot use a feature that it was not granted; and a device refuses features that it does not report,
    // whichever program asks.
    fn check_claimed(&self, used: Features) -> Result<(), Fault> {
        if self.device.features().contains(used) {
            Ok(())
        } else {
            Err(Fault::Operation)
        }
    }

    #[cold]
    fn tell_sent(&self, request: &Request<'_>, status: WcStatus) {
        if self.cold.is_traced && !request.op.is_local() {
            self.trace(request, status);
        }
        if let Some(extensions) = &self.extensions {
            extensions.sent(status);
        }
    }

    // A flushed request was not executed.
    #[cold]
    fn trace(&self, request: &Request<'_>, status: WcStatus) {
        if let Some(trace) = self.device.tracer.get()
            && status != WcStatus::WrFlushErr
        {
            trace(TracedOperation::of(self.qpn, request, status));
        }
    }

    /// Requests a [`Driver::handle_timeout`] at `at`, unless an earlier one is pending.
    pub fn wake_at(&self, requester: &mut Requester<D>, at: Time) {
        let timer = &mut requester.rare().timer;
        if timer.is_some_and(|timer| timer <= at) {
            return;
        }
        *timer = Some(at);
        let me = self.cold.me.clone();
        let job = Box::new(move |now| {
            if let Some(qp) = me.upgrade() {
                qp.timeout(now);
            }
        });
        self.device.network().timers().add(at, job);
    }

    fn timeout(&self, now: Time) {
        Cx::run(&self.device, Some(now), |cx| {
            let mut requester = self.requester();
            requester.rare().timer = None;
            if matches!(self.state(), QpState::Rts | QpState::Sqd) {
                D::handle_timeout(self, &mut requester, now, cx);
                self.check_drained(&mut requester, cx);
            }
        });
    }

    // ---- receiving half

    fn post_receives(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)> {
        if self.is_closed() {
            return Err((0, PostReason::InvalidHandle));
        }
        if self.srq.is_some() {
            return Err((0, PostReason::HasSrq));
        }
        if self.state() == QpState::Reset {
            return Err((0, PostReason::InvalidState(QpState::Reset)));
        }
        let mut producer = self.producer.0.lock();
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            let (taken, receive) = (&self.responder.0.taken, Receive::of(request));
            if let Err(refused) = self.receives.post(&mut producer, taken, receive) {
                let max = self.cold.cap.max_recv_wr;
                let reason = match refused {
                    Refused::Full => PostReason::QueueFull { max },
                    Refused::Memory => PostReason::NO_MEMORY,
                };
                result = Err((index, reason));
                break;
            }
        }
        drop(producer);
        let starved = self.receives.take_starved();
        if starved || matches!(self.state(), QpState::Err | QpState::Reset) {
            self.after_receives();
        }
        result
    }

    #[cold]
    fn after_receives(&self) {
        let mut effects = Effects::default();
        let waiting = self.responder().waiting.take();
        if let Some(peer) = waiting.and_then(|peer| peer.upgrade()) {
            effects.resume(peer);
        }
        match self.state() {
            QpState::Err => self.flush_later(&mut effects),
            QpState::Reset => self.drop_receives(&mut self.responder()),
            _ => {}
        }
        effects.run();
        self.device.network().progress();
    }

    /// Returns the protection domain of the entries of receives: that of the shared queue, if there is one.
    pub fn receive_pd(&self) -> u32 {
        if self.carries_srqn {
            return self.target_pd();
        }
        self.srq.as_ref().map_or(self.pd, |srq| srq.pd)
    }

    // Returns the protection domain of the shared receive queue that the current request names.
    #[cold]
    fn target_pd(&self) -> u32 {
        let named = self.named_target();
        named.map_or(self.pd, |target| target.srq.pd)
    }

    /// Returns the protection domain in which a peer's requests are carried out.
    #[inline]
    pub fn remote_pd(&self) -> u32 {
        if self.carries_srqn {
            return self.target_pd();
        }
        self.pd
    }

    /// Returns the hooks of extensions, if there are any.
    #[cold]
    pub fn extensions(&self) -> Option<&QpExtensions> {
        self.extensions.as_deref()
    }

    fn named_target(&self) -> Option<Arc<Target>> {
        self.extensions()?.named()
    }

    /// Returns whether the queue pair receives requests that name a shared receive queue.
    pub fn is_target(&self) -> bool {
        self.extensions().is_some_and(QpExtensions::is_target)
    }

    #[cold]
    fn take_named_receive(&self, waiting: Option<&Self>, effects: &mut Effects) -> Option<Receive> {
        let target = self.named_target()?;
        self.take_shared(&target.srq, waiting, effects)
    }

    fn take_shared(
        &self,
        srq: &Srq,
        waiting: Option<&Self>,
        effects: &mut Effects,
    ) -> Option<Receive> {
        let taken = srq.take(waiting.map(Self::actions), effects);
        taken.unwrap_or_else(|SrqFailed| {
            self.shared()?.into_owner().fatal(effects);
            None
        })
    }

    /// The shared queue from which receives are taken.
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.srq.as_ref()
    }

    /// Returns whether receives are taken from a shared queue, or from several.
    pub fn has_srq(&self) -> bool {
        self.srq.is_some() || self.carries_srqn
    }

    /// Returns how many receives are posted on the queue pair's own queue.
    pub fn receives_waiting(&self, responder: &Responder<D>) -> usize {
        let producer = self.producer.0.lock();
        producer.ahead_of(&responder.consumer) as usize
    }

    /// Returns whether a receive is posted.
    pub fn has_receive(&self) -> bool {
        if self.carries_srqn {
            let named = self.named_target();
            return named.is_some_and(|target| !target.srq.is_empty());
        }
        match &self.srq {
            Some(srq) => !srq.is_empty(),
            None => self.receives.has_one(&self.responder().consumer),
        }
    }

    /// Takes the next receive. If there is none, `waiting` is resumed when one has been posted.
    #[inline]
    pub fn take_receive(
        &self,
        responder: &mut Responder<D>,
        waiting: Option<&Self>,
        effects: &mut Effects,
    ) -> Option<Receive> {
        if let Some(srq) = &self.srq {
            return self.take_shared(srq, waiting, effects);
        }
        if self.carries_srqn {
            return self.take_named_receive(waiting, effects);
        }
        if let Some(receive) = self.take_own(responder) {
            return Some(receive);
        }
        let waiting = waiting?;
        responder.waiting = Some(waiting.actions());
        if self.receives.set_starved_and_recheck(&responder.consumer) {
            return self.take_own(responder);
        }
        None
    }

    #[inline]
    fn take_own(&self, responder: &mut Responder<D>) -> Option<Receive> {
        let taken = &self.responder.0.taken;
        self.receives.take(&mut responder.consumer, taken)
    }

    /// Returns the memory of the next receive of this queue pair's own queue, if it is one flat stretch with room for
    /// `length` bytes. The receive stays queued until it is [taken](Self::take_express_receive).
    #[inline]
    pub fn express_receive<'p>(
        &self,
        responder: &mut Responder<D>,
        length: u32,
        cx: &Cx<'p, D>,
    ) -> Option<Span<'p>> {
        if self.srq.is_some() || responder.current.is_some() {
            return None;
        }
        let sge = self.receives.peek_one(&responder.consumer)?;
        let (keys, access) = (self.device.keys(), Access::LOCAL_WRITE);
        let room = keys.flat(cx.pin, sge.lkey, sge.addr, sge.length, self.pd, access)?;
        (room.len() >= length as usize).then_some(room)
    }

    /// Takes and completes the receive that [`express_receive`](Self::express_receive) found.
    #[inline]
    pub fn take_express_receive(
        &self,
        responder: &mut Responder<D>,
        byte_len: u32,
        solicited: bool,
        cx: &mut Cx<'_, D>,
    ) {
        let wr_id = (self.receives).pop_one(&mut responder.consumer, &self.responder.0.taken);
        let plain = Plain::new(self.qpn, WcOpcode::Recv, solicited);
        self.recv_cq
            .push_plain(wr_id, plain, byte_len, &mut cx.effects);
    }

    /// Completes a receive.
    #[inline]
    pub fn complete_receive(&self, receive: &Receive, done: Done, cx: &mut Cx<'_, D>) {
        let loan = Loan::from_bits(receive.loan);
        let done = Done {
            wr_id: receive.wr_id,
            qpn: self.qpn,
            loan,
            ..done
        };
        if self.is_watched {
            return self.complete_watched(&done, cx);
        }
        self.recv_cq.push(&done, &mut cx.effects);
    }

    #[cold]
    fn complete_watched(&self, done: &Done, cx: &mut Cx<'_, D>) {
        if let Some(extensions) = &self.extensions {
            extensions.received(done.status);
        }
        let named = self.named_target();
        let cq = named.as_ref().map_or(&self.recv_cq, |target| &target.cq);
        cq.push(done, &mut cx.effects);
        // The completion queue does not know its targets, so a target checks for a failure when it needs the queue, and
        // fails like the queue's own queue pairs.
        if named.is_some() && cq.has_failed() {
            let me = self.actions();
            cx.effects.later(move |effects| {
                if let Some(me) = me.upgrade() {
                    me.fatal(effects);
                }
            });
        }
    }

    /// A valid packet has arrived: the first one in RTR is reported.
    #[inline]
    pub fn note_arrival(&self, responder: &mut Responder<D>, cx: &mut Cx<'_, D>) {
        if !responder.established {
            self.note_first_arrival(responder, cx);
        }
    }

    #[cold]
    fn note_first_arrival(&self, responder: &mut Responder<D>, cx: &mut Cx<'_, D>) {
        responder.established = true;
        responder.takes_express = !self.is_watched;
        if self.state() == QpState::Rtr {
            self.event(EventType::CommEst, &mut cx.effects);
        }
        D::first_arrival(self, cx);
    }

    /// The peer broke a rule: puts the queue pair into the error state. `status` goes to the receive that is being filled;
    /// if there is none, `event` is reported. An effect flushes the remaining requests.
    pub fn fail_responder(
        &self,
        responder: &mut Responder<D>,
        status: WcStatus,
        event: EventType,
        cx: &mut Cx<'_, D>,
    ) {
        if matches!(self.state(), QpState::Reset | QpState::Err) {
            return;
        }
        log_event!(
            WARN,
            "a request of the peer fails",
            qp = Qpn::new(self.qpn),
            status = status
        );
        self.enter_error(false);
        match responder.current.take() {
            Some(receive) => {
                let done = Done {
                    status,
                    opcode: WcOpcode::Recv,
                    ..Done::default()
                };
                self.complete_receive(&receive, done, cx);
            }
            None => self.event(event, &mut cx.effects),
        }
        self.flush_later(&mut cx.effects);
    }

    /// Flushes the receive queue, beginning with the receive that is being filled. Receives of a shared queue stay there,
    /// and the event reports that the queue pair holds none of them any longer.
    fn flush_responder(&self, responder: &mut Responder<D>, cx: &mut Cx<'_, D>) {
        let flushed = Done {
            status: WcStatus::WrFlushErr,
            opcode: WcOpcode::Recv,
            ..Done::default()
        };
        if let Some(receive) = responder.current.take() {
            self.complete_receive(&receive, flushed, cx);
        }
        while let Some(receive) = self.take_own(responder) {
            self.complete_receive(&receive, flushed, cx);
        }
        let shares = self.srq.is_some() || self.is_target();
        if shares && !std::mem::replace(&mut responder.last_wqe_told, true) {
            self.event(EventType::QpLastWqeReached, &mut cx.effects);
        }
    }

    fn drop_receives(&self, responder: &mut Responder<D>) {
        let current = responder.current.take();
        let rest = std::iter::from_fn(|| self.take_own(responder));
        for receive in current.into_iter().chain(rest) {
            loans::release(Loan::from_bits(receive.loan));
        }
    }

    // ---- control

    fn apply(&self, given: &QpAttributes) -> Result<(), VerbError> {
        let mut changing = self.cold.changing.lock();
        if changing.destroyed {
            return Err(VerbError::InvalidHandle(ObjectKind::Qp));
        }
        let driver = self.device.driver();
        let port = self.device.port_attributes();
        if let Some(path) = &given.ah_attr {
            driver.check_path(path)?;
        }
        let last = port.pkeys.len() as u64 - 1;
        if let Some(index) = given.pkey_index.filter(|&index| u64::from(index) > last) {
            return Err(out_of_range("pkey_index", index, 0u8, last));
        }
        let path_mtu = given
            .path_mtu
            .map(|mtu| driver.path_mtu(mtu, port.active_mtu));
        let given = QpAttributes { path_mtu, ..*given };
        let all = changing.attributes.merged(&given);
        Cx::run(&self.device, None, |cx| {
            let to = self.change(&given, &all, cx)?;
            changing.attributes = match to {
                QpState::Reset => QpAttributes::new(),
                _ => all,
            };
            changing.attributes.qp_state = Some(to);
            changing.attributes.cur_qp_state = None;
            drop(changing);
            fence(Ordering::SeqCst);
            if let (QpState::Init, true, Some(me)) = (to, self.has_failed_queue(), self.shared()) {
                me.into_owner().fatal(&mut cx.effects);
            }
            if let (QpState::Rtr | QpState::Rts, Some(me)) = (to, self.shared()) {
                D::peer_ready(&me, cx);
                cx.effects.resume(me.into_owner());
            }
            Ok::<_, VerbError>(())
        })?;
        self.device.network().progress();
        Ok(())
    }

    // Checks a modify and carries it out, with both halves locked.
    fn change(
        &self,
        given: &QpAttributes,
        all: &QpAttributes,
        cx: &mut Cx<'_, D>,
    ) -> Result<QpState, VerbError> {
        let limits = self.device.limits();
        let initiator = u64::from(limits.max_qp_init_rd_atom);
        let target = u64::from(limits.max_qp_rd_atom);
        let variant = self.extensions().and_then(|all| all.variant);
        let (requester, responder) = (&mut *self.requester(), &mut *self.responder());
        let from = self.state();
        let limits = (initiator, target, 1);
        let to = check_modify_of(self.qp_type, variant, from, given, limits)?;
        if to == QpState::Init && self.has_failed_queue() {
            return Err(VerbError::CqOverrun);
        }
        self.enter(
            requester,
            responder,
            &Change {
                from,
                to,
                given,
                all,
            },
            cx,
        );
        Ok(to)
    }

    fn has_failed_queue(&self) -> bool {
        self.send_cq.has_failed() || self.recv_cq.has_failed()
    }

    // Changes the state, beginning with the transport's part. The caller holds both halves' locks.
    fn enter(
        &self,
        requester: &mut Requester<D>,
        responder: &mut Responder<D>,
        change: &Change<'_>,
        cx: &mut Cx<'_, D>,
    ) {
        D::modify(self, requester, responder, change, cx);
        self.set_state(change.to);
        self.log_state(change.from, change.to);
        match change.to {
            QpState::Reset => {
                D::disconnect(self, requester, cx);
                self.reset(requester, responder);
            }
            QpState::Err => {
                D::disconnect(self, requester, cx);
                requester.direct = None;
                self.flush_requester(requester, cx);
                self.flush_responder(responder, cx);
            }
            QpState::Sqd => {
                if change.from == QpState::Rts {
                    requester.draining = true;
                    requester.notify_drained = change.given.en_sqd_async_notify == Some(true);
                }
                self.check_drained(requester, cx);
            }
            QpState::Rtr => {
                responder.established = false;
                responder.takes_express = false;
            }
            QpState::Rts => requester.draining = false,
            _ => {}
        }
    }

    fn reset(&self, requester: &mut Requester<D>, responder: &mut Responder<D>) {
        while let Some(wqe) = requester.queue.pop_front() {
            loans::release(wqe.kept.loan);
        }
        loans::release(std::mem::take(&mut requester.loans));
        let windows = requester.rare.as_mut().map(|rare| &mut rare.windows);
        let windows = windows.map(std::mem::take).unwrap_or_default();
        self.device.keys().unbind_all_of(&windows, self.qpn);
        requester.direct = None;
        requester.first_half_failed = false;
        requester.draining = false;
        if let Some(slots) = &self.cold.slots {
            slots.reset();
        }
        requester.driver = D::Requester::default();
        self.drop_receives(responder);
        responder.driver = D::Responder::default();
        responder.established = false;
        responder.takes_express = false;
        responder.last_wqe_told = false;
        responder.waiting = None;
        if let Some(extensions) = &self.extensions {
            extensions.take_receives_from(None);
        }
    }

    /// Returns the counters of the operations through this queue pair.
    pub fn counters(&self) -> QpCounters {
        let (send, others) = {
            let requester = self.requester();
            let others = requester.rare.as_ref().map(|rare| rare.counters);
            (requester.counters, others.unwrap_or_default())
        };
        let receive = self.responder().counters;
        QpCounters {
            sends: send.sends,
            writes: send.writes,
            receives: receive.receives,
            duplicates: receive.duplicates,
            dropped: receive.dropped,
            ..others
        }
    }

    pub(crate) fn remove(&self, effects: &mut Effects) {
        self.enter_error(false);
        self.flush_later(effects);
    }
}

// Returns the status of requests after a failed one.
#[inline]
fn flushed() -> WcStatus {
    if rules::is_broken(Rule::FlushBehindError) {
        WcStatus::Success
    } else {
        WcStatus::WrFlushErr
    }
}

// Returns how many slots must be free for a request: its own, and that of a second half that is posted next.
#[inline]
fn slots_needed(request: &Request<'_>) -> u32 {
    1 + u32::from(request.flags.contains(SendFlags::FIRST_HALF))
}

impl<D: Driver> Responder<D> {
    /// Returns whether a valid packet has arrived since the queue pair became ready to receive, so that the peer may use
    /// the [express path](Driver::express).
    #[inline]
    pub fn takes_express(&self) -> bool {
        self.takes_express
    }
}

impl<D: Driver> Requester<D> {
    /// Returns whether the next completion returns only its own buffers.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.loans.is_none() && !self.first_half_failed
    }

    // Returns whether a request need not wait for an earlier one.
    #[inline]
    fn is_next(&self, request: &Request<'_>) -> bool {
        self.queue.is_empty() || !D::waits(self) && !request.op.is_local()
    }

    // The next completion returns the buffers of a request that has none of its own.
    #[inline]
    fn retire(&mut self, loan: Loan) {
        if !loan.is_none() {
            self.loans = loans::join(self.loans, loan);
        }
    }

    // Returns how many slots of the queue are taken.
    fn held(&self) -> Held {
        let mut held = Held::default();
        for wqe in self.queue.iter() {
            held.add(wqe.kept.flags.contains(SendFlags::RESERVED));
        }
        held
    }

    fn push(&mut self, request: &Request<'_>) {
        self.queue.push_back(Wqe::of(request));
    }

    fn push_sent(&mut self, request: &Request<'_>, first: u32, count: u32) {
        self.queue.push_back(Wqe {
            phase: Phase::Sent,
            first,
            count,
            sent: request.length,
            ..Wqe::of(request)
        });
    }

    fn note_window(&mut self, window: u32) {
        let windows = &mut self.rare().windows;
        if !windows.iter().any(|known| known >> 8 == window >> 8) {
            windows.push(window);
        }
    }

    /// Returns the state that is rarely used.
    #[inline]
    pub fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    #[inline]
    fn count(&mut self, op: &Op) {
        let counter = match op {
            Op::Send(SendExtra::Invalidate(_)) => &mut self.rare().counters.sends_with_invalidate,
            Op::Send(_) => &mut self.counters.sends,
            Op::Write(..) | Op::AtomicWrite(_) | Op::Flush { .. } => &mut self.counters.writes,
            Op::Read(_, invalidate) => {
                let others = &mut self.rare().counters;
                others.local_invalidates += u64::from(invalidate.is_some());
                &mut others.reads
            }
            Op::CompareSwap(..) | Op::FetchAdd(..) => &mut self.rare().counters.atomics,
            Op::FastRegister { .. } => &mut self.rare().counters.fast_registers,
            Op::LocalInvalidate(_) => &mut self.rare().counters.local_invalidates,
            Op::Bind { .. } => &mut self.rare().counters.binds,
            Op::Extension(_) => &mut self.rare().counters.extensions,
        };
        *counter += 1;
    }
}

impl<D: Driver> QpActions for Pooled<Qp<D>> {
    fn flush(self: Arc<Self>, effects: &mut Effects) {
        let pin = pin();
        let mut cx = Cx::new(&self.device, &pin);
        std::mem::swap(&mut cx.effects, effects);
        let state = self.state();
        if matches!(state, QpState::Err | QpState::Sqe) {
            let mut requester = self.requester();
            if state == QpState::Err {
                D::disconnect(&self, &mut requester, &mut cx);
                requester.direct = None;
            }
            self.flush_requester(&mut requester, &mut cx);
        }
        if state == QpState::Err {
            self.flush_responder(&mut self.responder(), &mut cx);
        }
        std::mem::swap(&mut cx.effects, effects);
    }

    fn resume(self: Arc<Self>, effects: &mut Effects) {
        let pin = pin();
        let mut cx = Cx::new(&self.device, &pin);
        std::mem::swap(&mut cx.effects, effects);
        self.advance(&mut self.requester(), &mut cx);
        std::mem::swap(&mut cx.effects, effects);
    }

    fn polled(&self) {
        if let Some(slots) = &self.cold.slots {
            slots.polled();
        }
    }

    fn fatal(self: Arc<Self>, effects: &mut Effects) {
        if !matches!(self.state(), QpState::Reset | QpState::Err) {
            self.enter_error(false);
            self.event(EventType::QpFatal, effects);
            effects.flush(self);
        }
    }
}

impl<D: Driver> PostOps for Qp<D> {
    fn post_send(&self, requests: &[WorkRequest<'_>]) -> Result<(), (usize, PostReason)> {
        self.post(requests, false)
    }

    fn post_send_whole(&self, requests: &[WorkRequest<'_>]) -> Result<(), (usize, PostReason)> {
        self.post(requests, true)
    }

    fn post_recv(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)> {
        self.post_receives(requests)
    }
}

impl<D: Driver> QpOps for Pooled<Qp<D>> {
    fn poster(&self) -> &(dyn PostOps + 'static) {
        &**self
    }

    fn admit(&self, open: bool) {
        if open {
            self.state.fetch_and(!CLOSED, Ordering::AcqRel);
        } else {
            self.state.fetch_or(CLOSED, Ordering::AcqRel);
        }
    }

    fn qp_num(&self) -> Qpn {
        Qpn::new(self.qpn)
    }

    fn starting_psn(&self) -> Psn {
        Psn::new(self.device.network().timers().random() as u32)
    }

    fn cap(&self) -> QpCap {
        self.cold.cap
    }

    fn modify(&self, attributes: QpAttributes, reply: Reply<()>) {
        let Some(qp) = self.shared() else { return };
        self.device
            .commands()
            .run(reply, move || qp.apply(&attributes));
    }

    fn keep_receives(&self) {
        D::keep_receives(self);
    }

    fn query(&self) -> Result<QpStatus, VerbError> {
        let attributes = self.cold.changing.lock().attributes;
        let draining = self.requester().draining;
        let state = self.state();
        // In any other state nothing drains, because a failure has ended the draining.
        Ok(QpStatus {
            state,
            sq_draining: draining && state == QpState::Sqd,
            attributes,
            cap: self.cold.cap,
        })
    }

    fn counters(&self) -> QpCounters {
        (**self).counters()
    }

    fn bind_mw(&self, bind: wr::BindWindow<'_>) -> Result<RKey, PostReason> {
        let key = bind.key();
        self.post(&[bind.into()], false)
            .map_err(|(_, reason)| reason)?;
        Ok(key)
    }

    fn attach_multicast(&self, group: Gid, reply: Reply<()>) {
        let Some(qp) = self.shared() else { return };
        self.device.commands().run(reply, move || {
            let result = qp.device.join_group(group, &qp);
            if result.is_ok() {
                qp.cold.changing.lock().groups.push(group);
            }
            result
        });
    }

    fn detach_multicast(&self, group: Gid, reply: Reply<()>) {
        let Some(qp) = self.shared() else { return };
        self.device.commands().run(reply, move || {
            qp.device.leave_group(group, qp.qpn)?;
            qp.cold
                .changing
                .lock()
                .groups
                .retain(|joined| *joined != group);
            Ok(())
        });
    }

    fn destroy(&self, reply: Reply<()>) {
        let Some(qp) = self.shared() else { return };
        self.device.commands().run_last(reply, move |reply| {
            let groups = {
                let mut changing = qp.cold.changing.lock();
                changing.destroyed = true;
                std::mem::take(&mut changing.groups)
            };
            for group in groups {
                let _ = qp.device.leave_group(group, qp.qpn);
            }
            let attributes = QpAttributes::new().qp_state(QpState::Reset);
            Cx::run(&qp.device, None, |cx| {
                let (requester, responder) = (&mut *qp.requester(), &mut *qp.responder());
                let change = Change {
                    from: qp.state(),
                    to: QpState::Reset,
                    given: &attributes,
                    all: &attributes,
                };
                qp.enter(requester, responder, &change, cx);
            });
            qp.device.forget_qp(&qp);
            let network = qp.device.network();
            network.progress();
            if let Some(link) = network.link() {
                link.drain();
            }
            reply.send(Ok(()));
        });
    }
}

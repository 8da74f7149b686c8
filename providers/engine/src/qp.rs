//! Queue pairs: creation, and the parts that their operations share.
//!
//! There are three locks, each with its state on cache lines of its own: the *requester* (programs that post), the
//! *responder* (the peer's thread) and the producer of the receive ring. A thread takes them in the order requester,
//! responder, completion queue, at most one of each. An action that needs another order is an [effect](crate::effects) and
//! happens with no lock held.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use verbs_api::event::{EventSubject, EventType};
use verbs_api::ids::Gid;
use verbs_api::objects::ObjectId;
use verbs_api::provider::{AttachedCounts, EventSink, QpInit};
use verbs_api::qp::{QpAttributes, QpCap, QpCounters, QpState, QpType};

use crate::cq::Cq;
use crate::device::Device;
use crate::device::driver::Driver;
use crate::effects::{Effects, QpActions};
use crate::emulation::QpExtensions;
use crate::lock::{Lock, LockClass, LockGuard};
use crate::pool::{PoolRef, PoolWeak, Pooled};
use crate::receive_ring::{ReceiveProducer, ReceiveRing, Taken};
use crate::srq::Srq;
use crate::sync::{CacheLine, Line, Mutex};

#[cfg(debug_assertions)]
mod broken;
mod complete;
mod local;
mod post;
mod progress;
mod requester;
mod responder;
mod state;
mod verbs;

pub use requester::{Phase, Rare, Requester, SendCounters, SendQueue, Wqe};
pub use responder::{ReceiveCounters, Responder};

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
    // An observer or a counter sees the completions, so neither side uses `Driver::express`. It is set before traffic begins.
    is_watched: AtomicBool,
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
    me: PoolWeak<Qp<D>>,
    id: ObjectId,
    // Counters of completions: each counts operations that no other does.
    counts: Mutex<Vec<AttachedCounts>>,
    changing: Mutex<Changing>,
    events: Arc<dyn EventSink>,
}

struct Changing {
    attributes: QpAttributes,
    groups: Vec<Gid>,
    destroyed: bool,
}

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
        let is_traced = device.tracer.get().is_some();
        let qp = device.pool.make(|me| Self {
            state: AtomicU8::new(QpState::Reset as u8),
            sq_sig_all: init.sq_sig_all,
            is_direct: device.network().link().is_none(),
            is_watched: AtomicBool::new(is_traced || is_observed),
            carries_srqn,
            qp_type: init.qp_type,
            qpn,
            pd,
            device: Arc::clone(device),
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            srq: parts.srq,
            extensions,
            requester: Lock::new(
                LockClass::Requester,
                Requester::new(device.strict_signaling),
            ),
            responder: Line(ResponderSide {
                state: AtomicU8::new(QpState::Reset as u8),
                lock: Lock::new(LockClass::Responder, Responder::new(device, pd)),
                taken: Taken::default(),
            }),
            receives: ReceiveRing::new(cap.max_recv_wr, cap.max_recv_sge),
            producer: CacheLine(Lock::new(LockClass::Receive, ReceiveProducer::default())),
            cold: Box::new(Cold {
                is_traced,
                cap,
                reserved_wr: init.reserved_wr,
                me,
                id: init.id,
                counts: Mutex::new(Vec::new()),
                changing: Mutex::new(Changing {
                    attributes: QpAttributes::new(),
                    groups: Vec::new(),
                    destroyed: false,
                }),
                events: parts.events,
            }),
        });
        qp.send_cq.attach(qp.actions());
        if !Arc::ptr_eq(&qp.send_cq, &qp.recv_cq) {
            qp.recv_cq.attach(qp.actions());
        }
        qp
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

    #[inline]
    fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
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

    /// Returns the hooks of extensions, if there are any.
    #[cold]
    pub fn extensions(&self) -> Option<&QpExtensions> {
        self.extensions.as_deref()
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
}

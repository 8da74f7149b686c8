//! The sending half of a queue pair: its requests, and the state under its lock.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use verbs_api::memory::Loan;
use verbs_api::qp::QpCounters;
use verbs_api::{WcStatus, wr::SendFlags};

use super::QpRef;
use crate::device::driver::Driver;
use crate::loans;
use crate::request::{Op, QueuedRequest, Request, SendExtra};
use crate::slots::{Held, Slots};
use crate::time::Time;

/// The sending half, under its lock. The fields that each plain request writes are on the first cache line, with the lock;
/// the fields that it only reads follow.
#[repr(C)]
pub struct Requester<D: Driver> {
    /// The transport's own state.
    pub driver: D::Requester,
    /// Counters of the most frequent operations.
    pub counters: SendCounters,
    pub(super) loans: Loan,
    pub(super) first_half_failed: bool,
    pub(super) draining: bool,
    pub(super) notify_drained: bool,
    /// The peer, if it is reached directly.
    pub direct: Option<QpRef<D>>,
    /// Requests that wait or are under way. It is empty if every request completes at once.
    pub queue: SendQueue,
    /// State that is rarely used, created on first use.
    pub(crate) rare: Option<Box<Rare>>,
}

impl<D: Driver> Requester<D> {
    /// If `is_strict`, a request holds its slot until the program has polled a completion.
    pub(super) fn new(is_strict: bool) -> Self {
        let rare = is_strict.then(|| Rare {
            slots: Some(Slots::default()),
            ..Rare::default()
        });
        Self {
            driver: D::Requester::default(),
            direct: None,
            queue: SendQueue::default(),
            counters: SendCounters::default(),
            rare: rare.map(Box::new),
            loans: Loan::NONE,
            first_half_failed: false,
            draining: false,
            notify_drained: false,
        }
    }

    /// Returns whether the next completion returns only its own buffers.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.loans.is_none() && !self.first_half_failed
    }

    // Returns whether a request need not wait for an earlier one.
    #[inline]
    pub(super) fn is_next(&self, request: &Request<'_>) -> bool {
        self.queue.is_empty() || !D::waits(self) && !request.op.is_local()
    }

    // The next completion returns the buffers of a request that has none of its own.
    #[inline]
    pub(super) fn retire(&mut self, loan: Loan) {
        if !loan.is_none() {
            self.loans = loans::join(self.loans, loan);
        }
    }

    // Returns how many slots of the queue are taken.
    pub(super) fn held(&mut self) -> Held {
        if let Some(slots) = self.slots() {
            return slots.held();
        }
        let mut held = Held::default();
        for wqe in self.queue.iter() {
            held.add(wqe.kept.flags.contains(SendFlags::RESERVED));
        }
        held
    }

    // The slots that requests hold; `None` if a request frees its slot when it completes.
    #[inline]
    pub(super) fn slots(&mut self) -> Option<&mut Slots> {
        Rare::slots(&mut self.rare)
    }

    // Notes that the oldest request has completed, and the position of its completion, whose poll frees its slot; `None` if it
    // has no completion.
    #[inline]
    pub(super) fn free_slot(&mut self, flags: SendFlags, at: Option<u64>) {
        if let Some(slots) = self.slots() {
            slots.complete(flags.contains(SendFlags::RESERVED), at);
        }
    }

    pub(super) fn push(&mut self, request: &Request<'_>) {
        self.queue.push_back(Wqe::of(request));
    }

    pub(super) fn push_sent(&mut self, request: &Request<'_>, first: u32, count: u32) {
        self.queue.push_back(Wqe {
            phase: Phase::Sent,
            first,
            count,
            sent: request.length,
            ..Wqe::of(request)
        });
    }

    pub(super) fn note_window(&mut self, window: u32) {
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
    pub(super) fn count(&mut self, op: &Op) {
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

/// State that a requester rarely uses: its other counters, and data that few queue pairs have.
#[derive(Debug, Default)]
pub struct Rare {
    /// The counters of the other operations.
    pub counters: QpCounters,
    /// The `vendor_err` of the next request that fails: the system's error number for the cause.
    pub vendor_err: u32,
    /// The slots that requests hold until the program has polled; `None` if a request frees its slot when it completes.
    slots: Option<Slots>,
    pub(super) timer: Option<Time>,
    pub(super) windows: Vec<u32>,
}

impl Rare {
    #[inline]
    pub(crate) fn slots(of: &mut Option<Box<Self>>) -> Option<&mut Slots> {
        of.as_mut()?.slots.as_mut()
    }
}

/// Counters of the most frequent operations of a requester.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct SendCounters {
    pub writes: u64,
    pub sends: u64,
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

//! Routes completions to the futures of their requests: one router for each queue on which a request was submitted.
//!
//! A submitted request carries a [`Ticket`] in place of its `wr_id`. Every poll drains the provider's queue through the
//! router: a completion with a ticket goes to its slot and wakes one task; one of the program's own requests is queued, in
//! order, for the program's next poll, or for the stream of its queue pair where there is one.
//!
//! No wake-up is lost, because each step that could miss work is followed by another check: a task registers its waker and
//! then checks that the provider is armed; the provider is armed and then polled again; a drain that was requested while
//! another one runs makes that one start over.

use std::collections::{HashMap, VecDeque};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Poll, Waker};
use std::{array, mem};

use super::CqObject;
use crate::control::handler_scope;
use crate::error::VerbError;
use crate::ids::Qpn;
use crate::lock::Mutex;
use crate::object_id::ObjectId;
use crate::wc::{Completion, Notify};

/// How many completions are polled from the provider's queue in one call.
const BATCH: usize = 16;

/// Identifies a submitted request: the `wr_id` that the provider sees in place of the program's.
///
/// Bit 63 is set, bits 32 to 62 count how often the slot was used before, and bits 0 to 31 are the slot's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl Ticket {
    const MARK: u64 = 1 << 63;
    const GENERATIONS: u32 = u32::MAX >> 1;

    const fn new(index: u32, generation: u32) -> Self {
        Self(Self::MARK | (generation as u64) << 32 | index as u64)
    }

    fn of_wr_id(wr_id: u64) -> Option<Self> {
        (wr_id & Self::MARK != 0).then_some(Self(wr_id))
    }

    pub(crate) const fn wr_id(self) -> u64 {
        self.0
    }

    const fn index(self) -> usize {
        self.0 as u32 as usize
    }

    const fn generation(self) -> u32 {
        (self.0 >> 32) as u32 & Self::GENERATIONS
    }
}

pub(crate) struct Router {
    // Drains that were requested and have not ended. The thread that raises it from 0 to 1 drains for all others too.
    claims: AtomicU32,
    // The provider is armed, and its notification has not come yet.
    is_armed: AtomicBool,
    table: Mutex<Table>,
}

struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    // Slots whose completion is still to come, and streams that have not ended.
    outstanding: u32,
    plain: VecDeque<Completion>,
    streams: HashMap<Qpn, Inbox>,
    // Completions of the program's own requests, in `plain` and in all streams.
    held: usize,
    is_program_armed: bool,
    failure: Option<VerbError>,
}

struct Slot {
    generation: u32,
    // The queue pair, and the program's own `wr_id`.
    owner: ObjectId,
    wr_id: u64,
    state: State,
}

/// The completions of one queue pair that its stream has not returned yet.
struct Inbox {
    owner: ObjectId,
    queue: VecDeque<Completion>,
    waker: Option<Waker>,
    // The queue pair was reset or destroyed.
    has_ended: bool,
}

enum State {
    Free,
    Waiting(Option<Waker>),
    // Which waiter gets a completion.
    Abandoned,
    Done(Completion),
    // No completion will come.
    Ended,
}

/// Which waiter a completion goes to.
enum Route {
    Future(Option<Waker>),
    Nobody,
    Program,
}

/// The wakers to call, and whether to notify the program, after the table has been unlocked.
#[derive(Default)]
struct Wakes {
    wakers: [Option<Waker>; BATCH],
    notifies_program: bool,
}

impl Router {
    pub(super) fn new() -> Self {
        let table = Table {
            slots: Vec::new(),
            free: Vec::new(),
            outstanding: 0,
            plain: VecDeque::new(),
            streams: HashMap::new(),
            held: 0,
            // The program may have armed the queue before there was a router.
            is_program_armed: true,
            failure: None,
        };
        Self {
            claims: AtomicU32::new(0),
            is_armed: AtomicBool::new(false),
            table: Mutex::new(table),
        }
    }

    /// Takes a free slot for a request of the queue pair `owner`; `wr_id` is the program's own identifier of the request.
    pub(crate) fn open(&self, owner: ObjectId, wr_id: u64) -> Ticket {
        let mut table = self.lock();
        table.outstanding += 1;
        let index = table.free.pop().unwrap_or_else(|| {
            table.slots.push(Slot {
                generation: 0,
                owner,
                wr_id,
                state: State::Free,
            });
            table.slots.len() as u32 - 1
        });
        let slot = &mut table.slots[index as usize];
        (slot.owner, slot.wr_id) = (owner, wr_id);
        slot.state = State::Waiting(None);
        Ticket::new(index, slot.generation)
    }

    /// Frees the slot of a request that the provider refused to post.
    pub(crate) fn withdraw(&self, ticket: Ticket) {
        let mut table = self.lock();
        // Otherwise it has ended with its queue pair.
        if let State::Waiting(_) = table.release(ticket.index()) {
            table.outstanding -= 1;
        }
    }

    /// Polls the future of a request: takes the request's completion, or registers `waker`.
    pub(crate) fn poll(
        &self,
        cq: &CqObject,
        ticket: Ticket,
        waker: &Waker,
    ) -> Poll<Result<Completion, VerbError>> {
        self.drain_unless_drained(cq);
        let mut seen = self.look(ticket, waker);
        if seen.is_pending() && !self.is_armed.load(Ordering::SeqCst) {
            self.drain(cq);
            seen = self.look(ticket, waker);
        }
        if seen.is_ready() {
            return seen;
        }
        match self.check(cq) {
            Ok(()) => Poll::Pending,
            Err(error) => {
                self.abandon(ticket);
                Poll::Ready(Err(error))
            }
        }
    }

    fn look(&self, ticket: Ticket, waker: &Waker) -> Poll<Result<Completion, VerbError>> {
        let mut waker = Some(waker.clone());
        let mut table = self.lock();
        let slot = &mut table.slots[ticket.index()];
        if let State::Waiting(known) = &mut slot.state {
            // The previous waker is dropped with the table unlocked.
            mem::swap(known, &mut waker);
            return Poll::Pending;
        }
        let wr_id = slot.wr_id;
        let state = table.release(ticket.index());
        drop(table);
        Poll::Ready(match state {
            State::Done(mut completion) => {
                completion.wr_id = wr_id;
                Ok(completion)
            }
            _ => Err(VerbError::Canceled),
        })
    }

    /// Notes that the future of a request was dropped, so that the request's completion is discarded.
    pub(crate) fn drop_future(&self, cq: &CqObject, ticket: Ticket) {
        let is_outstanding = self.abandon(ticket);
        // Its buffers are returned only when the completion is polled: make sure that happens.
        if is_outstanding && !self.is_armed.load(Ordering::SeqCst) {
            self.drain(cq);
        }
    }

    // Returns whether the completion is still to come.
    fn abandon(&self, ticket: Ticket) -> bool {
        let mut table = self.lock();
        let slot = &mut table.slots[ticket.index()];
        let is_outstanding = matches!(slot.state, State::Waiting(_));
        let before = if is_outstanding {
            mem::replace(&mut slot.state, State::Abandoned)
        } else {
            table.release(ticket.index())
        };
        // A completion and a waker are dropped with the table unlocked.
        drop(table);
        drop(before);
        is_outstanding
    }

    // Whether completions still come.
    fn check(&self, cq: &CqObject) -> Result<(), VerbError> {
        let failure = self.lock().failure.clone();
        failure.map_or_else(|| cq.node.check_live(), Err)
    }

    /// Routes the completions of this queue pair's own requests to a stream from now on. Returns `false` if the queue pair
    /// has a stream already.
    pub(crate) fn open_stream(&self, owner: ObjectId, qp_num: Qpn) -> bool {
        let mut table = self.lock();
        if table.streams.contains_key(&qp_num) {
            return false;
        }
        let inbox = Inbox {
            owner,
            queue: VecDeque::new(),
            waker: None,
            has_ended: false,
        };
        table.streams.insert(qp_num, inbox);
        table.outstanding += 1;
        true
    }

    /// Polls the stream of a queue pair: takes its next completion, or registers `waker`.
    pub(crate) fn poll_stream(
        &self,
        cq: &CqObject,
        qp_num: Qpn,
        waker: &Waker,
    ) -> Poll<Result<Completion, VerbError>> {
        self.drain_unless_drained(cq);
        let mut seen = self.look_into(qp_num, waker);
        if seen.is_pending() && !self.is_armed.load(Ordering::SeqCst) {
            self.drain(cq);
            seen = self.look_into(qp_num, waker);
        }
        if seen.is_ready() {
            return seen;
        }
        match self.check(cq) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn look_into(&self, qp_num: Qpn, waker: &Waker) -> Poll<Result<Completion, VerbError>> {
        let mut waker = Some(waker.clone());
        let mut table = self.lock();
        let Some(inbox) = table.streams.get_mut(&qp_num) else {
            return Poll::Ready(Err(VerbError::Canceled));
        };
        match inbox.queue.pop_front() {
            Some(completion) => {
                table.held -= 1;
                Poll::Ready(Ok(completion))
            }
            None if inbox.has_ended => Poll::Ready(Err(VerbError::Canceled)),
            None => {
                // The previous waker is dropped with the table unlocked.
                mem::swap(&mut inbox.waker, &mut waker);
                Poll::Pending
            }
        }
    }

    /// Ends the stream of a queue pair, which was dropped: completions that it has not returned go to the program's polls.
    pub(crate) fn close_stream(&self, cq: &CqObject, qp_num: Qpn) {
        let mut table = self.lock();
        let Some(mut inbox) = table.streams.remove(&qp_num) else {
            return;
        };
        table.outstanding -= u32::from(!inbox.has_ended);
        table.plain.append(&mut inbox.queue);
        let notifies = !table.plain.is_empty() && mem::take(&mut table.is_program_armed);
        drop(table);
        if notifies {
            cq.extra.sink.notify_program();
        }
    }

    /// Ends the submitted requests and the stream of the queue pair `owner`, because no further completion will come.
    pub(crate) fn end(&self, owner: ObjectId) {
        let mut wakers = Vec::new();
        let mut table = self.lock();
        let is_its = |inbox: &&mut Inbox| inbox.owner == owner && !inbox.has_ended;
        if let Some(inbox) = table.streams.values_mut().find(is_its) {
            inbox.has_ended = true;
            wakers.extend(inbox.waker.take());
            table.outstanding -= 1;
        }
        for index in 0..table.slots.len() {
            let slot = &mut table.slots[index];
            if slot.owner != owner {
                continue;
            }
            match &mut slot.state {
                State::Waiting(waker) => {
                    wakers.extend(waker.take());
                    slot.state = State::Ended;
                }
                State::Abandoned => drop(table.release(index)),
                _ => continue,
            }
            table.outstanding -= 1;
        }
        drop(table);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes every future and every stream, because the queue has failed or its device was removed.
    pub(super) fn wake_all(&self) {
        let wakers: Vec<_> = self.lock().wakers().collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Handles a notification of the provider's queue. Returns whether the caller has to call [`drain`](Self::drain),
    /// because no other thread is draining.
    pub(super) fn on_notification(&self) -> bool {
        self.is_armed.store(false, Ordering::SeqCst);
        let add = |claims| (claims > 0).then_some(claims + 1);
        let (set, fetched) = (Ordering::SeqCst, Ordering::SeqCst);
        self.claims.fetch_update(set, fetched, add).is_err()
    }

    /// Returns completions of the program's own requests: what the program's poll gets.
    pub(super) fn poll_program<'s>(
        &self,
        cq: &CqObject,
        slots: &'s mut [Completion],
    ) -> Result<&'s mut [Completion], VerbError> {
        self.drain_unless_drained(cq);
        slots.iter_mut().for_each(Completion::settle_loan);
        let mut table = self.lock();
        let filled = slots.len().min(table.plain.len());
        table.held -= filled;
        for (slot, completion) in slots.iter_mut().zip(table.plain.drain(..filled)) {
            *slot = completion;
        }
        let failure = table.failure.clone();
        drop(table);
        match failure.map_or_else(|| cq.node.check_live(), Err) {
            Err(error) if filled == 0 => Err(error),
            _ => Ok(&mut slots[..filled]),
        }
    }

    /// Removes the completions of submitted requests from a batch that was polled before the router existed, and routes
    /// them to their futures.
    pub(super) fn sift<'s>(
        &self,
        cq: &CqObject,
        polled: &'s mut [Completion],
    ) -> &'s mut [Completion] {
        let mut kept = 0;
        for index in 0..polled.len() {
            let route = self.lock().route(&mut polled[index]);
            match route {
                Route::Program => {
                    polled.swap(kept, index);
                    kept += 1;
                }
                Route::Future(Some(waker)) => waker.wake(),
                Route::Future(None) | Route::Nobody => {}
            }
        }
        self.drain(cq);
        &mut polled[..kept]
    }

    /// Arms the queue for one notification of the program about its own requests; returns whether a completion of one is
    /// present already.
    pub(super) fn arm_program(&self, cq: &CqObject) -> bool {
        let mut table = self.lock();
        if table.has_ready() {
            return true;
        }
        table.is_program_armed = true;
        drop(table);
        self.drain(cq);
        self.lock().has_ready()
    }

    /// Moves all completions from the provider's queue to their waiters; if another thread is doing this, that one starts
    /// over.
    pub(super) fn drain(&self, cq: &CqObject) {
        if self.claims.fetch_add(1, Ordering::SeqCst) == 0 {
            self.drain_claimed(cq);
        }
    }

    fn drain_unless_drained(&self, cq: &CqObject) {
        let claimed = self
            .claims
            .compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
        if claimed.is_ok() {
            self.drain_claimed(cq);
        }
    }

    // No lock is held while the provider is called, because it may notify meanwhile, on this thread too. Handlers of the
    // program run afterwards, so that one that panics or is slow delays no drain.
    fn drain_claimed(&self, cq: &CqObject) {
        handler_scope(|| {
            let mut claims = 1;
            loop {
                self.drain_once(cq);
                let (ended, more) = (Ordering::SeqCst, Ordering::SeqCst);
                match self.claims.compare_exchange(claims, 0, ended, more) {
                    Ok(_) => return,
                    Err(more) => claims = more,
                }
            }
        });
    }

    fn drain_once(&self, cq: &CqObject) {
        let mut slots: [Completion; BATCH] = array::from_fn(|_| Completion::default());
        while cq.node.is_live() || cq.node.is_removed() {
            match cq.ops.poll(&mut slots) {
                Ok(0) if self.arm_provider(cq) => {}
                Ok(0) => return,
                Ok(filled) => self.distribute(cq, &mut slots[..filled]),
                Err(error) => return self.fail(cq, error),
            }
        }
    }

    // Arms the provider if a notification is awaited; returns whether to poll again.
    fn arm_provider(&self, cq: &CqObject) -> bool {
        let is_awaited = cq.node.is_live() && self.lock().is_awaited();
        if !is_awaited || self.is_armed.swap(true, Ordering::SeqCst) {
            return false;
        }
        let armed = cq.ops.arm(Notify::Next);
        if !matches!(armed, Ok(false)) {
            // No notification will come, or none is needed.
            self.is_armed.store(false, Ordering::SeqCst);
        }
        armed.unwrap_or_else(|error| {
            self.fail(cq, error);
            false
        })
    }

    fn distribute(&self, cq: &CqObject, polled: &mut [Completion]) {
        polled.iter_mut().for_each(Completion::settle_loan);
        let room = cq.ops.cqe() as usize;
        let mut wakes = Wakes::default();
        let mut has_overrun = false;
        let mut table = self.lock();
        for (completion, wake) in polled.iter_mut().zip(&mut wakes.wakers) {
            match table.route(completion) {
                Route::Future(waker) => *wake = waker,
                // Left in its place, and dropped with the table unlocked.
                Route::Nobody => {}
                Route::Program if table.held < room => {
                    table.held += 1;
                    match table.stream_of(completion.qp_num) {
                        Some(inbox) => {
                            inbox.queue.push_back(mem::take(completion));
                            *wake = inbox.waker.take();
                        }
                        None => {
                            table.plain.push_back(mem::take(completion));
                            wakes.notifies_program |= mem::take(&mut table.is_program_armed);
                        }
                    }
                }
                Route::Program => has_overrun = true,
            }
        }
        drop(table);
        wakes.wakers.into_iter().flatten().for_each(Waker::wake);
        if wakes.notifies_program {
            cq.extra.sink.notify_program();
        }
        if has_overrun {
            self.fail(cq, VerbError::CqOverrun);
        }
    }

    fn fail(&self, cq: &CqObject, error: VerbError) {
        let mut table = self.lock();
        if table.failure.is_some() {
            return;
        }
        table.failure = Some(error);
        let wakers: Vec<_> = table.wakers().collect();
        drop(table);
        wakers.into_iter().for_each(Waker::wake);
        cq.extra.sink.notify_program();
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Table {
    fn is_awaited(&self) -> bool {
        self.outstanding > 0 || self.is_program_armed
    }

    fn stream_of(&mut self, qp_num: Qpn) -> Option<&mut Inbox> {
        if self.streams.is_empty() {
            return None;
        }
        let inbox = self.streams.get_mut(&qp_num);
        inbox.filter(|inbox| !inbox.has_ended)
    }

    fn has_ready(&self) -> bool {
        !self.plain.is_empty() || self.failure.is_some()
    }

    // Takes the completion if a future waits for it.
    fn route(&mut self, completion: &mut Completion) -> Route {
        let Some(ticket) = Ticket::of_wr_id(completion.wr_id) else {
            return Route::Program;
        };
        let index = ticket.index();
        let Some(slot) = self.slots.get_mut(index) else {
            return Route::Program;
        };
        if slot.generation != ticket.generation() {
            // The ticket was used before, or was never issued.
            return if slot.generation > ticket.generation() {
                Route::Nobody
            } else {
                Route::Program
            };
        }
        match &mut slot.state {
            State::Waiting(waker) => {
                let waker = waker.take();
                slot.state = State::Done(mem::take(completion));
                self.outstanding -= 1;
                Route::Future(waker)
            }
            State::Abandoned => {
                self.outstanding -= 1;
                self.release(index);
                Route::Nobody
            }
            State::Free => Route::Program,
            State::Done(_) | State::Ended => Route::Nobody,
        }
    }

    fn release(&mut self, index: usize) -> State {
        let slot = &mut self.slots[index];
        slot.generation = (slot.generation + 1) & Ticket::GENERATIONS;
        self.free.push(index as u32);
        mem::replace(&mut slot.state, State::Free)
    }

    fn wakers(&mut self) -> impl Iterator<Item = Waker> + '_ {
        let slots = self.slots.iter_mut();
        let of_requests = slots.filter_map(|slot| match &mut slot.state {
            State::Waiting(waker) => waker.take(),
            _ => None,
        });
        let inboxes = self.streams.values_mut();
        of_requests.chain(inboxes.filter_map(|inbox| inbox.waker.take()))
    }
}

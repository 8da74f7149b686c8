//! A network: the devices that reach one another, the link between them, and what is due when.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use verbs_api::ids::LinkAddress;

use crate::link::{Deliver, Frame, SharedLink};
use crate::pin;
use crate::pool::{PoolRef, PoolWeak};
use crate::sync::Mutex;
use crate::time::{Host, Time};
use crate::timers::{Job, Timers};

/// What a network joins: a device, as far as the network knows it.
pub trait Member: Send + Sync + Sized + 'static {
    /// A frame's header, as a value.
    type Header: 'static;
    /// A queue pair.
    type Qp: Send + Sync + 'static;

    /// Whether frames for this address are for it: it has the address, and has not been removed.
    fn takes(&self, address: LinkAddress) -> bool;

    /// A frame arrived, at the moment that the link was told.
    fn handle_frame(&self, frame: Frame<'_, Self::Header>, now: Time);

    /// Nothing more has arrived for now: what a queue pair kept back until then leaves.
    fn settle(qp: &PoolRef<Self::Qp>, now: Time);
}

/// Devices of one driver that reach one another.
///
/// Without a link the network is *direct*: a frame is handed to its receiver as it is, on the sender's thread. With one,
/// frames go over it. Sans-IO: its owner calls [`handle_timeout`](Progress::handle_timeout) when something is due.
pub struct Network<M: Member> {
    devices: RwLock<BTreeMap<LinkAddress, Weak<M>>>,
    link: Option<SharedLink<M::Header>>,
    needs_precise_clock: bool,
    timers: Arc<Timers>,
    delivering: AtomicBool,
    requests: AtomicU32,
    to_serve: Mutex<VecDeque<Job>>,
    /// Looked at before that.
    has_to_serve: AtomicBool,
    /// Queue pairs with something to send when nothing more arrives.
    unsettled: Mutex<Vec<PoolWeak<M::Qp>>>,
    /// Looked at before that.
    has_unsettled: AtomicBool,
    /// Somebody waits for that.
    is_awaited: AtomicBool,
    /// Since they were settled: whether the program has sent something, and how many looks have found something; and how
    /// many have found nothing since one did.
    has_answered: AtomicBool,
    looks: AtomicU32,
    vain_looks: AtomicU32,
}

/// What the owner of a network drives, whatever its driver.
pub trait Progress: Send + Sync {
    /// When something is due next.
    fn next_timeout(&self) -> Option<Time>;

    /// Does what is due at `now`.
    fn handle_timeout(&self, now: Time);

    /// Something may have arrived: delivers it, unless another thread is at it; `false` in that case. Call with no lock
    /// held. By default nothing ever arrives unasked.
    fn progress(&self) -> bool {
        true
    }

    /// The same, but for acknowledges that this brings about: they wait for the next call, or a poller.
    fn look(&self) -> bool {
        self.progress()
    }

    /// What waits to be sent leaves, acknowledges too.
    fn flush(&self) {}
}

/// What a thread does that polls, for a device and whatever its driver.
pub trait Polled: Send + Sync {
    /// One look, unless another thread is looking. Answers whether anything arrived. Where pollers look again and again,
    /// acknowledges that it brings about wait for the next [`flush`](Progress::flush).
    fn poll(&self) -> bool;

    /// The thread is about to sleep.
    fn hand_back(&self);
}

impl<M: Member> Network<M> {
    /// A network without devices; direct without a link.
    pub fn new(host: Arc<dyn Host>, link: Option<SharedLink<M::Header>>) -> Arc<Self> {
        Arc::new(Self {
            devices: RwLock::default(),
            needs_precise_clock: (link.as_ref()).is_none_or(|link| link.needs_precise_clock()),
            link,
            timers: Arc::new(Timers::new(host)),
            delivering: AtomicBool::new(false),
            requests: AtomicU32::new(0),
            to_serve: Mutex::default(),
            has_to_serve: AtomicBool::new(false),
            unsettled: Mutex::default(),
            has_unsettled: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            has_answered: AtomicBool::new(false),
            looks: AtomicU32::new(0),
            vain_looks: AtomicU32::new(0),
        })
    }

    /// What is due later.
    pub fn timers(&self) -> &Arc<Timers> {
        &self.timers
    }

    /// The link, or `None` where the network is direct.
    #[inline]
    pub fn link(&self) -> Option<&SharedLink<M::Header>> {
        self.link.as_ref()
    }

    /// Whether the link is told the time as it is.
    #[inline]
    pub(crate) fn needs_precise_clock(&self) -> bool {
        self.needs_precise_clock
    }

    // What the link is told.
    fn moment(&self) -> Time {
        match self.needs_precise_clock {
            true => self.timers.now(),
            false => self.timers.soon(),
        }
    }

    pub(crate) fn join(&self, address: LinkAddress, device: &Arc<M>) -> bool {
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        let before = devices.get(&address);
        if before.is_some_and(|device| device.strong_count() > 0) {
            return false;
        }
        devices.insert(address, Arc::downgrade(device));
        true
    }

    /// The device at an address.
    pub fn device(&self, address: LinkAddress) -> Option<Arc<M>> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices
            .get(&address)
            .and_then(Weak::upgrade)
            .filter(|device| device.takes(address))
    }

    /// Every device.
    pub fn devices(&self) -> Vec<Arc<M>> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices.values().filter_map(Weak::upgrade).collect()
    }

    /// Runs `job` when what has arrived over the link has been delivered. Called while delivering, possibly with locks
    /// held.
    pub fn serve_later(&self, job: Job) {
        self.to_serve.lock().push_back(job);
        self.has_to_serve.store(true, Ordering::Release);
    }

    fn serve(&self) -> bool {
        if !self.has_to_serve.load(Ordering::Acquire) {
            return false;
        }
        // Before they are taken: what comes meanwhile is seen here or says so again.
        self.has_to_serve.store(false, Ordering::SeqCst);
        let jobs = std::mem::take(&mut *self.to_serve.lock());
        let any = !jobs.is_empty();
        for job in jobs {
            job(self.timers.now());
        }
        any
    }

    /// Whether its devices do nothing more until a program asks for something: nothing is due or being done. Only a direct
    /// network knows.
    pub fn is_idle(&self) -> bool {
        self.link.is_none() && !pin::is_any_deferred() && self.timers.is_idle()
    }

    /// Has a queue pair [settled](Member::settle) when nothing more arrives. Called with its locks held.
    pub fn settle_later(&self, qp: PoolWeak<M::Qp>) {
        self.unsettled.lock().push(qp);
        self.has_unsettled.store(true, Ordering::Release);
    }

    #[inline]
    fn is_unsettled(&self) -> bool {
        self.has_unsettled.load(Ordering::Relaxed)
    }

    /// Somebody waits for what is unsettled now.
    #[inline]
    pub fn await_settling(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
    }

    /// Whether somebody may wait for what is unsettled: what is sent to them can take it along.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    /// Settles what is unsettled. Call with no lock held. Answers whether there was any.
    fn settle(&self) -> bool {
        if !self.has_unsettled.load(Ordering::Acquire) {
            return false;
        }
        let mut qps = std::mem::take(&mut *self.unsettled.lock());
        self.is_awaited.store(false, Ordering::Relaxed);
        self.has_answered.store(false, Ordering::Relaxed);
        self.looks.store(0, Ordering::Relaxed);
        // What comes behind this says so again.
        self.has_unsettled.store(false, Ordering::SeqCst);
        for qp in qps.drain(..).filter_map(|qp| qp.upgrade()) {
            M::settle(&qp, self.moment());
        }
        let mut kept = self.unsettled.lock();
        match kept.is_empty() {
            // Its memory is used again.
            true => *kept = qps,
            false => self.has_unsettled.store(true, Ordering::Release),
        }
        true
    }

    /// Delivers what is due, unless a thread already does; `false` in that case. Call with no lock held.
    ///
    /// A caller that finds another delivering leaves a note, and that one looks once more: nothing is left lying. Where frames
    /// come from other processes a call ends even while they go on and on.
    pub fn progress(&self) -> bool {
        let Some(link) = &self.link else { return true };
        link.flush();
        self.requests.fetch_add(1, Ordering::SeqCst);
        let is_done = self.take_turns(|| self.deliver_all(link, || self.settle()));
        self.wake_for(link);
        is_done
    }

    // Until nothing more arrives; or, where others may send for ever, for a few looks. The next one finds the rest.
    fn deliver_all(&self, link: &SharedLink<M::Header>, settle: impl Fn() -> bool) {
        let mut looks = 0;
        while link.progress(self.moment(), &Turn::new(self, None)) || self.serve() || settle() {
            looks += 1;
            if looks == MOST_LOOKS && link.input().is_some() {
                self.serve();
                settle();
                if link.flush() {
                    // Nobody else looks for what comes of that: the timers' thread goes on.
                    self.timers.wake_at(self.timers.now());
                }
                return;
            }
            link.flush();
        }
    }

    /// What has just been sent leaves. Call with no lock held, after everything that sends.
    #[inline]
    pub fn send_off(&self) {
        if self.is_unsettled() {
            self.has_answered.store(true, Ordering::Relaxed);
        }
        match &self.link {
            Some(link) if link.input().is_some() => self.flush_link(link),
            _ => _ = self.progress(),
        }
    }

    fn flush_link(&self, link: &SharedLink<M::Header>) {
        // A stream that has room again, or is gone, is something to tell.
        match link.flush() {
            true => _ = self.progress(),
            false => self.wake_for(link),
        }
    }

    fn wake_for(&self, link: &SharedLink<M::Header>) {
        if let Some(at) = link.next_due() {
            self.timers.wake_at(at);
        }
    }

    // A thread that polled is about to sleep.
    pub(crate) fn hand_back(&self) {
        if let Some(input) = self.link.as_ref().and_then(|link| link.input()) {
            Progress::flush(self);
            input.hand_back();
        }
    }

    // A poll by a thread that looks for what is mostly for this device. Acknowledges wait until the program, which is about
    // to be told what has come, has answered it; unless nobody may look for long.
    pub(crate) fn poll_for(&self, device: &M) -> bool {
        let Some(link) = &self.link else { return false };
        let Some(input) = link.input() else {
            return false;
        };
        let mut found = false;
        // Without a note: who polls looks again.
        let is_turn = self.take_turns(|| {
            // What needs no precise clock asks for the time itself, where it wants to know.
            let now = match self.needs_precise_clock {
                true => self.timers.now(),
                false => Time::default(),
            };
            found |= link.progress(now, &Turn::new(self, Some(device)));
            self.serve();
        });
        if !is_turn {
            input.give_way();
            return false;
        }
        input.polled();
        if self.is_unsettled() && (!input.is_polled() || self.has_waited(found)) {
            self.settle();
        }
        self.flush_link(link);
        found
    }

    // Whether what is unsettled has waited for long enough, after one more look.
    fn has_waited(&self, found: bool) -> bool {
        let count = |looks: &AtomicU32| {
            let count = looks.load(Ordering::Relaxed).saturating_add(1);
            looks.store(count, Ordering::Relaxed);
            count
        };
        if found {
            self.vain_looks.store(0, Ordering::Relaxed);
            return count(&self.looks) > MOST_LOOKS;
        }
        // To whom the program has answered answers in turn, mostly, and one acknowledge stands for both messages.
        !self.has_answered.load(Ordering::Relaxed) || count(&self.vain_looks) > MOST_VAIN_LOOKS
    }

    // Whether no other thread was delivering.
    fn take_turns(&self, mut deliver: impl FnMut()) -> bool {
        let mut turns = 0;
        loop {
            if self.delivering.swap(true, Ordering::SeqCst) {
                return turns > 0;
            }
            let over = Over(&self.delivering);
            let seen = self.requests.load(Ordering::SeqCst);
            deliver();
            drop(over);
            turns += 1;
            if self.requests.load(Ordering::SeqCst) == seen {
                return true;
            }
            let input = self.link.as_ref().and_then(|link| link.input());
            if turns == MOST_TURNS && input.is_some() {
                // While much arrives the link's thread may leave notes for ever.
                self.timers.wake_at(self.timers.now());
                return true;
            }
        }
    }
}

/// So many looks may find something while an acknowledge waits, or the caller of a verb.
const MOST_LOOKS: u32 = 8;
/// So often in a row one thread delivers because others have left notes.
const MOST_TURNS: u32 = 8;
/// And so many in a row nothing, where the program has sent something: a few microseconds at a socket, as long as it takes a
/// peer to answer.
const MOST_VAIN_LOOKS: u32 = 16;

/// The end of a turn, also where a handler panics.
struct Over<'n>(&'n AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Where a link delivers in one turn. Most of it is for one device, mostly the one that looks: it is looked up once, or not
/// at all.
struct Turn<'n, M: Member> {
    network: &'n Network<M>,
    looking: Option<&'n M>,
    last: RefCell<Option<(LinkAddress, Arc<M>)>>,
}

impl<'n, M: Member> Turn<'n, M> {
    fn new(network: &'n Network<M>, looking: Option<&'n M>) -> Self {
        Self {
            network,
            looking,
            last: RefCell::default(),
        }
    }
}

impl<M: Member> Deliver<M::Header> for Turn<'_, M> {
    fn deliver(&self, frame: Frame<'_, M::Header>, now: Time) {
        if let Some(device) = self.looking.filter(|device| device.takes(frame.to)) {
            return device.handle_frame(frame, now);
        }
        let last = self
            .last
            .take()
            .filter(|(_, device)| device.takes(frame.to));
        let found = last.or_else(|| Some((frame.to, self.network.device(frame.to)?)));
        if let Some((address, device)) = found {
            device.handle_frame(frame, now);
            self.last.replace(Some((address, device)));
        }
    }
}

impl<M: Member> Progress for Network<M> {
    fn next_timeout(&self) -> Option<Time> {
        let link = self.link.as_ref().and_then(|link| link.next_due());
        [self.timers.next(), link].into_iter().flatten().min()
    }

    fn progress(&self) -> bool {
        Self::progress(self)
    }

    fn look(&self) -> bool {
        let Some(link) = &self.link else { return true };
        self.take_turns(|| self.deliver_all(link, || false))
    }

    fn flush(&self) {
        if let Some(link) = &self.link {
            // Where there are no pollers, whoever delivers does that, and delivers it.
            if link.input().is_some() {
                self.settle();
            }
            self.flush_link(link);
        }
    }

    fn handle_timeout(&self, now: Time) {
        Self::progress(self);
        self.timers.run_due(now);
        Self::progress(self);
    }
}

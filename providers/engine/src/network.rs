//! A network: the devices that reach one another, the link between them, and the jobs that are due later.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use verbs_api::ids::LinkAddress;
use verbs_api::provider::RwLock;

use crate::link::{Deliver, Frame, SharedLink};
use crate::pin;
use crate::pool::{PoolRef, PoolWeak};
use crate::sync::Mutex;
use crate::time::{Host, Time};
use crate::timers::{Job, Timers};

/// A device as its network uses it.
pub trait Member: Send + Sync + Sized + 'static {
    /// A frame's header, as a value.
    type Header: 'static;
    /// A queue pair.
    type Qp: Send + Sync + 'static;

    /// Returns whether frames for this address are for this device: it has the address, and was not removed.
    fn takes(&self, address: LinkAddress) -> bool;

    /// Handles a frame that has arrived. `now` is the time that the link was given.
    fn handle_frame(&self, frame: Frame<'_, Self::Header>, now: Time);

    /// Sends what the queue pair kept back, because nothing more has arrived for now.
    fn settle(qp: &PoolRef<Self::Qp>, now: Time);
}

/// Devices of one driver that reach one another.
///
/// Without a link the network is *direct*: the sender's thread passes a frame to its receiver as it is. With a link, frames
/// go over the link. The network is sans-IO: its owner calls [`handle_timeout`](Progress::handle_timeout) when a job is
/// due.
pub struct Network<M: Member> {
    devices: RwLock<BTreeMap<LinkAddress, Weak<M>>>,
    link: Option<SharedLink<M::Header>>,
    needs_precise_clock: bool,
    timers: Arc<Timers>,
    delivering: AtomicBool,
    requests: AtomicU32,
    to_serve: Mutex<VecDeque<Job>>,
    /// Whether `to_serve` has jobs; read before its lock is taken.
    has_to_serve: AtomicBool,
    /// Queue pairs that have to send when nothing more arrives.
    unsettled: Mutex<Vec<PoolWeak<M::Qp>>>,
    /// Whether there are unsettled queue pairs; read before their lock is taken.
    has_unsettled: AtomicBool,
    /// A peer waits for an unsettled queue pair.
    is_awaited: AtomicBool,
    /// State since the last settling: whether the program has sent anything, how many polls have found frames, and how many
    /// in a row have found none since.
    has_answered: AtomicBool,
    looks: AtomicU32,
    vain_looks: AtomicU32,
}

/// The network as its owner drives it, whatever its driver.
pub trait Progress: Send + Sync {
    /// When the next job is due.
    fn next_timeout(&self) -> Option<Time>;

    /// Does the jobs that are due at `now`.
    fn handle_timeout(&self, now: Time);

    /// Delivers the frames that have arrived, unless another thread is delivering; returns `false` in that case. The
    /// caller holds no lock. By default nothing arrives.
    fn progress(&self) -> bool {
        true
    }

    /// Delivers frames that have arrived, without sending the acknowledges that this causes: they wait for the next call,
    /// or a poller.
    fn look(&self) -> bool {
        self.progress()
    }

    /// Sends everything that waits, including acknowledges.
    fn flush(&self) {}
}

/// A device as a thread that polls uses it, whatever its driver.
pub trait Polled: Send + Sync {
    /// Polls the network once, unless another thread is doing so. Returns whether anything arrived. While pollers poll
    /// frequently, acknowledges that the poll causes wait for the next [`flush`](Progress::flush).
    fn poll(&self) -> bool;

    /// The thread is about to sleep.
    fn hand_back(&self);
}

impl<M: Member> Network<M> {
    /// Creates a network without devices. Without a link it is direct.
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

    /// The jobs that are due later.
    pub fn timers(&self) -> &Arc<Timers> {
        &self.timers
    }

    /// The link, or `None` if the network is direct.
    #[inline]
    pub fn link(&self) -> Option<&SharedLink<M::Header>> {
        self.link.as_ref()
    }

    /// Returns whether the link needs the exact time.
    #[inline]
    pub(crate) fn needs_precise_clock(&self) -> bool {
        self.needs_precise_clock
    }

    // The time that the link is given.
    fn moment(&self) -> Time {
        match self.needs_precise_clock {
            true => self.timers.now(),
            false => self.timers.soon(),
        }
    }

    pub(crate) fn join(&self, address: LinkAddress, device: &Arc<M>) -> bool {
        let mut devices = self.devices.write();
        let before = devices.get(&address);
        if before.is_some_and(|device| device.strong_count() > 0) {
            return false;
        }
        devices.insert(address, Arc::downgrade(device));
        true
    }

    /// Returns the device at an address.
    pub fn device(&self, address: LinkAddress) -> Option<Arc<M>> {
        let devices = self.devices.read();
        devices
            .get(&address)
            .and_then(Weak::upgrade)
            .filter(|device| device.takes(address))
    }

    /// Returns every device.
    pub fn devices(&self) -> Vec<Arc<M>> {
        let devices = self.devices.read();
        devices.values().filter_map(Weak::upgrade).collect()
    }

    /// Runs `job` after the frames that the link has received were delivered. The caller is delivering, possibly with locks
    /// held.
    pub fn serve_later(&self, job: Job) {
        self.to_serve.lock().push_back(job);
        self.has_to_serve.store(true, Ordering::Release);
    }

    fn serve(&self) -> bool {
        if !self.has_to_serve.load(Ordering::Acquire) {
            return false;
        }
        // The flag is cleared first: this turn sees a job that is added meanwhile, or the thread that adds it sets the flag
        // again.
        self.has_to_serve.store(false, Ordering::SeqCst);
        let jobs = std::mem::take(&mut *self.to_serve.lock());
        let any = !jobs.is_empty();
        for job in jobs {
            job(self.timers.now());
        }
        any
    }

    /// Returns whether the devices do nothing more until the program makes a request: nothing is due or under way. Only a
    /// direct network knows this.
    pub fn is_idle(&self) -> bool {
        self.link.is_none() && !pin::is_any_deferred() && self.timers.is_idle()
    }

    /// [Settles](Member::settle) a queue pair when nothing more arrives. The caller holds the queue pair's locks.
    pub fn settle_later(&self, qp: PoolWeak<M::Qp>) {
        self.unsettled.lock().push(qp);
        self.has_unsettled.store(true, Ordering::Release);
    }

    #[inline]
    fn is_unsettled(&self) -> bool {
        self.has_unsettled.load(Ordering::Relaxed)
    }

    /// Notes that a peer waits for an unsettled queue pair.
    #[inline]
    pub fn await_settling(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
    }

    /// Returns whether a peer may wait for an unsettled queue pair: then a message to that peer can carry the acknowledge.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    /// Settles the unsettled queue pairs. The caller holds no lock. Returns whether there was any.
    fn settle(&self) -> bool {
        if !self.has_unsettled.load(Ordering::Acquire) {
            return false;
        }
        let mut qps = std::mem::take(&mut *self.unsettled.lock());
        self.is_awaited.store(false, Ordering::Relaxed);
        self.has_answered.store(false, Ordering::Relaxed);
        self.looks.store(0, Ordering::Relaxed);
        // A queue pair that is added after this sets the flag again.
        self.has_unsettled.store(false, Ordering::SeqCst);
        for qp in qps.drain(..).filter_map(|qp| qp.upgrade()) {
            M::settle(&qp, self.moment());
        }
        let mut kept = self.unsettled.lock();
        match kept.is_empty() {
            // The memory of the list is reused.
            true => *kept = qps,
            false => self.has_unsettled.store(true, Ordering::Release),
        }
        true
    }

    /// Delivers due frames, unless another thread is delivering; returns `false` in that case. The caller holds no lock.
    ///
    /// A caller that finds another thread delivering leaves a note, and that thread polls again, so no frame stays
    /// undelivered. If frames come from other processes, a call ends even while they keep arriving.
    pub fn progress(&self) -> bool {
        let Some(link) = &self.link else { return true };
        link.flush();
        self.requests.fetch_add(1, Ordering::SeqCst);
        let is_done = self.take_turns(|| self.deliver_all(link, || self.settle()));
        self.wake_for(link);
        is_done
    }

    // Delivers until nothing more arrives; or, if other processes may send for ever, for a few polls. The next poll finds
    // the rest.
    fn deliver_all(&self, link: &SharedLink<M::Header>, settle: impl Fn() -> bool) {
        let mut looks = 0;
        while link.progress(self.moment(), &Turn::new(self, None)) || self.serve() || settle() {
            looks += 1;
            if looks == MOST_LOOKS && link.input().is_some() {
                self.serve();
                settle();
                if link.flush() {
                    // No other thread polls for the result, so the timer thread continues.
                    self.timers.wake_at(self.timers.now());
                }
                return;
            }
            link.flush();
        }
    }

    /// Makes frames that were just sent leave. The caller holds no lock; it calls this after everything that sends.
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
        // A stream that has room again, or is lost, is an event to deliver.
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

    // A thread that has polled is about to sleep.
    pub(crate) fn hand_back(&self) {
        if let Some(input) = self.link.as_ref().and_then(|link| link.input()) {
            Progress::flush(self);
            input.hand_back();
        }
    }

    // Polls on a thread that mostly expects frames for this device. Acknowledges wait until the program, which is about to
    // see the completions, has answered, because its message can carry them, unless no poll is expected soon.
    pub(crate) fn poll_for(&self, device: &M) -> bool {
        let Some(link) = &self.link else { return false };
        let Some(input) = link.input() else {
            return false;
        };
        let mut found = false;
        // The poller leaves no note if another thread is delivering, because it polls again.
        let is_turn = self.take_turns(|| {
            // A link that needs no precise clock reads the time itself when it needs it.
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

    // Returns whether unsettled queue pairs have waited long enough, counting this poll.
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
        // A peer mostly answers the program's message, and then one acknowledge covers both messages.
        !self.has_answered.load(Ordering::Relaxed) || count(&self.vain_looks) > MOST_VAIN_LOOKS
    }

    // Returns `false` if another thread was delivering.
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
                // While many frames arrive, the link's thread may leave notes for ever.
                self.timers.wake_at(self.timers.now());
                return true;
            }
        }
    }
}

/// The number of polls that may find frames while an acknowledge, or the caller of a verb, waits.
const MOST_LOOKS: u32 = 8;
/// The number of turns in a row in which one thread delivers because others have left notes.
const MOST_TURNS: u32 = 8;
/// The number of polls in a row that may find nothing while an acknowledge waits, if the program has sent anything: a few
/// microseconds at a socket, as long as a peer takes to answer.
const MOST_VAIN_LOOKS: u32 = 16;

/// Ends a turn, also if a handler panics.
struct Over<'n>(&'n AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Delivers the frames of one turn. Most frames are for one device, mostly the one that polls, so the device is looked up
/// once, or not at all.
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
            // Without pollers, the thread that delivers settles, and delivers the result.
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

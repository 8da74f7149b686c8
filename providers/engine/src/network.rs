//! A network: the devices that reach one another, the link between them, and the jobs that are due later.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use verbs_api::ids::LinkAddress;
use verbs_api::provider::RwLock;

use crate::link::{Deliver, Frame, Note, SharedLink};
use crate::pin;
use crate::pool::{PoolRef, PoolWeak};
use crate::sync::Mutex;
use crate::time::{Host, Time};
use crate::timers::{Job, Timers};

/// A device, as its network calls it.
pub trait Member: Send + Sync + Sized + 'static {
    /// The decoded header of a frame.
    type Header: 'static;
    /// A queue pair of the device.
    type Qp: Send + Sync + 'static;

    /// Returns whether frames for this address are for this device: it has the address, and was not removed.
    fn takes(&self, address: LinkAddress) -> bool;

    /// Handles a frame that has arrived for this device. `now` is the time that was passed to the link.
    fn handle_frame(&self, frame: Frame<'_, Self::Header>, now: Time);

    /// Handles a note of another process at the address of this device.
    fn handle_note(&self, note: Note<'_>, now: Time);

    /// Sends the acknowledges that the queue pair has kept back, because no further frame arrives for now.
    fn settle(qp: &PoolRef<Self::Qp>, now: Time);
}

/// The devices of one driver that reach one another.
///
/// Without a link the network is *direct*: the sender's thread calls the receiving device itself. With a link, frames go
/// over the link. The network is sans-IO: its owner calls [`handle_timeout`](Progress::handle_timeout) when a job is due.
pub struct Network<M: Member> {
    devices: RwLock<BTreeMap<LinkAddress, Weak<M>>>,
    link: Option<SharedLink<M::Header>>,
    needs_precise_clock: bool,
    timers: Arc<Timers>,
    delivering: AtomicBool,
    requests: AtomicU32,
    to_serve: Mutex<VecDeque<Job>>,
    /// Whether `to_serve` has jobs. It is read before the lock of the list is taken.
    has_to_serve: AtomicBool,
    /// Queue pairs that keep acknowledges back until no further frame arrives.
    unsettled: Mutex<Vec<PoolWeak<M::Qp>>>,
    /// Whether `unsettled` has queue pairs. It is read before the lock of the list is taken.
    has_unsettled: AtomicBool,
    /// How many threads send the acknowledges of queue pairs that they have taken from `unsettled`.
    settling: AtomicU32,
    /// Whether a peer waits for an acknowledge that a queue pair of `unsettled` keeps back.
    is_awaited: AtomicBool,
    /// Whether the program has sent anything since the last settling. The next two count the polls since then that have
    /// found frames, and the polls in a row since the last of these that have found none.
    has_answered: AtomicBool,
    looks: AtomicU32,
    vain_looks: AtomicU32,
}

/// A network, as its owner (the timer thread or the link's thread) drives it, whatever its driver.
pub trait Progress: Send + Sync {
    /// Returns when the next job is due; `None` if there is none.
    fn next_timeout(&self) -> Option<Time>;

    /// Delivers arrived frames, and runs the jobs that are due at `now`.
    fn handle_timeout(&self, now: Time);

    /// Delivers the frames that have arrived, and sends the acknowledges that this causes. Returns `false` if another
    /// thread is delivering at present, which then continues with them. The caller holds no lock. By default no frame
    /// arrives.
    fn progress(&self) -> bool {
        true
    }

    /// Delivers the frames that have arrived, but leaves the acknowledges that this causes to a later call or a polling
    /// thread. Returns `false` if another thread is delivering at present.
    fn look(&self) -> bool {
        self.progress()
    }

    /// Sends all frames that wait in the network, including acknowledges that were kept back.
    fn flush(&self) {}
}

/// A device, as a thread that polls a completion queue calls it, whatever its driver.
pub trait Polled: Send + Sync {
    /// Polls the network once, unless another thread is delivering. Returns whether a frame has arrived. While threads poll
    /// frequently, the acknowledges that the poll causes may wait for a later poll or [`flush`](Progress::flush).
    fn poll(&self) -> bool;

    /// Sends the acknowledges that were kept back and leaves the input to the link's thread, because the calling thread is
    /// about to sleep.
    fn hand_back(&self);
}

impl<M: Member> Network<M> {
    /// Creates a network without devices. `link` carries its frames; with `None` the network is direct.
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
            settling: AtomicU32::new(0),
            is_awaited: AtomicBool::new(false),
            has_answered: AtomicBool::new(false),
            looks: AtomicU32::new(0),
            vain_looks: AtomicU32::new(0),
        })
    }

    /// The timers, which run the network's jobs when these are due.
    pub fn timers(&self) -> &Arc<Timers> {
        &self.timers
    }

    /// The link, or `None` if the network is direct: devices then call one another.
    #[inline]
    pub fn link(&self) -> Option<&SharedLink<M::Header>> {
        self.link.as_ref()
    }

    /// Returns whether the times that are passed to the link must be exact.
    #[inline]
    pub(crate) fn needs_precise_clock(&self) -> bool {
        self.needs_precise_clock
    }

    // Returns the time to pass to the link: the exact one if the link needs that, otherwise the approximate one.
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

    /// Returns the device at an address; `None` if there is none or it was removed.
    pub fn device(&self, address: LinkAddress) -> Option<Arc<M>> {
        let devices = self.devices.read();
        devices
            .get(&address)
            .and_then(Weak::upgrade)
            .filter(|device| device.takes(address))
    }

    /// Returns all devices of the network.
    pub fn devices(&self) -> Vec<Arc<M>> {
        let devices = self.devices.read();
        devices.values().filter_map(Weak::upgrade).collect()
    }

    /// Runs `job` after the frames that the link has received so far were delivered. The calling thread is delivering one
    /// of them, possibly with locks held.
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

    /// [Settles](Member::settle) a queue pair, that is, sends its acknowledges, when no further frame arrives. The caller
    /// holds the queue pair's locks.
    pub fn settle_later(&self, qp: PoolWeak<M::Qp>) {
        self.unsettled.lock().push(qp);
        self.has_unsettled.store(true, Ordering::Release);
    }

    #[inline]
    fn is_unsettled(&self) -> bool {
        self.has_unsettled.load(Ordering::Relaxed)
    }

    /// Notes that a peer waits for an acknowledge that a queue pair keeps back.
    #[inline]
    pub fn await_settling(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
    }

    /// Returns whether a peer may wait for an acknowledge that a queue pair keeps back: then a message to that peer can
    /// carry it.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    /// Sends the acknowledges that queue pairs keep back. The caller holds no lock. Returns whether there was any such
    /// queue pair.
    fn settle(&self) -> bool {
        if !self.has_unsettled.load(Ordering::Acquire) {
            return false;
        }
        let _settling = Settling::begin(&self.settling);
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

    // Notes that all delivered frames are answered, unless a queue pair keeps an acknowledge back or another thread is sending
    // one. The caller has its turn, so that nothing is delivered meanwhile.
    fn note_answers(&self, link: &SharedLink<M::Header>) {
        let keeps_none = !self.has_unsettled.load(Ordering::SeqCst);
        if keeps_none && self.settling.load(Ordering::SeqCst) == 0 {
            link.all_answered();
        }
    }

    /// Delivers the frames that have arrived, and sends the acknowledges that this causes. Returns `false` if another
    /// thread is delivering at present. The caller holds no lock.
    ///
    /// A caller that finds another thread delivering makes that thread poll again, so no frame stays undelivered. If frames
    /// come from other processes, a call ends even while they keep arriving.
    pub fn progress(&self) -> bool {
        let Some(link) = &self.link else { return true };
        link.flush();
        self.requests.fetch_add(1, Ordering::SeqCst);
        let is_done = self.take_turns(|| self.deliver_all(link, || self.settle()));
        self.wake_for(link);
        is_done
    }

    // Delivers until no further frame arrives, or for a few polls if other processes may send for ever. The next poll finds
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
                break;
            }
            link.flush();
        }
        self.note_answers(link);
    }

    /// Makes frames that the calling thread has just sent leave. The caller holds no lock, and calls this after everything
    /// that sends.
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

    // Called when a thread that has polled is about to sleep.
    pub(crate) fn hand_back(&self) {
        if let Some(input) = self.link.as_ref().and_then(|link| link.input()) {
            Progress::flush(self);
            input.hand_back();
        }
    }

    // Polls on a thread that mostly expects frames for this device. Acknowledges wait until the program, which is about to
    // poll the completions, has answered, because its message can carry them. If no further poll is expected soon, they do
    // not wait.
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

    // Returns whether queue pairs have kept acknowledges back long enough. This poll counts.
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

    // Calls `deliver`, and again if other threads have asked for that meanwhile. Returns `false`, without a call, if
    // another thread was delivering.
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
                // While many frames arrive, the link's thread may ask for another turn for ever.
                self.timers.wake_at(self.timers.now());
                return true;
            }
        }
    }
}

/// The most polls with frames for which an acknowledge, or the caller of a verb, waits.
const MOST_LOOKS: u32 = 8;
/// The most turns in a row in which one thread delivers because others have asked for that.
const MOST_TURNS: u32 = 8;
/// The most polls in a row without a frame for which an acknowledge waits, if the program has sent anything: a few
/// microseconds at a socket, as long as a peer takes to answer.
const MOST_VAIN_LOOKS: u32 = 16;

/// Ends a thread's turn of delivering when it is dropped, also if a handler panics.
struct Over<'n>(&'n AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// A thread that sends acknowledges. It counts until this is dropped, also if a handler panics.
struct Settling<'n>(&'n AtomicU32);

impl<'n> Settling<'n> {
    fn begin(count: &'n AtomicU32) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Delivers the frames of one turn to their devices. Most frames are for one device, mostly the one whose thread polls, so
/// the device is looked up once, or not at all.
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

    fn deliver_note(&self, at: LinkAddress, note: Note<'_>, now: Time) {
        if let Some(device) = self.network.device(at) {
            device.handle_note(note, now);
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
            // If no thread polls completion queues for frames, the delivering thread sends the acknowledges and delivers
            // the result.
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

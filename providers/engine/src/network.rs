//! A network: the devices that reach one another, the link between them, and what is due when.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use verbs_api::ids::LinkAddress;

use crate::device::Device;
use crate::driver::Driver;
use crate::link::{Deliver, Frame, SharedLink};
use crate::time::{Host, Time};
use crate::timers::{Job, Timers};

/// Devices of one driver that reach one another.
///
/// Without a link the network is *direct*: a frame is handed to its receiver as it is, on the sender's thread. With one,
/// frames go over it. Sans-IO: its owner calls [`handle_timeout`](Progress::handle_timeout) when something is due.
pub struct Network<D: Driver> {
    devices: RwLock<BTreeMap<LinkAddress, Weak<Device<D>>>>,
    link: Option<SharedLink<D::Header>>,
    heeds_time: bool,
    timers: Arc<Timers>,
    delivering: AtomicBool,
    requests: AtomicU32,
    to_serve: Mutex<VecDeque<Job>>,
    /// Looked at before that.
    has_to_serve: AtomicBool,
}

/// What the owner of a network drives, whatever its driver.
pub trait Progress: Send + Sync {
    /// When something is due next.
    fn next_timeout(&self) -> Option<Time>;

    /// Does what is due at `now`.
    fn handle_timeout(&self, now: Time);

    /// Something may have arrived: delivers it. Call with no lock held. By default nothing ever arrives unasked.
    fn progress(&self) {}

    /// The same for a thread that found nothing and will look again: no two do it at a time. Whether anything arrived. What
    /// acknowledges that brings about may wait for [`flush`](Self::flush).
    fn poll(&self) -> bool {
        false
    }

    /// What waits to be sent leaves.
    fn flush(&self) {}

    /// The same for a thread that polled, found nothing and will look again: what may wait for more does, for a moment.
    fn flush_idle(&self) {}

    /// A thread that polled is about to sleep.
    fn hand_back(&self) {}
}

impl<D: Driver> Network<D> {
    /// A network without devices; direct without a link.
    pub fn new(host: Arc<dyn Host>, link: Option<SharedLink<D::Header>>) -> Arc<Self> {
        Arc::new(Self {
            devices: RwLock::default(),
            heeds_time: link.as_ref().is_none_or(|link| link.heeds_time()),
            link,
            timers: Arc::new(Timers::new(host)),
            delivering: AtomicBool::new(false),
            requests: AtomicU32::new(0),
            to_serve: Mutex::default(),
            has_to_serve: AtomicBool::new(false),
        })
    }

    /// What is due later.
    pub fn timers(&self) -> &Arc<Timers> {
        &self.timers
    }

    /// The link, or `None` where the network is direct.
    #[inline]
    pub fn link(&self) -> Option<&SharedLink<D::Header>> {
        self.link.as_ref()
    }

    /// Whether the link is told the time as it is.
    #[inline]
    pub(crate) fn heeds_time(&self) -> bool {
        self.heeds_time
    }

    // What the link is told.
    fn moment(&self) -> Time {
        match self.heeds_time {
            true => self.timers.now(),
            false => self.timers.soon(),
        }
    }

    pub(crate) fn join(&self, address: LinkAddress, device: &Arc<Device<D>>) -> bool {
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        if devices
            .get(&address)
            .is_some_and(|device| device.strong_count() > 0)
        {
            return false;
        }
        devices.insert(address, Arc::downgrade(device));
        true
    }

    /// The device at an address.
    pub fn device(&self, address: LinkAddress) -> Option<Arc<Device<D>>> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices
            .get(&address)
            .and_then(Weak::upgrade)
            .filter(|device| !device.is_removed())
    }

    /// Every device.
    pub fn devices(&self) -> Vec<Arc<Device<D>>> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices.values().filter_map(Weak::upgrade).collect()
    }

    /// Runs `job` when what has arrived over the link has been delivered. Called while delivering, possibly with locks
    /// held.
    pub fn serve_later(&self, job: Job) {
        self.to_serve
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(job);
        self.has_to_serve.store(true, Ordering::Release);
    }

    fn serve(&self) -> bool {
        if !self.has_to_serve.load(Ordering::Acquire) {
            return false;
        }
        // Before they are taken: what comes meanwhile is seen here or says so again.
        self.has_to_serve.store(false, Ordering::SeqCst);
        let jobs =
            std::mem::take(&mut *self.to_serve.lock().unwrap_or_else(PoisonError::into_inner));
        let any = !jobs.is_empty();
        for job in jobs {
            job(self.timers.now());
        }
        any
    }

    /// Delivers what is due, unless a thread already does. Call with no lock held.
    ///
    /// A caller that finds another delivering leaves a note, and that one looks once more: nothing is left lying.
    pub fn progress(&self) {
        let Some(link) = &self.link else { return };
        link.flush();
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.take_turns(|| {
            while link.progress(self.moment(), &Turn::new(self, None)) || self.serve() {
                link.flush();
            }
        });
        if let Some(at) = link.next_due() {
            self.timers.wake_at(at);
        }
    }

    /// What has just been sent leaves, acknowledges left for the next poll. Call with no lock held, after everything that
    /// sends.
    #[inline]
    pub fn send_off(&self) {
        match &self.link {
            Some(link) if link.tells_again() => {
                link.flush_ahead();
                // A stream that is full, or gone, is something to tell.
                if !link.tells_again() {
                    return self.progress();
                }
                if let Some(at) = link.next_due() {
                    self.timers.wake_at(at);
                }
            }
            _ => self.progress(),
        }
    }

    // One look. The program is about to be told what has come, and mostly sends something then: acknowledges leave after
    // that, when it polls again.
    fn look(&self, link: &SharedLink<D::Header>, device: Option<&Device<D>>) -> bool {
        if !link.tells_again() {
            self.progress();
            return false;
        }
        let mut found = false;
        // Without a note: who polls looks again.
        self.take_turns(|| {
            found |= link.progress(self.moment(), &Turn::new(self, device));
            self.serve();
        });
        link.flush_ahead();
        if let Some(at) = link.next_due() {
            self.timers.wake_at(at);
        }
        found
    }

    // A poll by a thread that looks for what is mostly for this device.
    pub(crate) fn poll_for(&self, device: Option<&Device<D>>) -> bool {
        let mut found = false;
        if let Some(link) = &self.link {
            link.poll(&mut || found |= self.look(link, device));
        }
        found
    }

    fn take_turns(&self, mut deliver: impl FnMut()) {
        loop {
            if self.delivering.swap(true, Ordering::SeqCst) {
                return;
            }
            let over = Over(&self.delivering);
            let seen = self.requests.load(Ordering::SeqCst);
            deliver();
            drop(over);
            if self.requests.load(Ordering::SeqCst) == seen {
                break;
            }
        }
    }
}

/// The end of a turn, also where a handler panics.
struct Over<'n>(&'n AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Where a link delivers in one turn. Most of it is for one device, mostly the one that looks: it is looked up once, or not
/// at all.
struct Turn<'n, D: Driver> {
    network: &'n Network<D>,
    looking: Option<&'n Device<D>>,
    last: RefCell<Option<(LinkAddress, Arc<Device<D>>)>>,
}

impl<'n, D: Driver> Turn<'n, D> {
    fn new(network: &'n Network<D>, looking: Option<&'n Device<D>>) -> Self {
        Self {
            network,
            looking,
            last: RefCell::default(),
        }
    }
}

impl<D: Driver> Deliver<D::Header> for Turn<'_, D> {
    fn deliver(&self, frame: Frame<'_, D::Header>, now: Time) {
        let is_it = |device: &&Device<D>| device.address() == frame.to && !device.is_removed();
        if let Some(device) = self.looking.filter(is_it) {
            return device.handle_frame(frame, now);
        }
        let last = self
            .last
            .take()
            .filter(|(address, device)| *address == frame.to && !device.is_removed());
        let found = last.or_else(|| Some((frame.to, self.network.device(frame.to)?)));
        if let Some((address, device)) = found {
            device.handle_frame(frame, now);
            self.last.replace(Some((address, device)));
        }
    }
}

impl<D: Driver> Deliver<D::Header> for Network<D> {
    fn deliver(&self, frame: Frame<'_, D::Header>, now: Time) {
        Turn::new(self, None).deliver(frame, now);
    }
}

impl<D: Driver> Progress for Network<D> {
    fn next_timeout(&self) -> Option<Time> {
        let link = self.link.as_ref().and_then(|link| link.next_due());
        [self.timers.next(), link].into_iter().flatten().min()
    }

    fn progress(&self) {
        Self::progress(self);
    }

    fn poll(&self) -> bool {
        self.poll_for(None)
    }

    fn flush(&self) {
        if let Some(link) = &self.link {
            link.flush();
        }
    }

    fn flush_idle(&self) {
        if let Some(link) = &self.link {
            link.flush_idle();
        }
    }

    fn hand_back(&self) {
        if let Some(link) = &self.link {
            link.hand_back();
        }
    }

    fn handle_timeout(&self, now: Time) {
        Self::progress(self);
        for job in self.timers.take_due(now) {
            job(now);
        }
        Self::progress(self);
    }
}

//! A reactor decides which threads read the sockets of a device: threads of the program that poll, or the reactor's own
//! thread, which sleeps until something arrives.
//!
//! Either the pollers or the reactor's thread *own* the input. While the thread does, each arrival wakes it. Pollers that
//! poll frequently claim the input: epoll then wakes no thread for arrivals, and the thread only checks now and then
//! whether pollers still poll. If none has polled for the reactor's *patience*, two milliseconds on an ordinary machine,
//! the thread owns the input again. A poller that is about to sleep returns the input at once. So a poller pays for no
//! thread switch.
//!
//! A program that polls a queue and then watches memory that a peer writes claims the input and leaves it unread. So the
//! thread checks for the first time after a fraction of its patience. If pollers have stopped polling and left input
//! unread, the thread takes the input back early, makes the next claim four times as expensive in polls, and forbids claims
//! for a while.
//!
//! The thread always handles rare sources (requests to join a port group, listeners), also while pollers own the input.
//!
//! `policy` decides which thread owns the input; it knows neither clock nor thread.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use polyverbs_engine::link::Input;
use polyverbs_engine::network::Progress;
use polyverbs_engine::time::Time;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};
use verbs_api::provider::{Mutex, start_thread};

use self::policy::{Claims, POLLS, Pollers, WAY};
use crate::exit::at_exit;
use crate::fork::Unshared;
use crate::sockets::refusal::named;

mod policy;

/// The methods of a link that its [`Reactor`] calls. The reactor watches the sources of the link's frames: sockets and
/// other descriptors.
pub trait IoHandler: Send + Sync {
    /// Handles the source with this token, which is ready and is not a data source. The reactor's thread calls this,
    /// also while pollers read the data sources.
    fn attend(&self, token: u64);

    /// The reactor calls this with `true` when pollers take over reading the data sources, and with `false` when its thread
    /// does so again. While pollers read, a handler should stop watching each [`Source::Data`], because the kernel would
    /// report each arrival to epoll, at its sender's cost. The reactor holds no lock of the handler.
    fn set_polled(&self, is_polled: bool) {
        let _ = is_polled;
    }

    /// Asks other processes to wake the reactor's thread when they write a record to shared memory, which epoll does
    /// not watch. Returns whether there are unread records already. The reactor calls this before its thread sleeps.
    fn arm_bell(&self) -> bool {
        false
    }

    /// Sends pending frames. The reactor calls this when the process exits, while other threads are still running.
    fn flush_on_exit(&self) {}
}

/// The kinds of sources, which differ in who reads them and in how epoll watches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A socket that each poll reads without asking epoll first.
    Data,
    /// One stream of many, edge-triggered: a poller asks with [`Reactor::ready`] which streams have input, and reads each
    /// until the socket is empty, because epoll does not report the same bytes again.
    Stream,
    /// A stream, with read and write interest. Use this only while a write is blocked: a writable socket would report
    /// readiness all the time.
    Full,
    /// A source that rarely has input. Only the reactor's thread handles it.
    Rare,
    /// A connection that is being made, or a socket that waits for room to write: watched for being writable. Only the
    /// reactor's thread handles it.
    Connecting,
    /// A rare source that other processes watch as well: the kernel wakes one of the processes.
    Shared,
}

impl Source {
    const fn flags(self) -> EventFlags {
        match self {
            Self::Data | Self::Rare => EventFlags::IN,
            Self::Connecting => EventFlags::OUT,
            Self::Stream => EventFlags::IN
                .union(EventFlags::RDHUP)
                .union(EventFlags::ET),
            Self::Full => Self::Stream.flags().union(EventFlags::OUT),
            Self::Shared => EventFlags::IN.union(EventFlags::EXCLUSIVE),
        }
    }

    const fn is_data(self) -> bool {
        matches!(self, Self::Data | Self::Stream | Self::Full)
    }
}

/// What epoll reports about a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The token with which the stream was added.
    pub token: u64,
    /// Whether a read returns something: bytes, an end, an error, or a new connection.
    pub readable: bool,
    /// Whether a write is possible, or the connection has been made or has failed.
    pub writable: bool,
    /// Whether the peer has ended its direction, or the connection has failed: a read returns the end after the remaining
    /// bytes.
    pub ended: bool,
}

/// Watches the sockets of a device, and decides which threads read them: threads that poll completion queues, or the
/// reactor's own thread.
pub struct Reactor {
    /// The epoll instance in which the reactor's thread sleeps. It watches the rare sources, the bell (an eventfd that
    /// wakes the thread), and `data` while the thread reads the data sources.
    all: Unshared,
    data: Unshared,
    bell: Unshared,
    is_polled: AtomicBool,
    /// How many times pollers have taken over reading the data sources.
    claimed: AtomicU32,
    polls: AtomicU32,
    claims: Mutex<Claims>,
    served: OnceLock<Served>,
    /// The number of consecutive polls during which another thread was reading the data sources.
    refused: AtomicU32,
    is_over: AtomicBool,
    /// The moment from which the policy counts time.
    made: Instant,
    patience: Duration,
}

/// The link and the network that the reactor serves, which may be dropped before the reactor.
struct Served {
    handler: Weak<dyn IoHandler>,
    network: Weak<dyn Progress>,
}

impl Reactor {
    /// Creates a reactor without sources.
    ///
    /// # Errors
    /// The process has too many open descriptors.
    pub fn new() -> io::Result<Self> {
        let mut reactor = Self {
            all: Unshared::made(new_epoll)?,
            data: Unshared::made(new_epoll)?,
            bell: Unshared::made(new_bell)?,
            is_polled: AtomicBool::new(false),
            claimed: AtomicU32::new(0),
            polls: AtomicU32::new(0),
            claims: Mutex::new(Claims::new(Time::default())),
            served: OnceLock::new(),
            refused: AtomicU32::new(0),
            is_over: AtomicBool::new(false),
            made: Instant::now(),
            patience: Duration::ZERO,
        };
        reactor.patience = policy::patience(reactor.measure_call());
        epoll::add(&reactor.all, &reactor.bell, BELL, EventFlags::IN)?;
        epoll::add(&reactor.all, &reactor.data, DATA, EventFlags::IN)?;
        Ok(reactor)
    }

    /// Watches `source` from now on and reports its events with `token`; the two highest tokens are the reactor's own. The
    /// kernel stops watching a descriptor when it is closed in all processes that have it.
    ///
    /// # Errors
    /// The source is watched already, or cannot be watched.
    pub fn add(&self, source: impl AsFd, token: u64, kind: Source) -> io::Result<()> {
        debug_assert!(token < DATA_TOKEN);
        let data = EventData::new_u64(token);
        Ok(epoll::add(self.epoll(kind), source, data, kind.flags())?)
    }

    /// Changes how `source` is watched to another kind of data source, or begins to watch it, and reports the input that it
    /// has at that moment.
    ///
    /// # Errors
    /// The source cannot be watched.
    pub fn change(&self, source: impl AsFd, token: u64, kind: Source) -> io::Result<()> {
        debug_assert!(token < DATA_TOKEN && kind.is_data());
        let data = EventData::new_u64(token);
        let source = source.as_fd();
        match epoll::modify(&self.data, source, data, kind.flags()) {
            Err(Errno::NOENT) => self.add(source, token, kind),
            changed => Ok(changed?),
        }
    }

    /// Stops watching `source`, which was added as this kind of source.
    ///
    /// # Errors
    /// The source was not watched as this kind.
    pub fn remove(&self, source: impl AsFd, kind: Source) -> io::Result<()> {
        Ok(epoll::delete(self.epoll(kind), source)?)
    }

    fn epoll(&self, kind: Source) -> &Unshared {
        match kind.is_data() {
            true => &self.data,
            false => &self.all,
        }
    }

    /// Starts the reactor's thread, which calls `network` to read the data sources. The thread ends when the handler or the
    /// network no longer exists, or after [`stop`](Self::stop). When the process exits, pending frames are sent.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(
        self: &Arc<Self>,
        handler: Weak<dyn IoHandler>,
        network: Weak<dyn Progress>,
    ) -> io::Result<()> {
        at_exit(Weak::clone(&handler));
        let _ = self.served.set(Served { handler, network });
        let reactor = Arc::clone(self);
        let started = start_thread("polyverbs-io", move || {
            crate::thread::prefer_short_turns();
            reactor.run();
        });
        started.map(drop)
    }

    /// Returns the network that delivers the link's frames to devices; `None` before [`start`](Self::start) and after
    /// the network was dropped.
    pub(crate) fn network(&self) -> Option<Arc<dyn Progress>> {
        self.served.get()?.network.upgrade()
    }

    fn handler(&self) -> Option<Arc<dyn IoHandler>> {
        self.served.get()?.handler.upgrade()
    }

    /// Ends the reactor's thread.
    pub fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.ring();
    }

    /// Makes the reactor's thread read every source. If pollers read the data sources, the thread does so when they have
    /// stopped polling.
    pub fn ring(&self) {
        // The write fails only if the bell has rung and the thread has not read it yet.
        let _ = write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Returns the streams that have events, at most [`AT_ONCE`]. Call this until it returns none.
    ///
    /// # Errors
    /// The epoll instance fails.
    pub fn ready(&self) -> io::Result<ArrayVec<Ready, AT_ONCE>> {
        let mut events = [NO_EVENT; AT_ONCE];
        let count = wait(&self.data, &mut events, Some(Duration::ZERO))?;
        let ready = events[..count].iter().map(|event| {
            let flags = event.flags;
            let ended = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            Ready {
                token: event.data.u64(),
                readable: flags.intersects(EventFlags::IN | ended),
                writable: flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR),
                ended: flags.intersects(ended),
            }
        });
        Ok(ready.collect())
    }

    fn now(&self) -> Time {
        Time::default().after(self.made.elapsed())
    }

    #[cold]
    fn look_at_clock(&self) {
        let mut claims = self.claims.lock();
        // If the input cannot be left to pollers, the thread continues to own it.
        if claims.claims(self.now()) && self.heed_data(EventFlags::empty()).is_ok() {
            self.claimed.fetch_add(1, Ordering::Relaxed);
            self.is_polled.store(true, Ordering::Release);
            self.tell_handler(true);
            self.ring();
        }
    }

    // Returns whether pollers still owned the input. The caller holds the lock of the claims.
    fn release(&self) -> bool {
        let was_polled = self.is_polled.swap(false, Ordering::SeqCst);
        if was_polled {
            self.tell_handler(false);
            // Epoll also reports input that arrived before. This has no known reason to fail.
            let _ = self.heed_data(EventFlags::IN);
        }
        was_polled
    }

    fn tell_handler(&self, is_polled: bool) {
        if let Some(handler) = self.handler() {
            handler.set_polled(is_polled);
        }
    }

    fn heed_data(&self, flags: EventFlags) -> rustix::io::Result<()> {
        epoll::modify(&self.all, &self.data, DATA, flags)
    }

    // ---- the thread

    fn run(&self) {
        let mut again = false;
        let mut owners: Option<Pollers> = None;
        loop {
            let is_polled = self.is_polled();
            let polls = || self.polls.load(Ordering::Relaxed);
            let claim = self.claimed.load(Ordering::Relaxed);
            owners = is_polled.then(|| Pollers::of(owners, claim, polls(), self.now()));
            let has_some = !is_polled && self.handler().is_some_and(|handler| handler.arm_bell());
            let mut is_due = has_some || again;
            let time = match &owners {
                _ if is_due => Some(Duration::ZERO),
                Some(pollers) => Some(pollers.time_left(self.now(), self.patience)),
                None => None,
            };
            let mut events = [NO_EVENT; AT_ONCE];
            let Ok(count) = wait(&self.all, &mut events, time) else {
                return;
            };
            let (Some(handler), Some(network), false) =
                (self.handler(), self.network(), self.is_over())
            else {
                return;
            };
            let mut is_reminded = false;
            for event in &events[..count] {
                match event.data.u64() {
                    DATA_TOKEN => is_due = true,
                    BELL_TOKEN => {
                        let _ = read(&self.bell, &mut [0; 8]);
                        // A claim rings the bell, too.
                        is_due |= !self.is_polled();
                    }
                    token => {
                        guarded(|| handler.attend(token));
                        is_due = true;
                        is_reminded |= is_polled;
                    }
                }
            }
            if let Some(pollers) = &mut owners
                && pollers.are_gone(polls(), self.now(), self.patience)
                && self.is_polled()
            {
                self.take_over(&*handler, pollers.are_worth_it());
                is_due = true;
            }
            if is_reminded {
                // A program that watches memory is about to see the received data, to send something and to poll: its own
                // message carries the acknowledges, and both ends poll from then on when something arrives.
                guarded(|| _ = network.look());
                thread::sleep(WAY);
            }
            let was_refused = is_due && !progress(&*network);
            if let Some(pause) = policy::pause(was_refused) {
                thread::sleep(pause);
            }
            again = was_refused && !self.is_polled();
        }
    }

    // Gives the input back to the thread, because no poller has polled for long.
    fn take_over(&self, handler: &dyn IoHandler, was_worth_it: bool) {
        // The lock is taken after this call, because a thread that delivers may return the input.
        let has_more = handler.arm_bell();
        let mut claims = self.claims.lock();
        // `release` comes before `has_data`, because the handler may have stopped watching its sockets.
        if self.release() {
            let left_unread = has_more || self.has_data();
            claims.taken_back(was_worth_it, left_unread, self.now(), self.patience);
        }
    }

    // Returns whether a source has input that no poller has read.
    fn has_data(&self) -> bool {
        let mut asked = [PollFd::new(&self.data, PollFlags::IN)];
        poll(&mut asked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    // Measures the shortest duration of a trivial system call.
    fn measure_call(&self) -> Duration {
        let calls = (0..8).map(|_| {
            let began = Instant::now();
            self.has_data();
            began.elapsed()
        });
        calls.min().unwrap_or_default()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}

impl Input for Reactor {
    #[inline]
    fn polled(&self) {
        // If two threads poll at once, one of the polls may not be counted.
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        if polls.is_multiple_of(POLLS) && !self.is_polled() {
            self.look_at_clock();
        }
    }

    #[cold]
    fn give_way(&self) {
        self.polled();
        match policy::pause_of_poller(self.refused.fetch_add(1, Ordering::Relaxed)) {
            Some(pause) => thread::sleep(pause),
            None => thread::yield_now(),
        }
    }

    #[inline]
    fn is_polled(&self) -> bool {
        self.is_polled.load(Ordering::Acquire)
    }

    fn hand_back(&self) {
        if self.is_polled() {
            let mut claims = self.claims.lock();
            if self.release() {
                claims.handed_back();
            }
            drop(claims);
            self.ring();
        }
    }
}

// Returns `false` if another thread was reading.
fn progress(network: &dyn Progress) -> bool {
    let mut is_done = true;
    guarded(|| is_done = network.progress());
    is_done
}

// The panic hook reports a panic; the thread must continue.
fn guarded(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

fn new_epoll() -> io::Result<OwnedFd> {
    epoll::create(CreateFlags::CLOEXEC).map_err(named("epoll_create1"))
}

fn new_bell() -> io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(named("eventfd2"))
}

fn wait(epoll: &Unshared, events: &mut [Event], time: Option<Duration>) -> io::Result<usize> {
    match epoll::wait(epoll, events, time.map(timespec).as_ref()) {
        Ok(count) => Ok(count),
        Err(Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

fn timespec(time: Duration) -> Timespec {
    // The durations are some milliseconds, which fit.
    Timespec::try_from(time).unwrap_or_default()
}

/// The most streams that [`Reactor::ready`] returns at a time.
pub const AT_ONCE: usize = 64;

const BELL_TOKEN: u64 = u64::MAX;
const DATA_TOKEN: u64 = u64::MAX - 1;
const BELL: EventData = EventData::new_u64(BELL_TOKEN);
const DATA: EventData = EventData::new_u64(DATA_TOKEN);
const NO_EVENT: Event = Event {
    flags: EventFlags::empty(),
    data: EventData::new_u64(0),
};

#[cfg(test)]
mod tests;

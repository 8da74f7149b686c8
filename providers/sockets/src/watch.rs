//! Who reads the sockets of a device: a thread that polls, or one that sleeps until something arrives.
//!
//! Sockets with data are read by one thread at a time, the one that has the *turn*. A poller takes it, reads, and gives it
//! back; each time it moves the *epoch*. The watch's own thread sleeps in epoll while nobody polls. As soon as it sees
//! that the epoch moved it stands back: data wakes it no more, and up to two milliseconds later (eight on a slow machine) it
//! looks whether the epoch moved again, or a poller has the turn. So a poller pays for no thread switch, and one that
//! went away without a word costs that time, or less where that happens again and again. One that is about to sleep says
//! so with [`Watch::hand_back`], and costs none.
//!
//! What is rare (requests to join a port, listeners) is always the thread's, whoever polls.

use std::hint::spin_loop;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};

/// What a watch calls.
pub trait Duty: Send + Sync {
    /// Reads every data socket until nothing is left. Called with the turn.
    fn progress(&self);

    /// The rare source of this token has something: takes it. Called by the watch's thread, whoever has the turn.
    fn attend(&self, token: u64);

    /// The thread is about to sleep: what comes in by other ways than a descriptor wakes it by one from now on. Answers
    /// whether something of that kind has come already.
    fn sleep(&self) -> bool {
        false
    }

    /// The thread sleeps no more.
    fn wake(&self) {}

    /// Pollers are there, and were a moment ago: what they let wait need not wait for ever. Called every few milliseconds.
    fn tidy(&self) {}

    /// Whether something has come in by other ways than a descriptor; `None` where there has been no such thing lately.
    fn peek(&self) -> Option<bool> {
        None
    }
}

/// What is watched, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Data of a socket that whoever has the turn reads without asking first.
    Data,
    /// Data of one socket of many: who has the turn asks with [`Watch::ready`], and then reads until the socket refuses,
    /// for the same is not told twice.
    Stream,
    /// The same, and room to write where the socket has refused: not for longer than that is waited for. A socket with room
    /// looks like one that has something.
    Full,
    /// Something rare.
    Rare,
    /// A connection that is being made, or room to write: rare as well.
    Connecting,
    /// Something rare that other processes watch as well: the kernel wakes one of them.
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

/// What a stream has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Whose.
    pub token: u64,
    /// Something can be read: octets, an end, an error, or somebody who connects.
    pub readable: bool,
    /// Something can be written, or the connection has been made or has failed.
    pub writable: bool,
    /// The peer sends no more, or the connection has failed: behind what can be read there is an end.
    pub ended: bool,
}

/// The sockets of a device, and who reads them.
#[derive(Debug)]
pub struct Watch {
    /// What the thread sleeps in: what is rare, the bell, and `data` while nobody polls.
    outer: OwnedFd,
    data: OwnedFd,
    bell: OwnedFd,
    /// Who has it: nobody, a visitor, or a poller.
    turn: AtomicU8,
    /// Pollers that found the turn taken, since one last got it.
    refused: AtomicU32,
    /// Moves with each attempt of a poller.
    epoch: AtomicU64,
    /// Moves with what is sent between two polls.
    sendings: AtomicU32,
    /// The epoch of a poller that said that it would sleep.
    handed_back: AtomicU64,
    stands_back: AtomicBool,
    is_over: AtomicBool,
    /// How long the system takes for next to nothing.
    call_takes: Duration,
}

impl Watch {
    /// A watch over nothing.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn new() -> io::Result<Self> {
        let mut watch = Self {
            outer: epoll::create(CreateFlags::CLOEXEC)?,
            data: epoll::create(CreateFlags::CLOEXEC)?,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            turn: AtomicU8::new(FREE),
            refused: AtomicU32::new(0),
            epoch: AtomicU64::new(0),
            sendings: AtomicU32::new(0),
            handed_back: AtomicU64::new(0),
            stands_back: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            call_takes: Duration::ZERO,
        };
        watch.call_takes = watch.measure_call();
        epoll::add(&watch.outer, &watch.bell, BELL, EventFlags::IN)?;
        epoll::add(&watch.outer, &watch.data, DATA, EventFlags::ONESHOT)?;
        Ok(watch)
    }

    /// Watches `source` from now on; the two highest tokens are the watch's own. A descriptor that is closed, in all
    /// processes that have it, is watched no more.
    ///
    /// # Errors
    /// It is watched already, or cannot be.
    pub fn add(&self, source: impl AsFd, token: u64, kind: Source) -> io::Result<()> {
        debug_assert!(token < DATA_TOKEN);
        let epoll = if kind.is_data() {
            &self.data
        } else {
            &self.outer
        };
        Ok(epoll::add(
            epoll,
            source,
            EventData::new_u64(token),
            kind.flags(),
        )?)
    }

    /// Watches `source` as another kind of data, also where it was not watched, and tells what it has at that moment.
    ///
    /// # Errors
    /// It cannot be.
    pub fn change(&self, source: impl AsFd, token: u64, kind: Source) -> io::Result<()> {
        debug_assert!(token < DATA_TOKEN && kind.is_data());
        let data = EventData::new_u64(token);
        let source = source.as_fd();
        match epoll::modify(&self.data, source, data, kind.flags()) {
            Err(Errno::NOENT) => self.add(source, token, kind),
            changed => Ok(changed?),
        }
    }

    /// Watches `source` no more.
    ///
    /// # Errors
    /// It was not watched as this kind.
    pub fn remove(&self, source: impl AsFd, kind: Source) -> io::Result<()> {
        let epoll = if kind.is_data() {
            &self.data
        } else {
            &self.outer
        };
        Ok(epoll::delete(epoll, source)?)
    }

    /// Starts the thread. It ends with `duty`, or after [`stop`](Self::stop).
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(self: &Arc<Self>, duty: Weak<dyn Duty>) -> io::Result<()> {
        let watch = Arc::clone(self);
        crate::thread::start("polyverbs-watch", move || watch.run(&duty))
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.ring();
    }

    /// Does `work` with the turn, as a poller; `None` where another thread has it. That one gets the processor, should it
    /// wait for it: otherwise a poller that spins would keep it from giving the turn back.
    #[inline]
    pub fn poll<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        // Also of one that is refused, or the thread would take it for gone and the next turn too.
        let before = self.epoch.fetch_add(1, Ordering::SeqCst);
        let Some(_turn) = self.turn(POLLED) else {
            self.give_way();
            return None;
        };
        self.refused.store(0, Ordering::Relaxed);
        // One that is quicker than the thread whenever something comes would never be noticed: the kernel wakes the thread,
        // sees that nothing is there any more, and lets it sleep on.
        let polls = (before + 1).wrapping_sub(self.handed_back.load(Ordering::Relaxed));
        if polls.is_multiple_of(UNHEARD) && !self.stood_back() {
            self.ring();
        }
        Some(work())
    }

    // Yielding is not enough where the scheduler prefers who yields: until the next tick, milliseconds, it comes back.
    #[cold]
    fn give_way(&self) {
        if self.refused.fetch_add(1, Ordering::Relaxed) < YIELDS {
            thread::yield_now();
        } else {
            thread::sleep(WAY);
        }
    }

    /// Does `work` with the turn without counting as a poller; `None` where another thread has it.
    pub fn visit<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        let _turn = self.turn(VISITED)?;
        Some(work())
    }

    /// Whether the thread leaves all to pollers: when they are gone it calls [`Duty::progress`] once, and that comes after
    /// whatever the caller has done.
    pub fn stands_back(&self) -> bool {
        fence(Ordering::SeqCst);
        self.stands_back.load(Ordering::SeqCst)
    }

    /// Whether it did a moment ago: for what is right in either case.
    #[inline]
    pub fn stood_back(&self) -> bool {
        self.stands_back.load(Ordering::Relaxed)
    }

    /// Whether the thread stands back, and pollers have found nothing to sleep for: they look again and again.
    pub fn is_polled_only(&self) -> bool {
        let handed_back = self.handed_back.load(Ordering::Relaxed);
        let polls = self.epoch.load(Ordering::Relaxed).wrapping_sub(handed_back);
        self.stood_back() && polls >= UNHEARD
    }

    /// Whether a system call costs so little that who polls has the time for one more.
    pub fn has_quick_calls(&self) -> bool {
        self.call_takes < QUICK
    }

    /// A poller leaves something for its next look: where it is gone, the thread takes over.
    pub fn leave(&self) {
        if !self.stands_back() {
            self.ring();
        }
    }

    /// Something is sent: whoever polled before is not gone.
    #[inline]
    pub fn stay(&self) {
        // Where two send at once one of them is not counted: it moves all the same.
        let sendings = self.sendings.load(Ordering::Relaxed);
        self.sendings
            .store(sendings.wrapping_add(1), Ordering::Relaxed);
    }

    /// A poller is about to sleep: the thread takes over at once.
    pub fn hand_back(&self) {
        let epoch = self.epoch.load(Ordering::SeqCst);
        if self.handed_back.swap(epoch, Ordering::SeqCst) != epoch
            && self.stands_back.load(Ordering::SeqCst)
        {
            self.ring();
        }
    }

    /// What streams have, several at a time; call it with the turn, until it gives none.
    ///
    /// # Errors
    /// The watch is of no use any more.
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

    #[inline]
    fn turn(&self, taken: u8) -> Option<Turn<'_>> {
        let turn = &self.turn;
        let is_ours = turn.load(Ordering::Relaxed) == FREE
            && turn
                .compare_exchange(FREE, taken, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        // Not before it is known to be ours: dropping one gives the turn back.
        is_ours.then(|| Turn(turn))
    }

    fn ring(&self) {
        // It is full only where it has been rung and not been heard yet.
        let _ = write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn run(&self, duty: &Weak<dyn Duty>) {
        let mut seen = self.epoch();
        let mut patience = Patience::new(self.call_takes);
        let mut vain = 0_u32;
        while let Some(round) = self.round(duty, true, None) {
            let has_poller = self.has_poller(seen);
            if !has_poller && !round.data {
                continue;
            }
            seen = if has_poller && patience.suffices() {
                match self.stand_back(duty, &mut patience) {
                    Some(epoch) => epoch,
                    None => return,
                }
            } else {
                self.epoch()
            };
            if has_poller {
                // What lies there while a poller reads is no proof that nobody does.
                let has_some = |duty: Arc<dyn Duty>| duty.sleep() || self.has_data();
                patience.learn(!self.is_polled() && duty.upgrade().is_some_and(has_some));
            }
            if let Some(duty) = duty.upgrade() {
                // A poller that has the turn may be waiting for this processor: trying again without a pause would keep it
                // from giving the turn back until the scheduler's next tick, milliseconds.
                if self.visit(|| guarded(|| duty.progress())).is_none() {
                    thread::sleep(WAY);
                    continue;
                }
                // Where it was mostly in vain, somebody else needs the processor for something to come.
                let is_worth_it = vain < VAIN || vain.is_multiple_of(AGAIN);
                let found = is_worth_it && self.linger(&*duty, seen);
                vain = if found { 0 } else { vain.wrapping_add(1) };
            }
        }
    }

    // What comes by other ways than a descriptor is cheaper to look for than to be woken by: so for a little while after
    // something has come, unless somebody polls. Whether there was more.
    fn linger(&self, duty: &dyn Duty, seen: u64) -> bool {
        let began = Instant::now();
        let (mut last, mut found) = (began, false);
        while self.epoch() == seen
            && !self.is_over()
            && let Some(has_some) = duty.peek()
        {
            let now = Instant::now();
            if has_some {
                self.visit(|| guarded(|| duty.progress()));
                (last, found) = (now, true);
            } else if now - last > LINGER {
                break;
            }
            // What is rare waits for its turn.
            if now - began > LONGEST {
                break;
            }
            // Not yielding: the scheduler may not come back before the next tick, and to who is woken it comes at once.
            spin_loop();
        }
        found
    }

    // Until the epoch has stood still for a while, or a poller has said that it will sleep: the epoch then.
    fn stand_back(&self, duty: &Weak<dyn Duty>, patience: &mut Patience) -> Option<u64> {
        self.heed_data(EventFlags::empty()).ok()?;
        self.stands_back.store(true, Ordering::SeqCst);
        let mut seen = self.signs();
        let epoch = loop {
            if self.handed_back.load(Ordering::SeqCst) == seen.0 {
                break Some(seen.0);
            }
            if self.round(duty, false, Some(patience.time)).is_none() {
                break None;
            }
            // A poller that is slow is none that is gone: one poll may take longer than all patience.
            let is_polled = self.is_polled();
            let now = self.signs();
            if now == seen && !is_polled {
                break Some(seen.0);
            }
            if let Some(duty) = duty.upgrade() {
                guarded(|| duty.tidy());
            }
            patience.grow();
            seen = now;
        };
        self.stands_back.store(false, Ordering::SeqCst);
        epoch
    }

    // Whether something lies there that no poller has read.
    fn has_data(&self) -> bool {
        has_events(&self.data)
    }

    // How long the system takes for next to nothing, when nothing else is in the way.
    fn measure_call(&self) -> Duration {
        let calls = (0..8).map(|_| {
            let began = Instant::now();
            self.has_data();
            began.elapsed()
        });
        calls.min().unwrap_or_default()
    }

    fn has_poller(&self, seen: u64) -> bool {
        let epoch = self.epoch();
        epoch != seen && epoch != self.handed_back.load(Ordering::SeqCst)
    }

    // Of a poller: the epoch, and what moves while it only sends.
    fn signs(&self) -> (u64, u32) {
        (self.epoch(), self.sendings.load(Ordering::Relaxed))
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    fn is_polled(&self) -> bool {
        self.turn.load(Ordering::Relaxed) == POLLED
    }

    // Sleeps once, and does what is rare. `None`: it is over.
    fn round(
        &self,
        duty: &Weak<dyn Duty>,
        with_data: bool,
        time: Option<Duration>,
    ) -> Option<Round> {
        if with_data {
            // Tells also what was there before.
            self.heed_data(EventFlags::IN | EventFlags::ONESHOT).ok()?;
        }
        let has_some = with_data && duty.upgrade().is_some_and(|duty| duty.sleep());
        let time = if has_some { Some(Duration::ZERO) } else { time };
        let mut events = [NO_EVENT; AT_ONCE];
        let count = wait(&self.outer, &mut events, time).ok()?;
        let duty = duty.upgrade().filter(|_| !self.is_over())?;
        if with_data {
            duty.wake();
        }
        let mut round = Round { data: has_some };
        for event in &events[..count] {
            match event.data.u64() {
                DATA_TOKEN => round.data = true,
                BELL_TOKEN => {
                    self.hear();
                    // A poller has left something, perhaps one whose epoch has been seen already.
                    round.data = true;
                }
                token => guarded(|| duty.attend(token)),
            }
        }
        Some(round)
    }

    fn heed_data(&self, flags: EventFlags) -> rustix::io::Result<()> {
        epoll::modify(&self.outer, &self.data, DATA, flags)
    }

    fn hear(&self) {
        let _ = read(&self.bell, &mut [0; 8]);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}

// Whether somebody who waits for these would not.
fn has_events(epoll: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(epoll, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// What a look brought.
struct Round {
    data: bool,
}

/// How long the epoch stands still before a poller counts as gone.
///
/// A program that polls its queues without a pause is best left alone. One that polls now and then, and else looks at
/// memory that a peer writes, needs somebody who reads meanwhile: each time that something lies there when the epoch has
/// stood still, the next time is shorter, until nobody stands back any more. That ends when pollers have been quicker than
/// the thread several times in a row.
///
/// How short and how long it may become depends on how long the system takes for a call: a poll that brings something takes
/// many, and so does the thread to see whether the epoch moved, on the processor that the poller needs. A call of a fifth
/// of a microsecond, as on an ordinary machine, makes the least of both.
#[derive(Clone, Copy, Debug)]
struct Patience {
    time: Duration,
    least: Duration,
    most: Duration,
    /// How often in a row a poller was quicker, while nobody stands back.
    quicker: u32,
}

impl Patience {
    const LEAST: RangeInclusive<Duration> = Duration::from_micros(20)..=Duration::from_micros(500);
    const MOST: RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_millis(8);
    const QUICKER: u32 = 3;

    /// Where a call takes that long.
    fn new(call: Duration) -> Self {
        let within = |range: RangeInclusive<Duration>, calls| {
            (call * calls).clamp(*range.start(), *range.end())
        };
        let most = within(Self::MOST, 10_000);
        Self {
            time: most,
            least: within(Self::LEAST, 100),
            most,
            quicker: 0,
        }
    }

    /// Whether standing back is worth it at all.
    fn suffices(self) -> bool {
        self.time > Duration::ZERO
    }

    /// A poller is there.
    fn grow(&mut self) {
        self.time = (self.time + self.time / 2).min(self.most);
    }

    /// Something lay there, or not.
    fn learn(&mut self, has_data: bool) {
        if has_data {
            self.quicker = 0;
            self.time = if self.time > self.least * 2 {
                (self.time / 4).max(self.least)
            } else {
                Duration::ZERO
            };
        } else if self.suffices() {
            self.time = (self.time * 2).clamp(self.least, self.most);
        } else {
            self.quicker += 1;
            if self.quicker == Self::QUICKER {
                (self.quicker, self.time) = (0, self.least);
            }
        }
    }
}

/// The turn, given back even where a handler panics.
struct Turn<'w>(&'w AtomicU8);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(FREE, Ordering::Release);
    }
}

// A panic is reported by the hook; the thread must go on.
fn guarded(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

fn wait(epoll: &OwnedFd, events: &mut [Event], time: Option<Duration>) -> io::Result<usize> {
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    match epoll::wait(epoll, events, time.as_ref()) {
        Ok(count) => Ok(count),
        Err(Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// How many sources one look tells at most.
pub const AT_ONCE: usize = 64;

/// How long the thread looks for more, and how long while there is more, before it sleeps.
const LINGER: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(1);
/// How often in a row it may be in vain, and after how many times it is tried again.
const VAIN: u32 = 8;
const AGAIN: u32 = 64;

/// A system call that does next to nothing takes a fifth of that on an ordinary machine, and a multiple under emulation.
const QUICK: Duration = Duration::from_micros(1);

/// After so many polls, since a poller last said that it would sleep, the thread is told of them.
const UNHEARD: u64 = 64;

/// How often a poller yields to whoever has the turn before it sleeps, and how long it then sleeps, as the thread does.
const YIELDS: u32 = 100;
const WAY: Duration = Duration::from_micros(20);

const FREE: u8 = 0;
const VISITED: u8 = 1;
const POLLED: u8 = 2;

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

//! Real time: a monotonic clock, and a thread that drives a network when something is due.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

// The C library reads clocks without the kernel where it can, and where it cannot (valgrind) as well.
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_getres, clock_gettime};
use polyverbs_engine::device::Device;
use polyverbs_engine::driver::Driver;
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::network::{Network, Progress};
use polyverbs_engine::time::{Host, Time};
use verbs_api::provider::{PerProcess, random, start_thread};

use crate::lock;

/// The host of one network of real devices.
///
/// Its timer thread starts when something is first due, in each process anew (a fork leaves threads behind), sleeps
/// until the earliest moment that [`wake_at`](Host::wake_at) was told, and ends with the network. It never looks before
/// something is due.
///
/// A panic in what is due (a handler of the program, say) does not end the thread.
pub struct RealHost {
    clock: Clock,
    network: OnceLock<Weak<dyn Progress>>,
    era: PerProcess<Arc<Era>>,
}

/// What the threads of one process share.
struct Era {
    /// The moment to wake at; [`Time::NEVER`] where nothing is due.
    earliest: AtomicU64,
    sleeper: Mutex<Sleeper>,
    woken: Condvar,
}

#[derive(Default)]
struct Sleeper {
    is_running: bool,
    is_over: bool,
}

#[derive(Clone, Copy)]
struct Clock {
    /// Nanoseconds, as the next.
    start: u64,
    tick: u64,
}

impl RealHost {
    /// A network that runs in real time; direct without a link.
    pub fn network<D: Driver>(link: Option<SharedLink<D::Header>>) -> Arc<Network<Device<D>>> {
        let host = Self::new();
        let network = Network::new(Arc::clone(&host) as Arc<dyn Host>, link);
        // Nothing has been noted yet: a new network has nothing to do.
        let _ = host.network.set(Arc::downgrade(&network) as _);
        network
    }

    fn new() -> Arc<Self> {
        crate::fence::offer();
        crate::large_pages::offer();
        Arc::new(Self {
            clock: Clock::new(),
            network: OnceLock::new(),
            era: PerProcess::new(|| Arc::new(Era::new())),
        })
    }

    /// Has the thread look at the time again; starts it where there is none.
    fn rouse(&self, era: &Arc<Era>, at: Time) {
        let Some(network) = self.network.get() else {
            return;
        };
        let mut sleeper = lock(&era.sleeper);
        if sleeper.is_running {
            drop(sleeper);
            era.woken.notify_one();
        } else if !sleeper.is_over {
            // Again, because of another thread that failed to start one and took the time back.
            era.note(at);
            sleeper.is_running = era.start(self.clock, network);
            if !sleeper.is_running {
                // So that the next call tries again.
                era.earliest.store(Time::NEVER.0, Ordering::SeqCst);
            }
        }
    }
}

impl Host for RealHost {
    fn now(&self) -> Time {
        self.clock.now()
    }

    #[inline]
    fn soon(&self) -> Time {
        self.clock.soon()
    }

    /// Atomics only, unless `at` is earlier than all that is noted: then a lock for an instant, or a thread is started.
    fn wake_at(&self, at: Time) {
        let era = &*self.era;
        if era.note(at) {
            self.rouse(era, at);
        }
    }

    fn random(&self) -> u64 {
        random()
    }
}

impl Drop for RealHost {
    fn drop(&mut self) {
        if let Some(era) = self.era.made() {
            lock(&era.sleeper).is_over = true;
            era.woken.notify_one();
        }
    }
}

impl Era {
    fn new() -> Self {
        Self {
            earliest: AtomicU64::new(Time::NEVER.0),
            sleeper: Mutex::default(),
            woken: Condvar::new(),
        }
    }

    fn earliest(&self) -> Time {
        Time(self.earliest.load(Ordering::SeqCst))
    }

    /// Whether `at` is earlier than all that was noted before.
    fn note(&self, at: Time) -> bool {
        self.earliest() > at && self.earliest.fetch_min(at.0, Ordering::SeqCst) > at.0
    }

    fn start(self: &Arc<Self>, clock: Clock, network: &Weak<dyn Progress>) -> bool {
        let (era, network) = (Arc::clone(self), Weak::clone(network));
        start_thread("polyverbs-timer", move || era.run(clock, &network)).is_ok()
    }

    fn run(&self, clock: Clock, network: &Weak<dyn Progress>) {
        while self.sleep(clock) {
            let Some(network) = network.upgrade() else {
                break;
            };
            self.attend(&*network, || clock.now());
        }
        lock(&self.sleeper).is_over = true;
    }

    /// Has the network do what is due, and notes what will be due next.
    fn attend(&self, network: &dyn Progress, clock: impl Fn() -> Time) {
        // First forgotten, then looked for: what is noted meanwhile stays noted.
        self.earliest.store(Time::NEVER.0, Ordering::SeqCst);
        let now = clock();
        // Panics are reported by the hook, and what is due later must still happen.
        let _ = catch_unwind(AssertUnwindSafe(|| network.handle_timeout(now)));
        if let Some(due) = network.next_timeout() {
            // What was due and still is, is being done by another thread, which goes on by itself: no hurry.
            self.note(if due <= now {
                clock().after(PAUSE)
            } else {
                due
            });
        }
    }

    /// How long nothing is due yet.
    fn time_left(&self, now: Time) -> Duration {
        Duration::from_nanos(self.earliest().0.saturating_sub(now.0))
    }

    /// Until something is due; `false` when nothing ever will be.
    fn sleep(&self, clock: Clock) -> bool {
        let mut sleeper = lock(&self.sleeper);
        while !sleeper.is_over {
            let time = self.time_left(clock.now());
            if time.is_zero() {
                return true;
            }
            let woken = self.woken.wait_timeout(sleeper, time);
            sleeper = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }
}

impl Clock {
    fn new() -> Self {
        Self {
            start: read(ClockId::CLOCK_MONOTONIC),
            tick: clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).map_or(0, nanoseconds),
        }
    }

    // The last tick may have been before the start.
    fn since_start(self, at: u64) -> Time {
        Time(at.saturating_sub(self.start))
    }

    fn now(self) -> Time {
        self.since_start(read(ClockId::CLOCK_MONOTONIC))
    }

    // The kernel notes the time at each tick, and nobody has to ask a device for it.
    fn soon(self) -> Time {
        self.soon_after(read(ClockId::CLOCK_MONOTONIC_COARSE))
    }

    // The next tick, after which the kernel has noted a later time.
    fn soon_after(self, last_tick: u64) -> Time {
        Time(self.since_start(last_tick).0 + self.tick)
    }
}

// Every Linux has these clocks.
fn read(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, nanoseconds)
}

// A clock that begins with the machine.
fn nanoseconds(time: TimeSpec) -> u64 {
    time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs()
}

/// How long the thread leaves alone what another thread is at.
const PAUSE: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests;

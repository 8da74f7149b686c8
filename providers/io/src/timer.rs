//! Runs a network in real time: a monotonic clock, and a thread that calls the network when a job is due.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

// The C library reads clocks without the kernel if it can, and with it elsewhere (under valgrind).
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_getres, clock_gettime};
use polyverbs_engine::device::Device;
use polyverbs_engine::driver::Driver;
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::network::{Network, Progress};
use polyverbs_engine::time::{Host, Time};
use verbs_api::VerbError;
use verbs_api::provider::{Condvar, Mutex, PerProcess, random, start_thread};

/// The host of one network in real time: its clock and its timer thread.
///
/// The timer thread starts with the first queue pair, whose creation fails if the thread cannot be started, or with an earlier
/// call of [`wake_at`](Host::wake_at); if that call cannot start it, the next one tries again. It starts in each process anew,
/// because a fork does not copy threads. It sleeps until the earliest time that was passed to `wake_at`, never calls the network
/// before something is due, and ends with the network.
///
/// A panic in a due job, for example in a handler of the program, does not end the thread.
pub struct RealHost {
    clock: Clock,
    network: OnceLock<Weak<dyn Progress>>,
    era: PerProcess<Arc<Era>>,
}

/// The state of a timer thread, which the threads of one process share.
struct Era {
    /// The time at which the timer thread wakes; [`Time::NEVER`] if nothing is due.
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
    /// The monotonic time at which the host began. `tick` is how often the coarse clock advances; both are nanoseconds.
    start: u64,
    tick: u64,
}

impl RealHost {
    /// Creates a network that runs in real time. If `link` is `None`, its devices exchange messages directly, without
    /// frames.
    pub fn network<D: Driver>(link: Option<SharedLink<D::Header>>) -> Arc<Network<Device<D>>> {
        let host = Self::new();
        let network = Network::new(Arc::clone(&host) as Arc<dyn Host>, link);
        // Nothing has called `wake_at` yet, because a new network has no jobs.
        let _ = host.network.set(Arc::downgrade(&network) as _);
        network
    }

    fn new() -> Arc<Self> {
        #[cfg(target_os = "linux")]
        crate::fence::offer();
        #[cfg(target_os = "linux")]
        crate::large_pages::offer();
        Arc::new(Self {
            clock: Clock::new(),
            network: OnceLock::new(),
            era: PerProcess::new(|| Arc::new(Era::new())),
        })
    }

    /// Wakes the timer thread so that it compares the time with the earliest one again, and starts the thread if there is
    /// none.
    fn rouse(&self, era: &Arc<Era>, at: Time) {
        let Some(network) = self.network.get() else {
            return;
        };
        let mut sleeper = era.sleeper.lock();
        if sleeper.is_running {
            drop(sleeper);
            era.woken.notify_one();
        } else if !sleeper.is_over {
            // Another thread that failed to start the timer thread may have reset the earliest time.
            era.note(at);
            if era.start(&mut sleeper, self.clock, network).is_err() {
                // The reset makes the next call try again.
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

    /// Uses atomics only, unless `at` is earlier than all noted times: then this takes a lock for a moment, or starts the
    /// timer thread.
    fn wake_at(&self, at: Time) {
        let era = &*self.era;
        if era.note(at) {
            self.rouse(era, at);
        }
    }

    fn prepare(&self) -> Result<(), VerbError> {
        let Some(network) = self.network.get() else {
            return Ok(());
        };
        let era = &*self.era;
        let mut sleeper = era.sleeper.lock();
        if sleeper.is_running || sleeper.is_over {
            return Ok(());
        }
        let started = era.start(&mut sleeper, self.clock, network);
        started.map_err(|error| VerbError::os("timer thread", error))
    }

    fn random(&self) -> u64 {
        random()
    }
}

impl Drop for RealHost {
    fn drop(&mut self) {
        if let Some(era) = self.era.made() {
            era.sleeper.lock().is_over = true;
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

    /// Notes a time at which the thread must wake. Returns whether it is earlier than all times that were noted before.
    fn note(&self, at: Time) -> bool {
        self.earliest() > at && self.earliest.fetch_min(at.0, Ordering::SeqCst) > at.0
    }

    fn start(
        self: &Arc<Self>,
        sleeper: &mut Sleeper,
        clock: Clock,
        network: &Weak<dyn Progress>,
    ) -> io::Result<()> {
        let (era, network) = (Arc::clone(self), Weak::clone(network));
        start_thread("polyverbs-timer", move || era.run(clock, &network))?;
        sleeper.is_running = true;
        Ok(())
    }

    fn run(&self, clock: Clock, network: &Weak<dyn Progress>) {
        while self.sleep(clock) {
            let Some(network) = network.upgrade() else {
                break;
            };
            self.attend(&*network, || clock.now());
        }
        self.sleeper.lock().is_over = true;
    }

    /// Makes the network run its due jobs, and notes the time of the next one.
    fn attend(&self, network: &dyn Progress, clock: impl Fn() -> Time) {
        // The time is reset before the jobs are read, so that a time that is noted meanwhile stays noted.
        self.earliest.store(Time::NEVER.0, Ordering::SeqCst);
        let now = clock();
        // The panic hook reports panics, and later jobs must still run.
        let _ = catch_unwind(AssertUnwindSafe(|| network.handle_timeout(now)));
        if let Some(due) = network.next_timeout() {
            // Another thread is doing a job that is still due, and will continue by itself.
            self.note(if due <= now {
                clock().after(PAUSE)
            } else {
                due
            });
        }
    }

    /// Returns the time until the earliest noted time; zero if it has come.
    fn time_left(&self, now: Time) -> Duration {
        Duration::from_nanos(self.earliest().0.saturating_sub(now.0))
    }

    /// Sleeps until the earliest noted time. Returns `false` when the host has ended.
    fn sleep(&self, clock: Clock) -> bool {
        let mut sleeper = self.sleeper.lock();
        while !sleeper.is_over {
            let time = self.time_left(clock.now());
            if time.is_zero() {
                return true;
            }
            sleeper = self.woken.wait_timeout(sleeper, time);
        }
        false
    }
}

/// The clock that is read without access to a clock device, because the kernel notes the time at each tick.
#[cfg(target_os = "linux")]
const COARSE: ClockId = ClockId::CLOCK_MONOTONIC_COARSE;
#[cfg(not(target_os = "linux"))]
const COARSE: ClockId = ClockId::CLOCK_MONOTONIC;

impl Clock {
    fn new() -> Self {
        Self {
            start: read(ClockId::CLOCK_MONOTONIC),
            tick: clock_getres(COARSE).map_or(0, nanoseconds),
        }
    }

    // The last tick may have been before the start.
    fn since_start(self, at: u64) -> Time {
        Time(at.saturating_sub(self.start))
    }

    fn now(self) -> Time {
        self.since_start(read(ClockId::CLOCK_MONOTONIC))
    }

    fn soon(self) -> Time {
        self.soon_after(read(COARSE))
    }

    // The time of the next tick, at which the kernel notes a later time.
    fn soon_after(self, last_tick: u64) -> Time {
        Time(self.since_start(last_tick).0 + self.tick)
    }
}

// Every system has these clocks.
fn read(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, nanoseconds)
}

// These clocks begin with the start of the machine, so their values are not negative.
fn nanoseconds(time: TimeSpec) -> u64 {
    time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs()
}

/// The delay after which the timer thread checks again whether a job that another thread is doing is done.
const PAUSE: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests;

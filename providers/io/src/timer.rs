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
use verbs_api::provider::{random, start_thread};

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
    era: Arc<Era>,
}

/// What the threads of one process share.
struct Era {
    process: u32,
    /// The moment to wake at; [`Time::NEVER`] where nothing is due.
    earliest: AtomicU64,
    sleeper: Mutex<Sleeper>,
    woken: Condvar,
    /// The process that a fork made of this one. A lock that was held when the process forked stays behind.
    child: OnceLock<Arc<Self>>,
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
            era: Arc::new(Era::new(std::process::id())),
        })
    }

    fn era(&self, process: u32) -> &Arc<Era> {
        let mut era = &self.era;
        while era.process != process {
            era = era.child.get_or_init(|| Arc::new(Era::new(process)));
        }
        era
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
        let era = self.era(std::process::id());
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
        let era = self.era(std::process::id());
        lock(&era.sleeper).is_over = true;
        era.woken.notify_one();
    }
}

impl Era {
    fn new(process: u32) -> Self {
        Self {
            process,
            earliest: AtomicU64::new(Time::NEVER.0),
            sleeper: Mutex::default(),
            woken: Condvar::new(),
            child: OnceLock::new(),
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
            // First forgotten, then looked for: what is noted meanwhile stays noted.
            self.earliest.store(Time::NEVER.0, Ordering::SeqCst);
            let now = clock.now();
            // Panics are reported by the hook, and what is due later must still happen.
            let _ = catch_unwind(AssertUnwindSafe(|| network.handle_timeout(now)));
            if let Some(due) = network.next_timeout() {
                // What was due and still is, is being done by another thread, which goes on by itself: no hurry.
                self.note(if due <= now {
                    clock.now().after(PAUSE)
                } else {
                    due
                });
            }
        }
        lock(&self.sleeper).is_over = true;
    }

    /// Until something is due; `false` when nothing ever will be.
    fn sleep(&self, clock: Clock) -> bool {
        let mut sleeper = lock(&self.sleeper);
        while !sleeper.is_over {
            let (earliest, now) = (self.earliest(), clock.now());
            if earliest <= now {
                return true;
            }
            let time = Duration::from_nanos(earliest.0 - now.0);
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
        let last_tick = self.since_start(read(ClockId::CLOCK_MONOTONIC_COARSE));
        Time(last_tick.0 + self.tick)
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
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// Notes when what was due was done.
    struct Alarms {
        host: Arc<RealHost>,
        due: Mutex<Vec<Time>>,
        done: Mutex<Vec<(Time, Time)>>,
        rung: Condvar,
        calls: AtomicUsize,
        panics: bool,
    }

    impl Alarms {
        fn new(panics: bool) -> Arc<Self> {
            let host = RealHost::new();
            let alarms = Arc::new(Self {
                host: Arc::clone(&host),
                due: Mutex::default(),
                done: Mutex::default(),
                rung: Condvar::new(),
                calls: AtomicUsize::new(0),
                panics,
            });
            drive(&host, &alarms);
            alarms
        }

        fn set(&self, at: Time) {
            self.due.lock().unwrap().push(at);
            self.host.wake_at(at);
        }

        fn after(&self, delay: Duration) -> Time {
            self.host.now().after(delay)
        }

        /// Waits until `count` alarms have rung.
        fn wait(&self, count: usize) -> Vec<(Time, Time)> {
            let done = self.done.lock().unwrap();
            let missing = |done: &mut Vec<_>| done.len() < count;
            let waited = self.rung.wait_timeout_while(done, LONG, missing);
            let (done, _) = waited.unwrap();
            assert!(done.len() >= count, "{} of {count} rang", done.len());
            done.clone()
        }
    }

    impl Progress for Alarms {
        fn next_timeout(&self) -> Option<Time> {
            self.due.lock().unwrap().iter().min().copied()
        }

        fn handle_timeout(&self, now: Time) {
            self.calls.fetch_add(1, Ordering::SeqCst);
            let mut due = self.due.lock().unwrap();
            let rung = due.extract_if(.., |at| *at <= now).map(|at| (at, now));
            self.done.lock().unwrap().extend(rung);
            drop(due);
            self.rung.notify_all();
            assert!(!self.panics, "on purpose");
        }
    }

    fn drive<N: Progress + 'static>(host: &RealHost, network: &Arc<N>) {
        let network = Arc::downgrade(network) as Weak<dyn Progress>;
        assert!(host.network.set(network).is_ok());
    }

    const LONG: Duration = Duration::from_secs(20);

    fn eventually(mut what: impl FnMut() -> bool) -> bool {
        let began = Instant::now();
        while began.elapsed() < LONG {
            if what() {
                return true;
            }
            thread::sleep(Duration::from_millis(1));
        }
        false
    }

    #[test]
    fn soon_is_about_now() {
        let host = RealHost::new();
        // A tick may come late on a machine that is loaded.
        let late = Duration::from_millis(50);
        let mut latest = Time::default();
        for _ in 0..100_000 {
            let (before, soon) = (host.now(), host.soon());
            assert!(before <= soon.after(late), "{soon:?} at {before:?}");
            assert!(soon <= host.now().after(late), "{soon:?} at {before:?}");
            assert!(soon >= latest);
            latest = soon;
        }
    }

    #[test]
    fn no_thread_is_started_before_something_is_due() {
        let alarms = Alarms::new(false);
        assert!(!lock(&alarms.host.era.sleeper).is_running);
        alarms.set(Time::default());
        alarms.wait(1);
        assert!(lock(&alarms.host.era.sleeper).is_running);
    }

    #[test]
    fn an_earlier_moment_shortens_the_sleep() {
        let alarms = Alarms::new(false);
        alarms.set(alarms.after(Duration::from_secs(3600)));
        thread::sleep(Duration::from_millis(5));
        alarms.set(alarms.after(Duration::from_millis(5)));
        assert_eq!(alarms.wait(1).len(), 1);
    }

    #[test]
    fn the_thread_looks_only_when_something_is_due() {
        let alarms = Alarms::new(false);
        for delay in [20, 40, 60] {
            alarms.set(alarms.after(Duration::from_millis(delay)));
        }
        alarms.wait(3);
        thread::sleep(Duration::from_millis(20));
        let looks = alarms.calls.load(Ordering::SeqCst);
        assert!(looks <= 3, "{looks} looks");
    }

    #[test]
    fn what_another_thread_is_at_is_left_alone() {
        struct Busy(AtomicUsize);
        impl Progress for Busy {
            fn next_timeout(&self) -> Option<Time> {
                Some(Time::default())
            }
            fn handle_timeout(&self, _now: Time) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let (host, busy) = (RealHost::new(), Arc::new(Busy(AtomicUsize::new(0))));
        drive(&host, &busy);
        let began = Instant::now();
        host.wake_at(Time::default());
        assert!(eventually(|| busy.0.load(Ordering::SeqCst) > 0));
        thread::sleep(Duration::from_millis(50));
        let looks = busy.0.load(Ordering::SeqCst) as u128;
        let most = began.elapsed().as_nanos() / PAUSE.as_nanos() + 1;
        assert!(looks <= most, "{looks} looks, expected at most {most}");
    }

    #[test]
    fn no_wake_up_is_lost() {
        let alarms = Alarms::new(false);
        let threads: Vec<_> = (0..4_u64)
            .map(|thread| {
                let alarms = Arc::clone(&alarms);
                thread::spawn(move || {
                    for turn in 0..2000_u64 {
                        alarms.set(alarms.after(Duration::from_nanos(
                            (turn * 7919 + thread * 104_729) % 60_000,
                        )));
                        if turn % 50 == 0 {
                            thread::sleep(Duration::from_micros(100));
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(alarms.wait(8000).iter().all(|(due, done)| due <= done));
        // One at a time: each finds the thread asleep, or about to be.
        for turn in 1..=2000 {
            alarms.set(alarms.after(Duration::from_nanos(turn % 3 * 500)));
            alarms.wait(8000 + turn as usize);
        }
    }

    #[test]
    fn nobody_is_woken_between_looking_and_sleeping() {
        let alarms = Alarms::new(false);
        alarms.set(Time::default());
        alarms.wait(1);
        // As the thread does, which has looked and will sleep: a wake-up now would not be heard.
        let sleeper = lock(&alarms.host.era.sleeper);
        let waker = {
            let alarms = Arc::clone(&alarms);
            thread::spawn(move || alarms.set(Time::default()))
        };
        assert!(eventually(|| !alarms.due.lock().unwrap().is_empty()));
        thread::sleep(Duration::from_millis(20));
        assert!(!waker.is_finished());
        drop(sleeper);
        waker.join().unwrap();
        alarms.wait(2);
    }

    #[test]
    fn a_panic_does_not_end_the_thread() {
        let alarms = Alarms::new(true);
        for count in 1..=3 {
            alarms.set(alarms.after(Duration::ZERO));
            alarms.wait(count);
        }
    }

    #[test]
    fn the_thread_ends_with_the_network() {
        let alarms = Alarms::new(false);
        alarms.set(Time::default());
        alarms.set(alarms.after(Duration::from_secs(3600)));
        alarms.wait(1);
        let era = Arc::downgrade(&alarms.host.era);
        drop(alarms);
        assert!(eventually(|| era.upgrade().is_none()));
    }

    #[test]
    fn a_host_that_outlives_its_network_starts_no_more_threads() {
        let alarms = Alarms::new(false);
        let host = Arc::clone(&alarms.host);
        alarms.set(Time::default());
        alarms.wait(1);
        drop(alarms);
        assert!(eventually(|| {
            host.wake_at(Time::default());
            Arc::strong_count(&host.era) == 1
        }));
        host.wake_at(Time::default());
        assert_eq!(Arc::strong_count(&host.era), 1);
    }

    #[test]
    fn a_child_process_starts_anew() {
        let host = RealHost::new();
        let parent = host.era(std::process::id());
        assert!(Arc::ptr_eq(parent, &host.era));
        parent.note(Time(5));
        let child = host.era(u32::MAX);
        assert_eq!(child.earliest(), Time::NEVER);
        assert!(Arc::ptr_eq(child, host.era(u32::MAX)));
        assert!(!Arc::ptr_eq(child, host.era(u32::MAX - 1)));
    }
}

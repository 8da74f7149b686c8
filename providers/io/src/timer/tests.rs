use std::sync::mpsc;
use std::thread;

use rustix::param::page_size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_kit::process::ChildProcess;
use test_kit::waiting::{PATIENCE, WatchedThread, until};

use super::*;
use crate::fork::tests::in_a_child;

/// Records when each due job was done.
struct Alarms {
    host: Arc<RealHost>,
    due: Mutex<Vec<Time>>,
    done: Mutex<Vec<(Time, Time)>>,
    rung: Condvar,
    panics: bool,
}

impl Alarms {
    fn new(panics: bool) -> Arc<Self> {
        let host = RealHost::new();
        let alarms = Arc::new(Self::of(Arc::clone(&host), panics));
        drive(&host, &alarms);
        alarms
    }

    fn of(host: Arc<RealHost>, panics: bool) -> Self {
        Self {
            host,
            due: Mutex::default(),
            done: Mutex::default(),
            rung: Condvar::new(),
            panics,
        }
    }

    fn set(&self, at: Time) {
        self.due.lock().push(at);
        self.host.wake_at(at);
    }

    fn after(&self, delay: Duration) -> Time {
        self.host.now().after(delay)
    }

    /// Waits until `count` alarms have gone off.
    fn wait(&self, count: usize) -> Vec<(Time, Time)> {
        let done = self.done.lock();
        let missing = |done: &mut Vec<_>| done.len() < count;
        let done = self.rung.wait_timeout_while(done, PATIENCE, missing);
        assert!(done.len() >= count, "{} of {count} rang", done.len());
        done.clone()
    }
}

impl Progress for Alarms {
    fn next_timeout(&self) -> Option<Time> {
        self.due.lock().iter().min().copied()
    }

    fn handle_timeout(&self, now: Time) {
        let mut due = self.due.lock();
        let rung = due.extract_if(.., |at| *at <= now).map(|at| (at, now));
        self.done.lock().extend(rung);
        drop(due);
        self.rung.notify_all();
        assert!(!self.panics, "on purpose");
    }
}

fn drive<N: Progress + 'static>(host: &RealHost, network: &Arc<N>) {
    let network = Arc::downgrade(network) as Weak<dyn Progress>;
    assert!(host.network.set(network).is_ok());
}

const HOUR: Duration = Duration::from_secs(3600);

/// Does in virtual time, from `now` to `end`, what the timer thread does. Returns at which times it called the network.
fn attend_until(era: &Era, network: &dyn Progress, mut now: Time, end: Time) -> Vec<Time> {
    let mut looks = Vec::new();
    loop {
        now = now.after(era.time_left(now));
        if now > end {
            return looks;
        }
        era.attend(network, || now);
        looks.push(now);
    }
}

/// Alarms that only the test triggers: their host has no network.
fn alarms_without_thread() -> Alarms {
    Alarms::of(RealHost::new(), false)
}

#[test]
fn soon_is_about_now() {
    let host = RealHost::new();
    let mut latest = Time::default();
    for _ in 0..1000 {
        let before = host.now();
        // The kernel notes the time at a tick, which may come late on a loaded machine.
        until(|| host.soon() >= before);
        let soon = host.soon();
        // The next tick is less than a tick away.
        assert!(soon.0 <= host.now().0 + host.clock.tick, "{soon:?}");
        assert!(soon >= latest);
        latest = soon;
    }
}

#[test]
fn soon_is_a_tick_after_the_last_one() {
    let (start, tick) = (1_000_000, 4000);
    let clock = Clock { start, tick };
    for (last_tick, soon) in [
        (0, 4000),
        (999_999, 4000),
        (1_000_001, 4001),
        (1_008_000, 12_000),
    ] {
        assert_eq!(clock.soon_after(last_tick), Time(soon));
    }
}

#[test]
fn no_thread_is_started_before_something_is_due() {
    let alarms = Alarms::new(false);
    assert!(!alarms.host.era.sleeper.lock().is_running);
    alarms.set(Time::default());
    alarms.wait(1);
    assert!(alarms.host.era.sleeper.lock().is_running);
}

const IS_CHILD: &str = "POLYVERBS_TEST_CHILD";

#[test]
#[ignore = "a process of the other tests"]
fn without_room_for_a_thread() {
    if std::env::var_os(IS_CHILD).is_none() {
        return;
    }
    let alarms = Alarms::new(false);
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let before = getrlimit(Resource::As);
    // The heap may grow a little; the stack of a thread takes 2 MiB.
    let little = Rlimit {
        current: Some(pages * page_size() as u64 + (1 << 20)),
        ..before
    };
    setrlimit(Resource::As, little).unwrap();
    let refused = alarms.host.prepare();
    setrlimit(Resource::As, before).unwrap();
    let errno = libc::EAGAIN;
    assert!(matches!(refused, Err(VerbError::Os { errno: found, .. }) if found == errno));
    alarms.host.prepare().unwrap();
    assert!(alarms.host.era.sleeper.lock().is_running);
}

#[test]
fn a_thread_that_cannot_be_started_is_an_error_of_prepare() {
    ChildProcess::start("timer::tests::without_room_for_a_thread", IS_CHILD, "").ends_well();
}

#[test]
fn an_earlier_moment_shortens_the_wait() {
    let alarms = Alarms::new(false);
    alarms.set(alarms.after(HOUR));
    alarms.set(alarms.after(Duration::from_millis(5)));
    assert_eq!(alarms.wait(1).len(), 1);
}

#[test]
fn the_thread_drives_the_network_only_when_a_job_is_due() {
    let alarms = alarms_without_thread();
    let due = [20, 40, 60].map(Time);
    due.iter().rev().for_each(|at| alarms.set(*at));
    let looks = attend_until(&alarms.host.era, &alarms, Time(1), Time(1_000_000));
    assert_eq!(looks, due);
    assert_eq!(*alarms.done.lock(), due.map(|at| (at, at)));
}

#[test]
fn a_job_of_another_thread_is_left_alone() {
    struct Busy;
    impl Progress for Busy {
        fn next_timeout(&self) -> Option<Time> {
            Some(Time::default())
        }
        fn handle_timeout(&self, _now: Time) {}
    }
    let host = RealHost::new();
    host.wake_at(Time::default());
    let looks = attend_until(&host.era, &Busy, Time(7), Time(7).after(PAUSE * 500));
    let expected = (0..=500).map(|pauses| Time(7).after(PAUSE * pauses));
    assert!(looks.into_iter().eq(expected));
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
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(alarms.wait(8000).iter().all(|(due, done)| due <= done));
    // The alarms come one at a time, so each finds the thread asleep, or about to sleep.
    for turn in 1..=2000 {
        alarms.set(alarms.after(Duration::from_nanos(turn % 3 * 500)));
        alarms.wait(8000 + turn as usize);
    }
}

#[test]
fn no_wake_up_is_sent_between_checking_and_sleeping() {
    let alarms = Alarms::new(false);
    alarms.set(Time::default());
    alarms.wait(1);
    // The thread has checked and is about to sleep, so it would miss a wake-up now.
    let sleeper = alarms.host.era.sleeper.lock();
    let (tell, told) = mpsc::channel();
    let waker = {
        let alarms = Arc::clone(&alarms);
        thread::spawn(move || {
            tell.send(WatchedThread::current()).unwrap();
            alarms.set(Time::default());
        })
    };
    let waker_thread = told.recv().unwrap();
    until(|| waker.is_finished() || has_noted(&alarms) && waker_thread.is_blocked());
    assert!(!waker.is_finished());
    drop(sleeper);
    waker.join().unwrap();
    alarms.wait(2);
}

fn has_noted(alarms: &Alarms) -> bool {
    alarms.host.era.earliest() == Time::default()
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
    alarms.set(alarms.after(HOUR));
    alarms.wait(1);
    let era = Arc::downgrade(&alarms.host.era);
    drop(alarms);
    until(|| era.upgrade().is_none());
}

#[test]
fn a_host_that_outlives_its_network_starts_no_more_threads() {
    let alarms = Alarms::new(false);
    let host = Arc::clone(&alarms.host);
    alarms.set(Time::default());
    alarms.wait(1);
    drop(alarms);
    until(|| {
        host.wake_at(Time::default());
        Arc::strong_count(&host.era) == 1
    });
    host.wake_at(Time::default());
    assert_eq!(Arc::strong_count(&host.era), 1);
}

#[test]
fn a_child_process_starts_anew() {
    let host = RealHost::new();
    host.era.note(Time(5));
    assert!(in_a_child(|| host.era.earliest() == Time::NEVER));
    assert_eq!(host.era.earliest(), Time(5));
}

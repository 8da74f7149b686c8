//! The clock by which a layer delays answers, completions and events.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs_api::provider::{Condvar, Mutex, start_thread};

/// A job that a clock runs at its time.
pub type Job = Box<dyn FnOnce() + Send>;

/// The clock of a layer. Tests bring one that they advance.
pub trait Clock: Send + Sync + 'static {
    /// Returns the time since a fixed moment.
    fn now(&self) -> Duration;

    /// Blocks the calling thread, which posts, polls or queries, for this time.
    fn sleep(&self, time: Duration);

    /// Runs a job when this time has passed, with no lock held.
    fn after(&self, time: Duration, job: Job);

    /// Drops the jobs that have not run: the last open device of the layer was closed.
    fn clear(&self);
}

/// The clock of the machine. Its thread runs while jobs wait.
#[derive(Default)]
pub struct RealClock {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// By time, and in the order of arrival.
    jobs: BTreeMap<(Instant, u64), Job>,
    arrived: u64,
    has_thread: bool,
}

fn epoch() -> Instant {
    use std::sync::OnceLock;
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

impl Shared {
    /// Runs the jobs in the order of their times, until none waits.
    fn run(&self) {
        let mut waiting = self.waiting.lock();
        loop {
            let Some(&(at, _)) = waiting.jobs.keys().next() else {
                waiting.has_thread = false;
                return;
            };
            let left = at.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                waiting = self.changed.wait_timeout(waiting, left);
                continue;
            }
            let job = waiting.jobs.pop_first();
            drop(waiting);
            if let Some((_, job)) = job {
                // A handler of the program may panic, which its panic hook reports; later jobs must run all the same.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
            waiting = self.waiting.lock();
        }
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        epoch().elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn after(&self, time: Duration, job: Job) {
        let mut waiting = self.shared.waiting.lock();
        let number = waiting.arrived;
        waiting.arrived += 1;
        waiting.jobs.insert((Instant::now() + time, number), job);
        let needs_thread = !std::mem::replace(&mut waiting.has_thread, true);
        drop(waiting);
        self.shared.changed.notify_all();
        if needs_thread {
            let shared = Arc::clone(&self.shared);
            if start_thread("polyverbs-layer", move || shared.run()).is_err() {
                // Without a thread the caller does its work: a verb that is late must be answered.
                self.shared.run();
            }
        }
    }

    fn clear(&self) {
        let jobs = std::mem::take(&mut self.shared.waiting.lock().jobs);
        self.shared.changed.notify_all();
        drop(jobs);
    }
}

impl Drop for RealClock {
    fn drop(&mut self) {
        self.clear();
    }
}

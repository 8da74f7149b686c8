//! Things that are due later, in the order of their time.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::sync::Mutex;
use crate::time::{Host, Time};

/// Something that runs when its time has come. Runs with no lock held.
pub type Job = Box<dyn FnOnce(Time) + Send>;

/// Jobs of one network, all its devices together.
pub struct Timers {
    host: Arc<dyn Host>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// By time, and those of one time in the order in which they were added.
    jobs: BTreeMap<(Time, u64), Job>,
    added: u64,
    /// Threads that run jobs which they have taken.
    running: usize,
}

/// A thread that runs jobs, also where one panics.
struct Running<'t>(&'t Timers);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().running -= 1;
    }
}

impl Timers {
    /// No job.
    pub fn new(host: Arc<dyn Host>) -> Self {
        Self {
            host,
            queue: Mutex::default(),
        }
    }

    /// Now.
    pub fn now(&self) -> Time {
        self.host.now()
    }

    /// Not before now, and some milliseconds after it at most.
    #[inline]
    pub fn soon(&self) -> Time {
        self.host.soon()
    }

    /// A number that peers cannot guess: [`Host::random`].
    pub fn random(&self) -> u64 {
        self.host.random()
    }

    /// Runs `job` at `at`, or at the next look after it.
    pub fn add(&self, at: Time, job: Job) {
        let mut queue = self.queue.lock();
        queue.added += 1;
        let key = (at, queue.added);
        queue.jobs.insert(key, job);
        let is_first = queue.jobs.keys().next() == Some(&key);
        drop(queue);
        if is_first {
            self.host.wake_at(at);
        }
    }

    /// Tells the host that something is due at `at`.
    pub fn wake_at(&self, at: Time) {
        self.host.wake_at(at);
    }

    /// When the first job is due.
    pub fn next(&self) -> Option<Time> {
        self.queue.lock().jobs.keys().next().map(|(at, _)| *at)
    }

    /// Runs the jobs that are due at `now`. One that adds itself again runs in the next call.
    pub fn run_due(&self, now: Time) {
        let mut queue = self.queue.lock();
        let later = queue.jobs.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut queue.jobs, later);
        queue.running += 1;
        drop(queue);
        let _running = Running(self);
        due.into_values().for_each(|job| job(now));
    }

    /// Whether no job is left, and none is being run.
    pub fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.jobs.is_empty() && queue.running == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Still;

    impl Host for Still {
        fn now(&self) -> Time {
            Time(0)
        }

        fn wake_at(&self, _at: Time) {}

        fn random(&self) -> u64 {
            0
        }
    }

    #[test]
    fn jobs_that_are_left_or_run_keep_the_timers_from_being_idle() {
        let timers = Arc::new(Timers::new(Arc::new(Still)));
        assert!(timers.is_idle());
        let was_idle = Arc::new(AtomicBool::new(true));
        let (running, seen) = (Arc::clone(&timers), Arc::clone(&was_idle));
        let look = move |_| seen.store(running.is_idle(), Ordering::Relaxed);
        timers.add(Time(1), Box::new(look));
        timers.run_due(Time(0));
        assert!(!timers.is_idle() && was_idle.load(Ordering::Relaxed));
        timers.run_due(Time(1));
        assert!(!was_idle.load(Ordering::Relaxed), "while the job ran");
        assert!(timers.is_idle());
    }
}

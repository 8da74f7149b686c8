//! Jobs that are due later, in the order of their time.

use std::collections::BTreeMap;
use std::sync::Arc;

use verbs_api::VerbError;

use crate::sync::Mutex;
use crate::time::{Host, Time};

/// A job that runs when its time has come, with no lock held. It gets the current time.
pub type Job = Box<dyn FnOnce(Time) + Send>;

/// The jobs that all devices of one network have scheduled.
pub struct Timers {
    host: Arc<dyn Host>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// The scheduled jobs by time; jobs of one time are in the order in which they were added.
    jobs: BTreeMap<(Time, u64), Job>,
    added: u64,
    /// The number of threads that run jobs at present.
    running: usize,
}

/// Counts a thread that runs jobs until this is dropped, also if a job panics.
struct Running<'t>(&'t Timers);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().running -= 1;
    }
}

impl Timers {
    /// Creates timers without a job. `host` supplies the time.
    pub fn new(host: Arc<dyn Host>) -> Self {
        Self {
            host,
            queue: Mutex::default(),
        }
    }

    /// Returns the current time.
    pub fn now(&self) -> Time {
        self.host.now()
    }

    /// Returns a time that is not before now and at most some milliseconds later: [`Host::soon`].
    #[inline]
    pub fn soon(&self) -> Time {
        self.host.soon()
    }

    /// Returns a number that peers cannot guess: [`Host::random`].
    pub fn random(&self) -> u64 {
        self.host.random()
    }

    /// Makes sure that jobs will be run when they are due: [`Host::prepare`].
    ///
    /// # Errors
    /// Those of [`Host::prepare`].
    pub fn prepare(&self) -> Result<(), VerbError> {
        self.host.prepare()
    }

    /// Schedules `job` for `at`. It runs in the first call of [`run_due`](Self::run_due) at or after that time.
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

    /// Notifies the host that a job is due at `at`.
    pub fn wake_at(&self, at: Time) {
        self.host.wake_at(at);
    }

    /// Returns when the first job is due; `None` if there is no job.
    pub fn next(&self) -> Option<Time> {
        self.queue.lock().jobs.keys().next().map(|(at, _)| *at)
    }

    /// Runs the jobs that are due at `now` on the calling thread. A job that such a job adds runs in the next call.
    pub fn run_due(&self, now: Time) {
        let mut queue = self.queue.lock();
        let later = queue.jobs.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut queue.jobs, later);
        queue.running += 1;
        drop(queue);
        let _running = Running(self);
        due.into_values().for_each(|job| job(now));
    }

    /// Returns whether no job is scheduled and none is running.
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
    fn waiting_and_running_jobs_keep_the_timers_busy() {
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

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

    /// Takes the jobs that are due at `now`. One that adds itself again is not among them.
    pub fn take_due(&self, now: Time) -> impl Iterator<Item = Job> {
        let mut queue = self.queue.lock();
        let later = queue.jobs.split_off(&(now, u64::MAX));
        std::mem::replace(&mut queue.jobs, later).into_values()
    }
}

//! Things that are due later, in the order of their time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    heap: BinaryHeap<Reverse<Entry>>,
    posted: u64,
}

struct Entry {
    at: Time,
    order: u64,
    job: Job,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
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

    /// Runs `job` at `at`, or at the next look after it.
    pub fn add(&self, at: Time, job: Job) {
        let mut queue = self.queue();
        queue.posted += 1;
        let order = queue.posted;
        queue.heap.push(Reverse(Entry { at, order, job }));
        let first = queue.heap.peek().map(|Reverse(entry)| entry.order) == Some(order);
        drop(queue);
        if first {
            self.host.wake_at(at);
        }
    }

    /// Tells the host that something is due at `at`.
    pub fn wake_at(&self, at: Time) {
        self.host.wake_at(at);
    }

    /// When the first job is due.
    pub fn next(&self) -> Option<Time> {
        self.queue().heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes the jobs that are due at `now`. One that adds itself again is not among them.
    pub fn take_due(&self, now: Time) -> Vec<Job> {
        let mut queue = self.queue();
        let mut due = Vec::new();
        while queue
            .heap
            .peek()
            .is_some_and(|Reverse(entry)| entry.at <= now)
        {
            due.extend(queue.heap.pop().map(|Reverse(entry)| entry.job));
        }
        due
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

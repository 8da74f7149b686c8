//! Verbs that block, carried out one after the other: by a thread of the open device, or by who waits for one.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use verbs_api::VerbError;
use verbs_api::provider::{Help, start_thread, want_help};

use crate::lock::lock;

type Job = Box<dyn FnOnce() + Send>;

/// A thread, and what it has to do. It ends with this when it has done it.
pub(crate) struct Worker {
    jobs: Arc<Jobs>,
    help: Weak<dyn Help>,
}

#[derive(Default)]
struct Jobs {
    queue: Mutex<Queue>,
    has_changed: Condvar,
    /// Held by who carries one out.
    turn: Mutex<()>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    is_over: bool,
}

impl Worker {
    /// # Errors
    /// The process is out of threads.
    pub(crate) fn start() -> Result<Self, VerbError> {
        let jobs = Arc::<Jobs>::default();
        let help: Weak<dyn Help> = Arc::downgrade(&jobs) as _;
        let own = Arc::clone(&jobs);
        let thread = start_thread("libibverbs-verbs", move || own.work());
        thread.map_err(|error| VerbError::os("thread", error))?;
        Ok(Self { jobs, help })
    }

    /// Has a job done, behind those that were given before.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        lock(&self.jobs.queue).jobs.push_back(Box::new(job));
        self.jobs.has_changed.notify_one();
        want_help(&self.help);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        lock(&self.jobs.queue).is_over = true;
        self.jobs.has_changed.notify_one();
    }
}

impl Jobs {
    fn work(&self) {
        while self.wait() {
            self.next(lock(&self.turn));
        }
    }

    /// Waits for a job; answers whether there is one.
    fn wait(&self) -> bool {
        let is_idle = |queue: &mut Queue| queue.jobs.is_empty() && !queue.is_over;
        let queue = self.has_changed.wait_while(lock(&self.queue), is_idle);
        let queue = queue.unwrap_or_else(PoisonError::into_inner);
        !queue.jobs.is_empty()
    }

    /// Does the next job; answers whether there was one.
    fn next(&self, _turn: MutexGuard<'_, ()>) -> bool {
        let job = lock(&self.queue).jobs.pop_front();
        // What a program's handler does to itself ends nothing here; it has been told of.
        job.map(|job| catch_unwind(AssertUnwindSafe(job))).is_some()
    }
}

impl Help for Jobs {
    fn help(&self, is_done: &dyn Fn() -> bool) {
        while !is_done() {
            let turn = match self.turn.try_lock() {
                Ok(turn) => turn,
                Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            if !self.next(turn) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use verbs_api::Started;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn jobs_are_done_in_turn_by_the_thread_or_by_who_waits() {
        let worker = Worker::start().unwrap();
        let (sender, done) = mpsc::channel();
        for number in 0..100 {
            let sender = sender.clone();
            worker.run(move || sender.send(number).unwrap());
        }
        let (started, completer) = Started::<()>::pending();
        worker.run(move || assert!(completer.complete(Ok(()))));
        started.wait().unwrap();
        let all: Vec<_> = done.try_iter().collect();
        assert_eq!(all, Vec::from_iter(0..100));
        // Nobody waits: the thread does it.
        worker.run(move || sender.send(100).unwrap());
        assert_eq!(done.recv_timeout(PATIENCE), Ok(100));
    }

    #[test]
    fn a_job_that_panics_ends_no_other() {
        let worker = Worker::start().unwrap();
        let (sender, done) = mpsc::channel();
        worker.run(|| panic!("a handler of the program"));
        worker.run(move || sender.send(()).unwrap());
        drop(worker);
        assert_eq!(done.recv_timeout(PATIENCE), Ok(()));
    }
}

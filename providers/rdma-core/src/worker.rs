//! Blocking verbs, which run one after the other: on a thread of the open device, or on the thread that waits for one.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, Weak};

use verbs_api::VerbError;
use verbs_api::provider::{Condvar, Help, Mutex, start_thread, want_help};

type Job = Box<dyn FnOnce() + Send>;

/// A thread with a queue of jobs. Dropping this ends the thread after the last job.
pub(crate) struct Worker {
    jobs: Arc<Jobs>,
    help: Weak<dyn Help>,
}

#[derive(Default)]
struct Jobs {
    queue: Mutex<Queue>,
    has_changed: Condvar,
    /// Held by the thread that runs a job.
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

    /// Adds a job, which runs after the earlier ones.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.jobs.queue.lock().jobs.push_back(Box::new(job));
        self.jobs.has_changed.notify_one();
        want_help(&self.help);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs.queue.lock().is_over = true;
        self.jobs.has_changed.notify_one();
    }
}

impl Jobs {
    fn work(&self) {
        while self.wait() {
            self.next(self.turn.lock());
        }
    }

    /// Blocks until there is a job; returns false if the worker is ending and has none.
    fn wait(&self) -> bool {
        let is_idle = |queue: &mut Queue| queue.jobs.is_empty() && !queue.is_over;
        let queue = self.has_changed.wait_while(self.queue.lock(), is_idle);
        !queue.jobs.is_empty()
    }

    /// Runs the next job, while the caller holds the turn. Returns whether there was one.
    fn next(&self, _turn: MutexGuard<'_, ()>) -> bool {
        let job = self.queue.lock().jobs.pop_front();
        // A panic of a program's handler ends nothing here; the panic hook has reported it.
        job.map(|job| catch_unwind(AssertUnwindSafe(job))).is_some()
    }
}

impl Help for Jobs {
    fn help(&self, is_done: &dyn Fn() -> bool) {
        while !is_done() {
            let Some(turn) = self.turn.try_lock() else {
                return;
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
    fn jobs_run_in_order_on_the_thread_or_a_waiting_one() {
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
        // No thread waits, so the worker's thread runs the job.
        worker.run(move || sender.send(100).unwrap());
        assert_eq!(done.recv_timeout(PATIENCE), Ok(100));
    }

    #[test]
    fn a_panicking_job_does_not_end_the_others() {
        let worker = Worker::start().unwrap();
        let (sender, done) = mpsc::channel();
        worker.run(|| panic!("a panic of the program's handler"));
        worker.run(move || sender.send(()).unwrap());
        drop(worker);
        assert_eq!(done.recv_timeout(PATIENCE), Ok(()));
    }
}

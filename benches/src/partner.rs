//! The partner: the second thread of a measurement that needs two.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};

use crate::cpu;
use crate::sample::pace;

type Work = Box<dyn FnOnce() + Send>;

/// The second thread of a measurement, which runs the closures that [`with`](Self::with) passes to it. The thread ends
/// when the `Partner` is dropped.
pub struct Partner {
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
    apart: bool,
}

impl Partner {
    /// Starts the second thread; neither it nor the calling thread is pinned to a processor.
    pub fn start() -> Self {
        let (sender, receiver) = channel::<Work>();
        let thread = thread::spawn(move || receiver.iter().for_each(|work| work()));
        Self {
            work: Some(sender),
            thread: Some(thread),
            apart: false,
        }
    }

    /// Starts the second thread, and pins it and the calling thread to the two processors of [`cpu::two`]. Where there are
    /// not two, or pinning fails, [`is_apart`](Self::is_apart) returns false.
    pub fn pinned() -> Self {
        let cpus = cpu::two();
        let mut partner = Self::start();
        if let Some([ours, theirs]) = cpus {
            let pinned = partner.with(move || cpu::pin_to(theirs), || cpu::pin_to(ours));
            partner.apart = pinned == (true, true);
        }
        partner
    }

    /// Returns whether [`pinned`](Self::pinned) has pinned the two threads to different processors.
    pub fn is_apart(&self) -> bool {
        self.apart
    }

    /// Runs `theirs` on the partner's thread, and `ours` on the calling thread as soon as the partner's thread is awake;
    /// waits for both, and returns the results of `theirs` and `ours` in this order.
    ///
    /// # Panics
    /// If `theirs` panicked, now or in an earlier call.
    pub fn with<T, U: Send + 'static>(
        &self,
        theirs: impl FnOnce() -> U + Send + 'static,
        ours: impl FnOnce() -> T,
    ) -> (U, T) {
        let awake = Arc::new(AtomicBool::new(false));
        let is_awake = Arc::clone(&awake);
        let (sender, result) = channel();
        let work = Box::new(move || {
            awake.store(true, Ordering::Release);
            // The thread that called `with` waits for this result, unless `ours` panicked.
            let _ = sender.send(theirs());
        });
        let partner = self.work.as_ref();
        let partner = partner.expect("the partner runs until this is dropped");
        partner.send(work).expect("the partner has not panicked");
        while !is_awake.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let ours = ours();
        loop {
            match result.try_recv() {
                Ok(theirs) => return (theirs, ours),
                // A thread that slept here would begin the next measurement on a processor that has slept too.
                Err(TryRecvError::Empty) => thread::yield_now(),
                Err(TryRecvError::Disconnected) => panic!("the partner has panicked"),
            }
        }
    }

    /// Measures the [`pace`] of both threads at the same time; returns that of the slower thread, in nanoseconds per step.
    pub fn pace(&self) -> f64 {
        let (theirs, ours) = self.with(pace, pace);
        ours.max(theirs)
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        drop(self.work.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

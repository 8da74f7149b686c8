//! The second thread of a measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use crate::cpu;
use crate::sample::pace;

type Work = Box<dyn FnOnce() + Send>;

/// The second thread of a measurement, on a processor of its own.
pub struct Partner {
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
    apart: bool,
}

impl Partner {
    /// Starts the second thread, and pins it and this one to different processors.
    pub fn start() -> Self {
        let cpus = cpu::two();
        let (sender, receiver) = channel::<Work>();
        let thread = thread::spawn(move || receiver.iter().for_each(|work| work()));
        let mut partner = Self {
            work: Some(sender),
            thread: Some(thread),
            apart: false,
        };
        let Some([ours, theirs]) = cpus else {
            return partner;
        };
        let pinned = Arc::new(AtomicBool::new(false));
        let tell_pinned = Arc::clone(&pinned);
        partner.with(
            move || tell_pinned.store(cpu::pin_to(theirs), Ordering::Release),
            || (),
        );
        partner.apart = cpu::pin_to(ours) && pinned.load(Ordering::Acquire);
        partner
    }

    /// Whether the two threads are on different processors.
    pub fn is_apart(&self) -> bool {
        self.apart
    }

    /// Runs `theirs` on the partner's thread and `ours` on this one, once both are awake; returns when both ended.
    pub fn with<T>(&self, theirs: impl FnOnce() + Send + 'static, ours: impl FnOnce() -> T) -> T {
        let [awake, ended] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (tell_awake, tell_ended) = (Arc::clone(&awake), Arc::clone(&ended));
        let work = Box::new(move || {
            tell_awake.store(true, Ordering::Release);
            theirs();
            tell_ended.store(true, Ordering::Release);
        });
        let sender = self
            .work
            .as_ref()
            .expect("the partner runs until this is dropped");
        sender
            .send(work)
            .expect("the partner ended early: it panicked");
        wait_until(&awake);
        let result = ours();
        wait_until(&ended);
        result
    }

    /// The slower pace of the two threads.
    pub fn pace(&self) -> f64 {
        let theirs = Arc::new(AtomicU64::new(0));
        let tell = Arc::clone(&theirs);
        let ours = self.with(
            move || tell.store(pace().to_bits(), Ordering::Release),
            pace,
        );
        ours.max(f64::from_bits(theirs.load(Ordering::Acquire)))
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        drop(self.work.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn wait_until(flag: &AtomicBool) {
    while !flag.load(Ordering::Acquire) {
        thread::yield_now();
    }
}

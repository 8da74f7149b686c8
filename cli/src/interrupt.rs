//! Handles Ctrl-C and other signals that end the program: no unfinished file remains, and one line reports how far the
//! command has come.
//!
//! The signals are blocked in every thread and received by one of their own. A command that has something to clean up checks
//! [`transfer::INTERRUPTED`](crate::transfer::INTERRUPTED) and ends itself; others are ended here.

use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc;
use std::thread::{self, Builder};
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{SigSet, Signal};
use polyverbs::provider::Mutex;

use crate::capture_file;
use crate::output::complain;
use crate::transfer::INTERRUPTED;

/// How a command ends when a signal interrupts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The process ends at once, because the command has nothing to clean up.
    AtOnce,
    /// The command notices the interruption, cleans up and ends itself.
    ByItself,
}

type Done = Box<dyn Fn() -> String + Send>;

static COMMAND: Mutex<Option<(Ending, Done)>> = Mutex::new(None);
/// The first signal received; 0 for none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static IS_REPORTED: AtomicBool = AtomicBool::new(false);
/// How long a command may take to clean up before the process ends nevertheless.
const PATIENCE: Duration = Duration::from_secs(3);

/// Starts the threads that receive signals and end the process. Call it before there are other threads.
pub(crate) fn watch() -> anyhow::Result<()> {
    let mut signals = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .for_each(|signal| signals.add(signal));
    signals.thread_block()?;
    // Both threads start now: when a signal comes, the system may have no room for another thread.
    let (tell, told) = mpsc::channel();
    let ending = Builder::new().name("ending".to_owned());
    let ending = ending.spawn(move || {
        if told.recv().is_ok() {
            end();
        }
    });
    let receiving = Builder::new().name("signals".to_owned());
    let receiving = receiving.spawn(move || {
        while let Ok(signal) = signals.wait() {
            if SIGNAL.swap(signal as i32, Ordering::SeqCst) == 0 {
                let _ = tell.send(());
            } else {
                // A second signal ends the process at once.
                exit(status());
            }
        }
    });
    let started = ending.and(receiving);
    started.context("no thread that receives signals: raise the limit of threads or memory")?;
    Ok(())
}

/// Sets how the current command ends if it is interrupted, and the text that is reported then.
pub(crate) fn says(ending: Ending, done: impl Fn() -> String + Send + 'static) {
    *COMMAND.lock() = Some((ending, Box::new(done)));
}

fn end() {
    INTERRUPTED.store(true, Ordering::SeqCst);
    let ending = COMMAND.lock().as_ref().map(|(ending, _)| *ending);
    if ending == Some(Ending::ByItself) {
        thread::sleep(PATIENCE);
    }
    exit(report());
}

/// Whether a signal that ends the program was received.
pub(crate) fn is_interrupted() -> bool {
    SIGNAL.load(Ordering::SeqCst) != 0
}

/// Reports the interruption and the command's text, once, and returns the exit status.
pub(crate) fn report() -> i32 {
    if IS_REPORTED.swap(true, Ordering::SeqCst) {
        // Another thread is about to end the process.
        loop {
            thread::park();
        }
    }
    capture_file::flush();
    let done = COMMAND.lock().as_ref().map(|(_, done)| done());
    match done {
        Some(done) => complain(&format!("interrupted: {done}")),
        None => complain("interrupted"),
    }
    status()
}

// The status that shells use.
fn status() -> i32 {
    128 + SIGNAL.load(Ordering::SeqCst)
}

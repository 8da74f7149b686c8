//! Ctrl-C, and what else ends a program from outside: nothing half-made is left, and one line says what was done.
//!
//! The signals are blocked in every thread and taken by one of their own. A command that has something to put away looks at
//! [`transfer::INTERRUPTED`](crate::transfer::INTERRUPTED) and ends by itself; others are ended here.

use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

use crate::output::complain;
use crate::transfer::INTERRUPTED;

/// How a command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It leaves nothing behind whenever it ends.
    AtOnce,
    /// It looks whether it was interrupted, and puts away what it has made.
    ByItself,
}

type Done = Box<dyn Fn() -> String + Send>;

static COMMAND: Mutex<Option<(Ending, Done)>> = Mutex::new(None);
/// The signal that came; 0 for none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static IS_REPORTED: AtomicBool = AtomicBool::new(false);
/// How long a command may take to put away what it has made.
const PATIENCE: Duration = Duration::from_secs(3);

/// Takes signals from now on. Call before there are threads.
pub(crate) fn watch() -> anyhow::Result<()> {
    let mut signals = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .for_each(|signal| signals.add(signal));
    signals.thread_block()?;
    thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            if SIGNAL.swap(signal as i32, Ordering::SeqCst) == 0 {
                thread::spawn(end);
            } else {
                // Whoever asks twice does not want to wait.
                exit(status());
            }
        }
    });
    Ok(())
}

/// What the command that begins here says has been done where it is interrupted.
pub(crate) fn says(ending: Ending, done: impl Fn() -> String + Send + 'static) {
    *command() = Some((ending, Box::new(done)));
}

fn command() -> MutexGuard<'static, Option<(Ending, Done)>> {
    COMMAND.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end() {
    INTERRUPTED.store(true, Ordering::SeqCst);
    let ending = command().as_ref().map(|(ending, _)| *ending);
    if ending == Some(Ending::ByItself) {
        thread::sleep(PATIENCE);
    }
    exit(report());
}

/// Whether a signal has come.
pub(crate) fn is_interrupted() -> bool {
    SIGNAL.load(Ordering::SeqCst) != 0
}

/// Says what was done, once, and answers the status to end with.
pub(crate) fn report() -> i32 {
    if IS_REPORTED.swap(true, Ordering::SeqCst) {
        // Another thread is about to end the process.
        loop {
            thread::park();
        }
    }
    let done = command().as_ref().map(|(_, done)| done());
    match done {
        Some(done) => complain(&format!("interrupted: {done}")),
        None => complain("interrupted"),
    }
    status()
}

// As shells have it.
fn status() -> i32 {
    128 + SIGNAL.load(Ordering::SeqCst)
}

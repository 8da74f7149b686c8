//! Threads of this library and of providers, in a program that does not know of them.

use std::fs;
use std::io;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::fork::{ForkLock, PerProcess};
use crate::lock::{Condvar, Mutex};

const FAULTS: [Signal; 4] = [
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGILL,
    Signal::SIGFPE,
];

/// Starts a thread of a provider or a library with all signals blocked except those of faults (such as SIGSEGV). A signal
/// to the process is then delivered to a thread of the program; the program may have blocked it there to fetch it by
/// `sigwait` or a signalfd. A fault is always delivered to the thread that causes it, and would end the process if it were
/// blocked.
///
/// # Errors
/// No thread could be started.
pub fn start_thread<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let mut blocked = SigSet::all();
    FAULTS.into_iter().for_each(|signal| blocked.remove(signal));
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let starting = STARTING.lock();
    let running = Running::new();
    let started = Builder::new().name(name.to_owned()).spawn(move || {
        let _running = running;
        body()
    });
    drop(starting);
    before.thread_set_mask()?;
    started
}

/// Held while a thread is counted and created, so that no other thread forks or compares the counts meanwhile. The GNU C library reuses the stack of a thread that
/// has ended: it frees the old thread-local values, then forgets them. A child that was forked between the two steps would free
/// them again when it creates a thread, and abort.
static STARTING: ForkLock<()> = ForkLock::new(());

/// Counts the threads that [`start_thread`] has started and that have not ended.
#[derive(Default)]
struct Threads {
    running: Mutex<usize>,
    ended: Condvar,
}

/// Each process has its own count, because a forked child has none of its parent's threads.
static THREADS: PerProcess<Threads> = PerProcess::new(Threads::default);

struct Running(());

impl Running {
    fn new() -> Self {
        *THREADS.running.lock() += 1;
        Self(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *THREADS.running.lock() -= 1;
        THREADS.ended.notify_all();
    }
}

/// Waits, for `most` at most, until all threads that [`start_thread`] has started in this process have ended. Returns
/// whether all have. A library does this after it has closed its last device: a thread that closes its descriptors later
/// could close files that the program has meanwhile opened under the same numbers.
pub fn wait_for_threads(most: Duration) -> bool {
    let running = THREADS.running.lock();
    *(THREADS.ended).wait_timeout_while(running, most, |running| *running > 0) == 0
}

/// Returns whether the first thread of this process has ended, by `pthread_exit`, and [`start_thread`] has started all threads
/// that have not. The program then has no thread left. The answer is `false` too where the system does not show the threads.
pub fn only_started_threads_are_left() -> bool {
    let _none_starts = STARTING.lock();
    has_first_ended()
        && fs::read_dir("/proc/self/task").is_ok_and(|threads| {
            // The system lists the first thread until the process ends.
            threads.count() <= *THREADS.running.lock() + 1
        })
}

fn has_first_ended() -> bool {
    let about = fs::read_to_string(format!("/proc/self/task/{}/stat", std::process::id()));
    // The state follows the name of the program, which may contain any character.
    about.is_ok_and(|about| {
        about
            .rsplit(')')
            .next()
            .is_some_and(|rest| rest.starts_with(" Z"))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn waiting_ends_when_the_last_thread_has_ended() {
        let (go, told) = mpsc::channel::<()>();
        let thread = start_thread("told", move || told.recv()).unwrap();
        assert!(!wait_for_threads(Duration::ZERO));
        drop(go);
        assert!(thread.join().unwrap().is_err());
        assert!(wait_for_threads(Duration::MAX));
    }

    #[test]
    fn takes_no_signals_and_leaves_the_starter_those_that_it_takes() {
        let mut own = SigSet::thread_get_mask().unwrap();
        own.add(Signal::SIGUSR1);
        own.thread_set_mask().unwrap();
        let (told, mask) = mpsc::channel();
        start_thread("quiet", move || {
            told.send(SigSet::thread_get_mask().unwrap()).unwrap();
        })
        .unwrap();
        let mask = mask.recv().unwrap();
        for signal in Signal::iterator() {
            let is_taken = FAULTS.contains(&signal);
            let is_blocked = !is_taken && !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP);
            assert_eq!(mask.contains(signal), is_blocked, "{signal}");
        }
        assert_eq!(SigSet::thread_get_mask().unwrap(), own);
    }
}

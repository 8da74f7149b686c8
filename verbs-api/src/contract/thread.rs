//! Threads of our own, in a program that knows nothing of them.

use std::io;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

const FAULTS: [Signal; 4] = [
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGILL,
    Signal::SIGFPE,
];

/// Starts a thread of a provider or a library, which takes no signals. One that is sent to the process is for the program's threads,
/// which may have blocked it to fetch it by `sigwait` or a signalfd: a thread that has it unblocked would take it away. Signals
/// of faults it takes: they are of the thread that faults, and where it has them blocked they end the process.
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
    let started = Builder::new().name(name.to_owned()).spawn(body);
    before.thread_set_mask()?;
    started
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

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

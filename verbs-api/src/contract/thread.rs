//! Threads of our own, in a program that knows nothing of them.

use std::io;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow};

/// Starts a thread of a provider or a library, which takes no signals. One that is sent to the process is for the program's threads,
/// which may have blocked it to fetch it by `sigwait` or a signalfd: a thread that has it unblocked would take it away.
///
/// # Errors
/// No thread could be started.
pub fn start_thread<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let started = Builder::new().name(name.to_owned()).spawn(body);
    before.thread_set_mask()?;
    started
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use nix::sys::signal::Signal;

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
        let able_to_be_blocked =
            |signal: &Signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP);
        for signal in Signal::iterator().filter(able_to_be_blocked) {
            assert!(mask.contains(signal), "{signal}");
        }
        assert_eq!(SigSet::thread_get_mask().unwrap(), own);
    }
}

//! Children of forks.
// A fork is unsafe: the child has one thread of the process.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, alarm, fork};

use crate::waiting::PATIENCE;

/// Forks, and returns whether the child ended with `true` before an alarm ended it.
///
/// A child that has returned `true` kills itself: memcheck would search it for leaks at an exit, and the memory of its parent's other
/// threads counts as leaked there.
pub fn in_a_child(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child ends without its parent's code.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            alarm::set(PATIENCE.as_secs() as u32);
            if body() {
                raise(Signal::SIGKILL).unwrap();
            }
            // SAFETY: it ends the process.
            unsafe { libc::_exit(1) }
        }
        ForkResult::Parent { child } => {
            let killed = WaitStatus::Signaled(child, Signal::SIGKILL, false);
            waitpid(child, None).unwrap() == killed
        }
    }
}

/// Whether `fork`, which forks and waits for the child, returns `true` each of many times, while so many threads call `busy` again and
/// again.
pub fn forked_beside(
    threads: usize,
    busy: impl Fn() + Sync,
    mut fork: impl FnMut() -> bool,
) -> bool {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    busy();
                }
            });
        }
        let are_so = (0..300).all(|_| fork());
        is_over.store(true, Ordering::Relaxed);
        are_so
    })
}

//! Child processes that a test creates by `fork`.
// A fork is unsafe: the child has only the calling thread.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, alarm, fork};

use crate::waiting::PATIENCE;

/// Forks, runs `body` in the child, and returns whether it returned `true` before [`PATIENCE`] had passed.
///
/// A child whose `body` returned `true` ends itself by SIGKILL. If it exited, memcheck would search it for leaks, and would
/// report the memory of the parent's other threads.
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

/// Calls `fork`, which forks and waits for the child, 300 times while `threads` other threads call `busy` all the time.
/// Returns whether it returned `true` each time.
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

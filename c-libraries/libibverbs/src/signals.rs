//! Signal handlers for SIGSEGV and SIGBUS: the library handles faults of its own accesses to registered memory, and calls
//! the handler of the program for all others.
//!
//! The functions here interpose those of the C library in programs that are linked with the library.
// Each function has the contract of the C function of its name.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use std::ffi::c_int;
use std::mem;

use verbs_api::memory::copy;

use crate::errno::Errno;
use crate::kept::Next;

/// Installs the library's handlers for SIGSEGV and SIGBUS: from now on, the library's accesses to registered memory that is
/// not mapped fail and do not end the process.
///
/// # Errors
/// The signal handlers cannot be installed.
pub(crate) fn outlive_faults() -> Result<(), Errno> {
    copy::outlive_faults(real_sigaction).map_err(|_| Errno::last())
}

unsafe extern "C" fn real_sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    type Sigaction =
        unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    static NEXT: Next = Next::new(c"sigaction");
    // SAFETY: the function of this name, which every C library has, called as the caller promises.
    unsafe { mem::transmute::<*mut libc::c_void, Sigaction>(NEXT.find())(signal, new, old) }
}

/// Interposes `sigaction`: the program's actions for SIGSEGV and SIGBUS are stored, and called for faults that are not the
/// library's.
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        match copy::program_action(signal, new, old) {
            Some(outcome) => outcome,
            None => real_sigaction(signal, new, old),
        }
    }
}

/// Interposes `signal`, by [`sigaction`].
pub unsafe extern "C" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: an action of all zeros is one; both are readable and writable.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = (mem::zeroed(), mem::zeroed());
        new.sa_sigaction = handler;
        new.sa_flags = libc::SA_RESTART;
        libc::sigaddset(&raw mut new.sa_mask, signal);
        match sigaction(signal, &raw const new, &raw mut old) {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

unsafe fn real_sigmask(how: c_int, new: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    type Sigmask = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;
    static NEXT: Next = Next::new(c"pthread_sigmask");
    // SAFETY: as for `real_sigaction`.
    unsafe { mem::transmute::<*mut libc::c_void, Sigmask>(NEXT.find())(how, new, old) }
}

/// Interposes `pthread_sigmask`, and never blocks SIGSEGV and SIGBUS. Programs block all signals in threads that should not
/// handle them, but the kernel ends a process if a thread faults while the signal is blocked. A fault of the program itself
/// still ends the process, unless the program has a handler, which is called.
pub unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    new: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: as the caller promises; the changed set is there during the call.
    unsafe {
        let mut changed = match new.as_ref() {
            Some(new) if how != libc::SIG_UNBLOCK => *new,
            _ => return real_sigmask(how, new, old),
        };
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            libc::sigdelset(&raw mut changed, signal);
        }
        real_sigmask(how, &raw const changed, old)
    }
}

/// Interposes `sigprocmask`, by [`pthread_sigmask`].
pub unsafe extern "C" fn sigprocmask(
    how: c_int,
    new: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: as the caller promises.
    match unsafe { pthread_sigmask(how, new, old) } {
        0 => 0,
        errno => {
            Errno(errno).set();
            -1
        }
    }
}
